// A node of the bed: the kubelet itself, with hardware of our choice and a runtime whose containers are local processes.
//
//	bed-kubelet CONFIG.json        as a first process of its process and mount namespaces
package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/mount-utils"

	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
	"k8s.io/kubernetes/pkg/util/oom"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/configmap"
	"k8s.io/kubernetes/pkg/volume/downwardapi"
	"k8s.io/kubernetes/pkg/volume/emptydir"
	"k8s.io/kubernetes/pkg/volume/hostpath"
	"k8s.io/kubernetes/pkg/volume/projected"
	"k8s.io/kubernetes/pkg/volume/secret"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
)

// Config is what kubernetes/nodes.py writes.
type Config struct {
	Name       string
	Address    string
	Directory  string
	Kubeconfig string
	Cpus       int
	MemoryB    uint64
	Resources  map[string]int64
	Labels     map[string]string
	MaxPods    int
	// The first three numbers of its pods' addresses, the bed's bridge, and where names are asked for.
	PodNetwork string
	Bridge     string
	Dns        string
	// What the node runs containers with, the PATH in all images, and what of this machine's tree they do not see.
	Container string
	ImagePath string
	Hidden    []string
	Shared    []string
	// A node tells that it lives this often.
	HeartbeatS int
}

func main() {
	data, err := os.ReadFile(os.Args[1])
	check(err)
	var config Config
	check(json.Unmarshal(data, &config))
	// The kubelet keeps logs there, whatever it is told.
	check(syscall.Mount("tmpfs", "/var/log", "tmpfs", 0, "mode=755"))
	// What clusters of today do: memory of a volume ends at its size limit.
	check(utilfeature.DefaultMutableFeatureGate.Set("SizeMemoryBackedVolumes=true"))
	flags, settings := configure(config)
	tls, err := app.InitializeTLS(flags, settings)
	check(err)
	access, err := clientcmd.BuildConfigFromFlags("", config.Kubeconfig)
	check(err)
	access.QPS, access.Burst = 200, 200
	heartbeats := rest.CopyConfig(access)
	heartbeats.Timeout = time.Duration(config.HeartbeatS) * time.Second
	mounter := mount.New("")
	machine := newMachine(config)
	runtime, err := newRuntime(config)
	check(err)
	machine.used = runtime.memoryUsed
	dependencies := &kubelet.Dependencies{
		KubeClient:           clientset.NewForConfigOrDie(access),
		EventClient:          clientset.NewForConfigOrDie(access).CoreV1(),
		HeartbeatClient:      clientset.NewForConfigOrDie(heartbeats),
		RemoteRuntimeService: runtime,
		RemoteImageService:   newImages(),
		CAdvisorInterface:    machine,
		ContainerManager:     newDevices(config),
		OSInterface:          kubecontainer.RealOS{},
		OOMAdjuster:          oom.NewFakeOOMAdjuster(),
		Mounter:              mounter,
		Subpather:            subpath.New(mounter),
		HostUtil:             hostutil.NewHostUtil(),
		VolumePlugins:        volumePlugins(),
		TLSOptions:           tls,
	}
	check(app.RunKubelet(&options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *settings}, dependencies, false))
	select {}
}

func check(err error) {
	if err != nil {
		klog.Fatal(err)
	}
}

func volumePlugins() (all []volume.VolumePlugin) {
	all = append(all, emptydir.ProbeVolumePlugins()...)
	all = append(all, hostpath.ProbeVolumePlugins(volume.VolumeConfig{})...)
	all = append(all, secret.ProbeVolumePlugins()...)
	all = append(all, configmap.ProbeVolumePlugins()...)
	all = append(all, downwardapi.ProbeVolumePlugins()...)
	return append(all, projected.ProbeVolumePlugins()...)
}

func configure(config Config) (*options.KubeletFlags, *kubeletconfig.KubeletConfiguration) {
	flags := options.NewKubeletFlags()
	flags.RootDirectory = filepath.Join(config.Directory, "kubelet")
	flags.CertDirectory = filepath.Join(config.Directory, "certs")
	flags.HostnameOverride = config.Name
	flags.NodeIP = config.Address
	flags.NodeLabels = config.Labels
	flags.ContainerRuntimeOptions.ContainerRuntime = kubetypes.RemoteContainerRuntime
	flags.MinimumGCAge = metav1.Duration{Duration: time.Minute}
	flags.MaxContainerCount = -1
	flags.MaxPerPodContainerCount = 2
	settings, err := options.NewKubeletConfiguration()
	check(err)
	settings.Address = config.Address
	settings.ReadOnlyPort = 0
	settings.NodeStatusUpdateFrequency.Duration = time.Duration(config.HeartbeatS) * time.Second
	settings.NodeLeaseDurationSeconds = int32(4 * config.HeartbeatS)
	settings.MaxPods = int32(config.MaxPods)
	settings.ClusterDomain = "cluster.local"
	settings.ClusterDNS = []string{config.Dns}
	settings.ResolverConfig = ""
	settings.CgroupsPerQOS = false
	settings.EnforceNodeAllocatable = nil
	settings.EventRecordQPS = 0
	settings.EnableControllerAttachDetach = false
	settings.ContainerLogMaxSize = "1Gi"
	settings.EvictionHard = map[string]string{"memory.available": "100Mi"}
	settings.EvictionPressureTransitionPeriod.Duration = time.Second
	settings.FailSwapOn = false
	settings.SyncFrequency.Duration = time.Second
	return flags, settings
}
