package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
	utilexec "k8s.io/utils/exec"
)

// execs runs commands in containers for `kubectl exec`; what ends them is their own end, not the client's.
type execs struct {
	*runtime
}

func (e *execs) Exec(id string, argv []string, in io.Reader, out, errs io.WriteCloser, tty bool, _ <-chan remotecommand.TerminalSize) error {
	if tty {
		return errors.New("the bed has no terminals")
	}
	command, err := e.command(id, argv)
	if err != nil {
		return err
	}
	command.Stdout, command.Stderr = out, errs
	var stdin io.WriteCloser
	if in != nil {
		// The command may end before its input does: nobody waits for that.
		if stdin, err = command.StdinPipe(); err != nil {
			return err
		}
	}
	if err := command.Start(); err != nil {
		return err
	}
	if in != nil {
		go func() {
			io.Copy(stdin, in)
			stdin.Close()
		}()
	}
	return outcome(command.Wait())
}

func (e *execs) Attach(string, io.Reader, io.WriteCloser, io.WriteCloser, bool, <-chan remotecommand.TerminalSize) error {
	return errors.New("the bed's containers cannot be attached to")
}

func (e *execs) PortForward(string, int32, io.ReadWriteCloser) error {
	return errors.New("the bed forwards no ports")
}

// ExecSync is for probes and hooks.
func (r *runtime) ExecSync(id string, argv []string, timeout time.Duration) ([]byte, []byte, error) {
	command, err := r.command(id, argv)
	if err != nil {
		return nil, nil, err
	}
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Start(); err != nil {
		return nil, nil, err
	}
	if timeout > 0 {
		defer time.AfterFunc(timeout, func() { command.Process.Kill() }).Stop()
	}
	err = outcome(command.Wait())
	return out.Bytes(), errs.Bytes(), err
}

// command enters the container; its first process may have a root and an environment that nobody else has.
func (r *runtime) command(id string, argv []string) (*exec.Cmd, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, err
	}
	if c.current() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, fmt.Errorf("container is in %s state", c.current())
	}
	if !c.has(argv[0]) {
		return nil, fmt.Errorf("failed to exec in container: failed to start exec: OCI runtime exec failed: exec failed: container_linux.go:380: starting container process caused: exec: %q: executable file not found in $PATH: unknown", argv[0])
	}
	enter := []string{
		fmt.Sprintf("--target=%d", c.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wdns=" + c.spec.Cwd,
	}
	if c.spec.User != nil {
		enter = append(enter, fmt.Sprintf("--setuid=%d", *c.spec.User))
	}
	if c.spec.Group != nil {
		enter = append(enter, fmt.Sprintf("--setgid=%d", *c.spec.Group))
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, err
	}
	command := exec.Command(nsenter, append(append(enter, "--"), argv...)...)
	command.Env = c.spec.Env
	return command, nil
}

// has tells whether the container would find a program; a link in its root may lead anywhere, and counts.
func (c *container) has(program string) bool {
	root := fmt.Sprintf("/proc/%d/root", c.pid)
	if strings.Contains(program, "/") {
		_, err := os.Lstat(filepath.Join(root, c.spec.Cwd, program))
		_, absolute := os.Lstat(filepath.Join(root, program))
		return err == nil || absolute == nil
	}
	for _, each := range c.spec.Env {
		if path := strings.TrimPrefix(each, "PATH="); path != each {
			for _, directory := range filepath.SplitList(path) {
				if _, err := os.Lstat(filepath.Join(root, directory, program)); err == nil {
					return true
				}
			}
		}
	}
	return false
}

func outcome(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &utilexec.ExitErrorWrapper{ExitError: exit}
	}
	return err
}
