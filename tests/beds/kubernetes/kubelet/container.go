package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
)

// container is one attempt of a pod's container; its process is a child of a bed-container.
type container struct {
	id        string
	directory string
	sandbox   *sandbox
	config    *runtimeapi.ContainerConfig
	spec      spec
	createdAt int64

	lock       sync.Mutex
	state      runtimeapi.ContainerState
	pid        int
	startedAt  int64
	finishedAt int64
	exitCode   int32
	reason     string
	message    string
	ended      chan struct{}
}

// spec is what bed-container reads.
type spec struct {
	Argv     []string
	Env      []string
	Cwd      string
	Hostname string
	Log      string
	User     *int64
	Group    *int64
	Groups   []int64
	Mounts   []specMount
	Hidden   []string
}

type specMount struct {
	From     string
	To       string
	ReadOnly bool
}

func (r *runtime) CreateContainer(sandboxID string, config *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	s, err := r.sandbox(sandboxID)
	if err != nil {
		return "", err
	}
	m := s.config.Metadata
	id := fmt.Sprintf("%s_%s_%s_%d_%.8s", m.Namespace, m.Name, config.Metadata.Name, config.Metadata.Attempt, m.Uid)
	c := &container{
		id: id, directory: filepath.Join(r.config.Directory, "containers", id), sandbox: s, config: config,
		createdAt: time.Now().UnixNano(), ended: make(chan struct{}), spec: r.specOf(s, config),
	}
	if err := os.MkdirAll(c.directory, 0o755); err != nil {
		return "", err
	}
	if err := c.save(); err != nil {
		return "", err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	r.containers[id] = c
	return id, nil
}

func (r *runtime) specOf(s *sandbox, config *runtimeapi.ContainerConfig) spec {
	made := spec{
		Argv: append(append([]string{}, config.Command...), config.Args...), Cwd: config.WorkingDir,
		Hostname: s.config.Hostname, Log: filepath.Join(s.config.LogDirectory, config.LogPath), Hidden: r.config.Hidden,
	}
	if len(made.Argv) == 0 {
		// What the image itself would run.
		made.Argv = []string{"sleep", "infinity"}
	}
	if made.Cwd == "" {
		made.Cwd = "/"
	}
	values := map[string]string{"PATH": r.config.ImagePath, "HOME": "/root", "HOSTNAME": s.config.Hostname}
	for _, each := range config.Envs {
		values[each.Key] = each.Value
	}
	for name, value := range values {
		made.Env = append(made.Env, name+"="+value)
	}
	for _, path := range r.config.Shared {
		made.Mounts = append(made.Mounts, specMount{path, path, true})
	}
	for _, name := range []string{"hostname", "resolv.conf"} {
		made.Mounts = append(made.Mounts, specMount{filepath.Join(s.directory, name), "/etc/" + name, false})
	}
	for _, mount := range config.Mounts {
		made.Mounts = append(made.Mounts, specMount{mount.HostPath, mount.ContainerPath, mount.Readonly})
	}
	context := config.GetLinux().GetSecurityContext()
	if context.GetRunAsUser() != nil {
		made.User, made.Groups = &context.RunAsUser.Value, append([]int64{}, context.SupplementalGroups...)
	}
	if context.GetRunAsGroup() != nil {
		made.Group = &context.RunAsGroup.Value
	}
	return made
}

func (r *runtime) StartContainer(id string) error {
	c, err := r.container(id)
	if err != nil {
		return err
	}
	argv := []string{r.config.Container, c.directory}
	if !c.sandbox.usesNodesNetwork() {
		argv = append([]string{"nsenter", "--net=" + c.sandbox.network()}, argv...)
	}
	pid, wait, err := launch(argv)
	if err != nil {
		// In containerd's words.
		c.finish(128, time.Now().UnixNano(), "StartError", fmt.Sprintf("failed to create containerd task: failed to create shim: OCI runtime create failed: container_linux.go:380: starting container process caused: %s: unknown", err))
		return errors.New(c.message)
	}
	c.lock.Lock()
	c.state, c.pid, c.startedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, pid, time.Now().UnixNano()
	c.lock.Unlock()
	go func() {
		wait()
		c.end()
	}()
	return c.savePid()
}

// launch returns the pid of the container's first process.
func launch(argv []string) (int, func() error, error) {
	report, theirs, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer report.Close()
	command := exec.Command(argv[0], argv[1:]...)
	command.ExtraFiles = []*os.File{theirs}
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = command.Start()
	theirs.Close()
	if err != nil {
		return 0, nil, err
	}
	said, _ := io.ReadAll(report)
	var pid int
	if _, err := fmt.Sscanf(string(said), "started %d", &pid); err != nil {
		command.Wait()
		return 0, nil, errors.New(strings.TrimPrefix(string(said), "failed "))
	}
	return pid, command.Wait, nil
}

func (c *container) end() {
	var exit struct {
		Code       int32
		FinishedAt int64
	}
	if readJSON(c.directory, "exit.json", &exit) != nil {
		exit.Code, exit.FinishedAt = 137, time.Now().UnixNano()
	}
	reason := "Error"
	if exit.Code == 0 {
		reason = "Completed"
	} else if _, err := os.Stat(filepath.Join(c.directory, "oom")); err == nil {
		reason = "OOMKilled"
	}
	c.finish(exit.Code, exit.FinishedAt, reason, "")
}

func (c *container) finish(code int32, at int64, reason, message string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.startedAt == 0 {
		c.startedAt = at
	}
	c.state, c.exitCode, c.finishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, at
	c.reason, c.message = reason, message
	close(c.ended)
}

func (c *container) current() runtimeapi.ContainerState {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.state
}

func (c *container) kill() {
	if c.current() == runtimeapi.ContainerState_CONTAINER_RUNNING {
		syscall.Kill(c.pid, syscall.SIGKILL)
		<-c.ended
	}
}

func (r *runtime) StopContainer(id string, timeout int64) error {
	c, err := r.container(id)
	if err != nil || c.current() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	if timeout > 0 {
		syscall.Kill(c.pid, syscall.SIGTERM)
		select {
		case <-c.ended:
			return nil
		case <-time.After(time.Duration(timeout) * time.Second):
		}
	}
	c.kill()
	return nil
}

func (r *runtime) RemoveContainer(id string) error {
	c, err := r.container(id)
	if err != nil {
		return nil
	}
	c.kill()
	r.lock.Lock()
	delete(r.containers, id)
	r.lock.Unlock()
	os.Remove(c.spec.Log)
	return os.RemoveAll(c.directory)
}

func (r *runtime) ListContainers(filter *runtimeapi.ContainerFilter) (all []*runtimeapi.Container, err error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, c := range r.containers {
		state := c.current()
		if filter.GetId() != "" && filter.Id != c.id || filter.GetPodSandboxId() != "" && filter.PodSandboxId != c.sandbox.id {
			continue
		}
		if filter.GetState() != nil && filter.State.State != state || !hasLabels(c.config.Labels, filter.GetLabelSelector()) {
			continue
		}
		all = append(all, &runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.config.Metadata, Image: c.config.Image, ImageRef: c.config.Image.Image,
			State: state, CreatedAt: c.createdAt, Labels: c.config.Labels, Annotations: c.config.Annotations,
		})
	}
	return
}

func (r *runtime) ContainerStatus(id string) (*runtimeapi.ContainerStatus, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	return &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.config.Metadata, State: c.state, CreatedAt: c.createdAt, StartedAt: c.startedAt,
		FinishedAt: c.finishedAt, ExitCode: c.exitCode, Image: c.config.Image, ImageRef: c.config.Image.Image,
		Reason: c.reason, Message: c.message, Labels: c.config.Labels, Annotations: c.config.Annotations,
		Mounts: c.config.Mounts, LogPath: c.spec.Log,
	}, nil
}
