package main

import (
	"fmt"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
)

// images can be pulled, whatever their names, but for those with "missing" in it. All of them are this machine's tree.
type images struct {
	lock   sync.Mutex
	pulled map[string]*runtimeapi.Image
}

func newImages() *images {
	return &images{pulled: map[string]*runtimeapi.Image{}}
}

func (i *images) ListImages(*runtimeapi.ImageFilter) (all []*runtimeapi.Image, err error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	for _, image := range i.pulled {
		all = append(all, image)
	}
	return
}

func (i *images) ImageStatus(image *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	i.lock.Lock()
	defer i.lock.Unlock()
	return i.pulled[image.Image], nil
}

func (i *images) PullImage(image *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	if strings.Contains(image.Image, "missing") {
		return "", fmt.Errorf("rpc error: code = NotFound desc = failed to pull and unpack image %q: failed to resolve reference %q: %s: not found", image.Image, image.Image, image.Image)
	}
	i.lock.Lock()
	defer i.lock.Unlock()
	i.pulled[image.Image] = &runtimeapi.Image{Id: image.Image, RepoTags: []string{image.Image}, Size_: 1 << 20}
	return image.Image, nil
}

func (i *images) RemoveImage(image *runtimeapi.ImageSpec) error {
	i.lock.Lock()
	defer i.lock.Unlock()
	delete(i.pulled, image.Image)
	return nil
}

func (i *images) ImageFsInfo() ([]*runtimeapi.FilesystemUsage, error) {
	return []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/"}, UsedBytes: &runtimeapi.UInt64Value{}, InodesUsed: &runtimeapi.UInt64Value{},
	}}, nil
}
