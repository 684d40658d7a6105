package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	cadvisorapiv2 "github.com/google/cadvisor/info/v2"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/config"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/status"
)

const (
	diskB = 200 << 30
	gpu   = "nvidia.com/gpu"
)

// machine tells the kubelet of hardware that is not there.
type machine struct {
	cadvisortest.Fake
	config Config
	used   func() uint64
}

var _ cadvisor.Interface = &machine{}

func newMachine(config Config) *machine {
	return &machine{config: config}
}

func (m *machine) MachineInfo() (*cadvisorapi.MachineInfo, error) {
	return &cadvisorapi.MachineInfo{
		NumCores: m.config.Cpus, MemoryCapacity: m.config.MemoryB,
		MachineID: m.config.Name, SystemUUID: m.config.Name, BootID: m.config.Name,
	}, nil
}

func (m *machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	return &cadvisorapi.VersionInfo{KernelVersion: "6.1.0", ContainerOsVersion: "Debian GNU/Linux 12 (bookworm)"}, nil
}

// The root's memory is what the kubelet's eviction goes by.
func (m *machine) ContainerInfoV2(name string, _ cadvisorapiv2.RequestOptions) (map[string]cadvisorapiv2.ContainerInfo, error) {
	if name != "/" {
		return map[string]cadvisorapiv2.ContainerInfo{}, nil
	}
	used := m.used()
	return map[string]cadvisorapiv2.ContainerInfo{name: {
		Spec: cadvisorapiv2.ContainerSpec{HasMemory: true, Memory: cadvisorapiv2.MemorySpec{Limit: m.config.MemoryB}},
		Stats: []*cadvisorapiv2.ContainerStats{{
			Timestamp: time.Now(),
			Memory:    &cadvisorapi.MemoryStats{Usage: used, WorkingSet: used},
		}},
	}}, nil
}

func (m *machine) RootFsInfo() (cadvisorapiv2.FsInfo, error) {
	inodes := uint64(1 << 24)
	return cadvisorapiv2.FsInfo{
		Timestamp: time.Now(), Device: "bed", Capacity: diskB, Available: diskB, Inodes: &inodes, InodesFree: &inodes,
	}, nil
}

func (m *machine) ImagesFsInfo() (cadvisorapiv2.FsInfo, error)       { return m.RootFsInfo() }
func (m *machine) GetDirFsInfo(string) (cadvisorapiv2.FsInfo, error) { return m.RootFsInfo() }

// devices has the node's further resources and says which GPUs each container got.
type devices struct {
	cm.ContainerManager
	resources  map[string]int64
	activePods cm.ActivePodsFunc
	lock       sync.Mutex
	given      map[types.UID]map[string][]int64
}

func newDevices(config Config) cm.ContainerManager {
	return &devices{
		ContainerManager: cm.NewStubContainerManager(), resources: config.Resources, given: map[types.UID]map[string][]int64{},
	}
}

func (d *devices) Start(_ *v1.Node, activePods cm.ActivePodsFunc, _ config.SourcesReady, _ status.PodStatusProvider, _ internalapi.RuntimeService) error {
	d.activePods = activePods
	return nil
}

func (d *devices) GetCapacity() v1.ResourceList {
	return v1.ResourceList{v1.ResourceEphemeralStorage: *resource.NewQuantity(diskB, resource.BinarySI)}
}

func (d *devices) GetDevicePluginResourceCapacity() (v1.ResourceList, v1.ResourceList, []string) {
	all := v1.ResourceList{}
	for name, count := range d.resources {
		all[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	return all, all, nil
}

// As NVIDIA's device plugin does.
func (d *devices) GetResources(pod *v1.Pod, container *v1.Container) (*kubecontainer.RunContainerOptions, error) {
	wanted, asks := container.Resources.Limits[gpu]
	if !asks {
		return &kubecontainer.RunContainerOptions{}, nil
	}
	indices, err := d.take(pod.UID, container.Name, wanted.Value())
	if err != nil {
		return nil, err
	}
	words := strings.Trim(strings.ReplaceAll(fmt.Sprint(indices), " ", ","), "[]")
	return &kubecontainer.RunContainerOptions{Envs: []kubecontainer.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: words}}}, nil
}

func (d *devices) take(pod types.UID, container string, count int64) ([]int64, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if had, ok := d.given[pod][container]; ok {
		return had, nil
	}
	active := map[types.UID]bool{pod: true}
	for _, each := range d.activePods() {
		active[each.UID] = true
	}
	taken := map[int64]bool{}
	for uid, containers := range d.given {
		if !active[uid] {
			delete(d.given, uid)
			continue
		}
		for _, indices := range containers {
			for _, index := range indices {
				taken[index] = true
			}
		}
	}
	indices := []int64{}
	for index := int64(0); index < d.resources[gpu] && int64(len(indices)) < count; index++ {
		if !taken[index] {
			indices = append(indices, index)
		}
	}
	if int64(len(indices)) < count {
		return nil, fmt.Errorf("%s: %d wanted, %d free", gpu, count, len(indices))
	}
	if d.given[pod] == nil {
		d.given[pod] = map[string][]int64{}
	}
	d.given[pod][container] = indices
	return indices, nil
}
