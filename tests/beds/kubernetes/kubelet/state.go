package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
)

// What a runtime knows of its pods and containers survives a power cut, but nothing that ran does.

type savedSandbox struct {
	Config    *runtimeapi.PodSandboxConfig
	CreatedAt int64
	Address   string
}

type savedContainer struct {
	Sandbox   string
	Config    *runtimeapi.ContainerConfig
	CreatedAt int64
}

func (s *sandbox) save() error {
	return writeJSON(s.directory, "sandbox.json", savedSandbox{s.config, s.createdAt, s.address})
}

func (c *container) save() error {
	if err := writeJSON(c.directory, "spec.json", c.spec); err != nil {
		return err
	}
	return writeJSON(c.directory, "container.json", savedContainer{c.sandbox.id, c.config, c.createdAt})
}

func (c *container) savePid() error {
	return os.WriteFile(filepath.Join(c.directory, "pid"), []byte(strconv.Itoa(c.pid)), 0o644)
}

func writeJSON(directory, name string, value interface{}) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	part := filepath.Join(directory, name+".part")
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(directory, name))
}

func readJSON(directory, name string, value interface{}) error {
	data, err := os.ReadFile(filepath.Join(directory, name))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, value)
}

// load finds what was there before the node was started again.
func (r *runtime) load() error {
	for _, directory := range r.directories("sandboxes") {
		var saved savedSandbox
		if readJSON(directory, "sandbox.json", &saved) != nil {
			// It was being made.
			continue
		}
		id := filepath.Base(directory)
		r.sandboxes[id] = &sandbox{
			id: id, directory: directory, config: saved.Config, createdAt: saved.CreatedAt, address: saved.Address,
			state: runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
		}
	}
	for _, directory := range r.directories("containers") {
		var saved savedContainer
		if readJSON(directory, "container.json", &saved) != nil || r.sandboxes[saved.Sandbox] == nil {
			continue
		}
		c := &container{
			id: filepath.Base(directory), directory: directory, sandbox: r.sandboxes[saved.Sandbox], config: saved.Config,
			createdAt: saved.CreatedAt, startedAt: saved.CreatedAt, ended: make(chan struct{}),
		}
		if err := readJSON(directory, "spec.json", &c.spec); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(directory, "exit.json")); err == nil {
			c.end()
		} else {
			// As containerd reports one of which it does not know how it ended.
			c.finish(255, time.Now().UnixNano(), "Unknown", "")
		}
		r.containers[c.id] = c
	}
	return nil
}

func (r *runtime) directories(kind string) []string {
	found, err := filepath.Glob(filepath.Join(r.config.Directory, kind, "*"))
	check(err)
	return found
}
