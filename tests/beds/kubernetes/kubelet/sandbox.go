package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
)

// sandbox is a pod's network: a namespace with an address of its own on the bed's bridge.
type sandbox struct {
	id        string
	directory string
	config    *runtimeapi.PodSandboxConfig
	createdAt int64
	state     runtimeapi.PodSandboxState
	host      int
	address   string
}

// addresses gives each pod of this node one of its network's.
type addresses struct {
	network string
	lock    sync.Mutex
	last    int
	taken   map[int]bool
}

func (a *addresses) take() (int, error) {
	a.lock.Lock()
	defer a.lock.Unlock()
	for range [253]struct{}{} {
		// One that was given back lately may still be known to somebody.
		a.last = a.last%253 + 1
		if !a.taken[a.last] {
			a.taken[a.last] = true
			return a.last + 1, nil
		}
	}
	return 0, fmt.Errorf("no address is left in %s.0/24", a.network)
}

func (a *addresses) give(host int) {
	a.lock.Lock()
	defer a.lock.Unlock()
	delete(a.taken, host-1)
}

func (s *sandbox) network() string { return filepath.Join(s.directory, "network") }

func (s *sandbox) usesNodesNetwork() bool {
	return s.config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

func (r *runtime) RunPodSandbox(config *runtimeapi.PodSandboxConfig, _ string) (string, error) {
	m := config.Metadata
	id := fmt.Sprintf("%s_%s_%d_%.8s", m.Namespace, m.Name, m.Attempt, m.Uid)
	s := &sandbox{
		id: id, config: config, directory: filepath.Join(r.config.Directory, "sandboxes", id),
		createdAt: time.Now().UnixNano(), address: r.config.Address,
	}
	if err := os.MkdirAll(s.directory, 0o755); err != nil {
		return "", err
	}
	if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
		return "", err
	}
	if err := s.writeResolver(); err != nil {
		return "", err
	}
	if !s.usesNodesNetwork() {
		host, err := r.addresses.take()
		if err != nil {
			return "", err
		}
		s.host, s.address = host, fmt.Sprintf("%s.%d", r.config.PodNetwork, host)
		if err := s.connect(r.config); err != nil {
			r.addresses.give(host)
			return "", err
		}
	}
	if err := s.save(); err != nil {
		return "", err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	r.sandboxes[id] = s
	return id, nil
}

func (s *sandbox) writeResolver() error {
	var text strings.Builder
	dns := s.config.GetDnsConfig()
	for _, server := range dns.GetServers() {
		fmt.Fprintf(&text, "nameserver %s\n", server)
	}
	if len(dns.GetSearches()) > 0 {
		fmt.Fprintf(&text, "search %s\n", strings.Join(dns.GetSearches(), " "))
	}
	if len(dns.GetOptions()) > 0 {
		fmt.Fprintf(&text, "options %s\n", strings.Join(dns.GetOptions(), " "))
	}
	if err := os.WriteFile(filepath.Join(s.directory, "hostname"), []byte(s.config.Hostname+"\n"), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.directory, "resolv.conf"), []byte(text.String()), 0o644)
}

// connect makes the namespace and a cable from it to the bridge.
func (s *sandbox) connect(config Config) error {
	if err := os.WriteFile(s.network(), nil, 0o600); err != nil {
		return err
	}
	made := make(chan error)
	go func() {
		// This thread is in the new namespace for good, and ends with the goroutine.
		goruntime.LockOSThread()
		err := syscall.Unshare(syscall.CLONE_NEWNET)
		if err == nil {
			err = syscall.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", syscall.Gettid()), s.network(), "", syscall.MS_BIND, "")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	// Interface names end at 15 characters.
	cable := "p" + strings.ReplaceAll(strings.TrimPrefix(s.address, "10.244."), ".", "-")
	if err := batch([]string{"ip", "-batch", "-"},
		"link add "+cable+" type veth peer name eth0 netns "+s.network(),
		"link set "+cable+" master "+config.Bridge+" up"); err != nil {
		return err
	}
	return batch([]string{"nsenter", "--net=" + s.network(), "ip", "-batch", "-"},
		"link set lo up", "address add "+s.address+"/16 dev eth0", "link set eth0 up",
		"route add default via "+config.Dns)
}

func batch(argv []string, lines ...string) error {
	command := exec.Command(argv[0], argv[1:]...)
	command.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if said, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, said)
	}
	return nil
}

func (r *runtime) StopPodSandbox(id string) error {
	s, err := r.sandbox(id)
	if err != nil {
		// Already gone is as good.
		return nil
	}
	for _, c := range r.of(id) {
		c.kill()
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if s.state == runtimeapi.PodSandboxState_SANDBOX_READY && !s.usesNodesNetwork() {
		// Takes its end of the cable with it, and that takes the other.
		if err := syscall.Unmount(s.network(), syscall.MNT_DETACH); err != nil {
			return err
		}
		r.addresses.give(s.host)
	}
	s.state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	return nil
}

func (r *runtime) of(sandbox string) (all []*container) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, c := range r.containers {
		if c.sandbox.id == sandbox {
			all = append(all, c)
		}
	}
	return
}

func (r *runtime) RemovePodSandbox(id string) error {
	s, err := r.sandbox(id)
	if err != nil {
		return nil
	}
	if err := r.StopPodSandbox(id); err != nil {
		return err
	}
	for _, c := range r.of(id) {
		if err := r.RemoveContainer(c.id); err != nil {
			return err
		}
	}
	r.lock.Lock()
	delete(r.sandboxes, id)
	r.lock.Unlock()
	return os.RemoveAll(s.directory)
}

func (r *runtime) PodSandboxStatus(id string) (*runtimeapi.PodSandboxStatus, error) {
	s, err := r.sandbox(id)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatus{
		Id: s.id, Metadata: s.config.Metadata, State: s.state, CreatedAt: s.createdAt,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: s.address},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels: s.config.Labels, Annotations: s.config.Annotations,
	}, nil
}

func (r *runtime) ListPodSandbox(filter *runtimeapi.PodSandboxFilter) (all []*runtimeapi.PodSandbox, err error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, s := range r.sandboxes {
		if filter.GetId() != "" && filter.Id != s.id {
			continue
		}
		if filter.GetState() != nil && filter.State.State != s.state {
			continue
		}
		if !hasLabels(s.config.Labels, filter.GetLabelSelector()) {
			continue
		}
		all = append(all, &runtimeapi.PodSandbox{
			Id: s.id, Metadata: s.config.Metadata, State: s.state, CreatedAt: s.createdAt,
			Labels: s.config.Labels, Annotations: s.config.Annotations,
		})
	}
	return
}

func hasLabels(labels, wanted map[string]string) bool {
	for name, value := range wanted {
		if labels[name] != value {
			return false
		}
	}
	return true
}
