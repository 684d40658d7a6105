package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// The first process of a container: makes its filesystem, then becomes its program.
func become(directory string) {
	trouble := os.NewFile(3, "trouble")
	syscall.CloseOnExec(3)
	err := func() error {
		spec, err := read(directory)
		if err != nil {
			return err
		}
		if err := syscall.Sethostname([]byte(spec.Hostname)); err != nil {
			return err
		}
		root, err := makeRoot(directory, spec)
		if err != nil {
			return err
		}
		if err := syscall.Chroot(root); err != nil {
			return err
		}
		if err := os.MkdirAll(spec.Cwd, 0o755); err != nil {
			return err
		}
		if err := os.Chdir(spec.Cwd); err != nil {
			return err
		}
		if err := setUser(spec); err != nil {
			return err
		}
		program, err := exec.LookPath(spec.Argv[0])
		if err != nil {
			return err
		}
		return syscall.Exec(program, spec.Argv, spec.Env)
	}()
	fmt.Fprint(trouble, err)
	os.Exit(1)
}

func setUser(spec Spec) error {
	if spec.Groups != nil {
		if err := syscall.Setgroups(spec.Groups); err != nil {
			return err
		}
	}
	if spec.Group != nil {
		if err := syscall.Setgid(*spec.Group); err != nil {
			return err
		}
	}
	if spec.User != nil {
		return syscall.Setuid(*spec.User)
	}
	return nil
}

// This machine's own tree, under a layer of the container's: what it writes there goes with it.
func makeRoot(directory string, spec Spec) (string, error) {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("private mounts: %w", err)
	}
	upper, work, root := filepath.Join(directory, "upper"), filepath.Join(directory, "work"), filepath.Join(directory, "root")
	for _, path := range []string{upper, work, root} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return "", err
		}
	}
	for _, path := range spec.Hidden {
		if err := hide(filepath.Join(upper, path)); err != nil {
			return "", fmt.Errorf("hide %s: %w", path, err)
		}
	}
	layers := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", upper, work)
	if err := syscall.Mount("overlay", root, "overlay", 0, layers); err != nil {
		return "", fmt.Errorf("overlay of the root: %w", err)
	}
	if err := mountKernels(root); err != nil {
		return "", err
	}
	for _, mount := range spec.Mounts {
		to, err := within(root, mount.To)
		if err != nil {
			return "", err
		}
		if err := bind(mount.From, to, mount.ReadOnly); err != nil {
			return "", err
		}
	}
	return root, nil
}

// Where a path of the container is: links in it, such as /var/run, lead to paths of the container, not of this machine.
func within(root, path string) (string, error) {
	found, parts := "/", strings.Split(path, "/")
	for links := 0; len(parts) > 0; {
		next := filepath.Join(found, parts[0])
		parts = parts[1:]
		link, err := os.Readlink(filepath.Join(root, next))
		if err != nil {
			found = next
			continue
		}
		if links++; links > 40 {
			return "", fmt.Errorf("%s: %w", path, syscall.ELOOP)
		}
		if filepath.IsAbs(link) {
			found = "/"
		}
		parts = append(strings.Split(link, "/"), parts...)
	}
	return filepath.Join(root, found), nil
}

// In this layer the directory begins empty.
func hide(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(path, os.ModeSticky|0o777); err != nil {
		return err
	}
	return syscall.Setxattr(path, "trusted.overlay.opaque", []byte("y"), 0)
}

func mountKernels(root string) error {
	dev := filepath.Join(root, "dev")
	mounts := []struct {
		kind, to, options string
		flags             uintptr
	}{
		{"proc", filepath.Join(root, "proc"), "", syscall.MS_NOSUID | syscall.MS_NOEXEC | syscall.MS_NODEV},
		{"tmpfs", dev, "mode=755,size=64k", syscall.MS_NOSUID},
		{"devpts", filepath.Join(dev, "pts"), "newinstance,ptmxmode=0666,mode=0620", syscall.MS_NOSUID | syscall.MS_NOEXEC},
		// What a container gets that asks for nothing else.
		{"tmpfs", filepath.Join(dev, "shm"), "mode=1777,size=64m", syscall.MS_NOSUID | syscall.MS_NODEV},
		{"mqueue", filepath.Join(dev, "mqueue"), "", syscall.MS_NOSUID | syscall.MS_NOEXEC | syscall.MS_NODEV},
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.to, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount(m.kind, m.to, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.to, err)
		}
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := bind("/dev/"+name, filepath.Join(dev, name), false); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := os.Symlink(to, filepath.Join(dev, from)); err != nil {
			return err
		}
	}
	return bind("/sys", filepath.Join(root, "sys"), true)
}

func bind(from, to string, readOnly bool) error {
	if err := makeTarget(from, to); err != nil {
		return err
	}
	if err := syscall.Mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", from, to, err)
	}
	if !readOnly {
		return nil
	}
	if err := syscall.Mount("", to, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", to, err)
	}
	return nil
}

func makeTarget(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(to, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}
