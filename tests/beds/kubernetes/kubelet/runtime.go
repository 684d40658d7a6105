package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
	"k8s.io/kubernetes/pkg/kubelet/cri/streaming"
)

// runtime is what containerd is elsewhere: pods' networks and containers, each a process in namespaces of its own.
type runtime struct {
	config     Config
	streams    streaming.Server
	lock       sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	addresses  addresses
}

var _ internalapi.RuntimeService = &runtime{}

func newRuntime(config Config) (*runtime, error) {
	r := &runtime{
		config: config, sandboxes: map[string]*sandbox{}, containers: map[string]*container{},
		addresses: addresses{network: config.PodNetwork, taken: map[int]bool{}},
	}
	for _, name := range []string{"sandboxes", "containers"} {
		if err := os.MkdirAll(filepath.Join(config.Directory, name), 0o755); err != nil {
			return nil, err
		}
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	settings := streaming.DefaultConfig
	port, err := freePort(config.Address)
	if err != nil {
		return nil, err
	}
	settings.Addr = net.JoinHostPort(config.Address, port)
	if r.streams, err = streaming.NewServer(settings, &execs{r}); err != nil {
		return nil, err
	}
	go func() { check(r.streams.Start(true)) }()
	return r, nil
}

func freePort(address string) (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), nil
}

func (r *runtime) container(id string) (*container, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if found, ok := r.containers[id]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("container %q not found", id)
}

func (r *runtime) sandbox(id string) (*sandbox, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if found, ok := r.sandboxes[id]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("pod sandbox %q not found", id)
}

func (r *runtime) Version(string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "bed", RuntimeVersion: "0.1.0", RuntimeApiVersion: "v1alpha2"}, nil
}

func (r *runtime) Status() (*runtimeapi.RuntimeStatus, error) {
	return &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
	}}, nil
}

func (r *runtime) UpdateRuntimeConfig(*runtimeapi.RuntimeConfig) error { return nil }

func (r *runtime) UpdateContainerResources(string, *runtimeapi.LinuxContainerResources) error {
	return nil
}

func (r *runtime) ReopenContainerLog(string) error { return nil }

func (r *runtime) Exec(request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return r.streams.GetExec(request)
}

func (r *runtime) Attach(request *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return r.streams.GetAttach(request)
}

func (r *runtime) PortForward(request *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return r.streams.GetPortForward(request)
}

func (r *runtime) ContainerStats(id string) (*runtimeapi.ContainerStats, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, err
	}
	return c.stats(), nil
}

func (r *runtime) ListContainerStats(filter *runtimeapi.ContainerStatsFilter) (all []*runtimeapi.ContainerStats, err error) {
	for _, c := range r.running() {
		if filter.GetId() == "" || filter.GetId() == c.id {
			all = append(all, c.stats())
		}
	}
	return
}

func (r *runtime) running() (all []*container) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, c := range r.containers {
		if c.current() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			all = append(all, c)
		}
	}
	return
}

func (r *runtime) memoryUsed() (sum uint64) {
	for _, c := range r.running() {
		sum += c.memory()
	}
	return
}

// What a test has written to `memory` is what the container is said to use.
func (c *container) memory() uint64 {
	data, err := os.ReadFile(filepath.Join(c.directory, "memory"))
	if err != nil {
		return 16 << 20
	}
	used, _ := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	return used
}

func (c *container) stats() *runtimeapi.ContainerStats {
	now := time.Now().UnixNano()
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: c.id, Metadata: c.config.Metadata, Labels: c.config.Labels, Annotations: c.config.Annotations,
		},
		Cpu:    &runtimeapi.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: &runtimeapi.UInt64Value{}},
		Memory: &runtimeapi.MemoryUsage{Timestamp: now, WorkingSetBytes: &runtimeapi.UInt64Value{Value: c.memory()}},
	}
}
