// Runs one container of the bed and keeps its log, as containerd-shim and runc do.
//
//	bed-container DIRECTORY        in the pod's network namespace
//
// DIRECTORY holds spec.json. "started PID" or "failed REASON" goes to descriptor 3 and exit.json into DIRECTORY.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Spec says what to run and what it sees. Paths of Mounts are those of the node and of the container.
type Spec struct {
	Argv     []string
	Env      []string
	Cwd      string
	Hostname string
	Log      string
	User     *int
	Group    *int
	Groups   []int
	Mounts   []Mount
	Hidden   []string
}

type Mount struct {
	From     string
	To       string
	ReadOnly bool
}

type Exit struct {
	Code       int
	FinishedAt int64
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "init" {
		become(os.Args[2])
		return
	}
	// The first process dies with the thread that has started it.
	runtime.LockOSThread()
	directory, report := os.Args[1], os.NewFile(3, "report")
	pid, wait, err := start(directory)
	if err != nil {
		fmt.Fprintf(report, "failed %s", err)
		os.Exit(1)
	}
	fmt.Fprintf(report, "started %d", pid)
	report.Close()
	exit := Exit{Code: wait(), FinishedAt: time.Now().UnixNano()}
	data, _ := json.Marshal(exit)
	if err := os.WriteFile(filepath.Join(directory, "exit.part"), data, 0o644); err != nil {
		panic(err)
	}
	if err := os.Rename(filepath.Join(directory, "exit.part"), filepath.Join(directory, "exit.json")); err != nil {
		panic(err)
	}
}

func read(directory string) (spec Spec, err error) {
	data, err := os.ReadFile(filepath.Join(directory, "spec.json"))
	if err == nil {
		err = json.Unmarshal(data, &spec)
	}
	return
}

func start(directory string) (int, func() int, error) {
	spec, err := read(directory)
	if err != nil {
		return 0, nil, err
	}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return 0, nil, err
	}
	trouble, theirs, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	command := exec.Command("/proc/self/exe", "init", directory)
	command.Env = spec.Env
	// Descriptor 3 there; it closes when the container's own program begins.
	command.ExtraFiles = []*os.File{theirs}
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	stdout, _ := command.StdoutPipe()
	stderr, _ := command.StderrPipe()
	if err := command.Start(); err != nil {
		return 0, nil, err
	}
	theirs.Close()
	if reason, _ := io.ReadAll(trouble); len(reason) > 0 {
		command.Wait()
		return 0, nil, fmt.Errorf("%s", reason)
	}
	var lock sync.Mutex
	var streams sync.WaitGroup
	streams.Add(2)
	for name, stream := range map[string]io.Reader{"stdout": stdout, "stderr": stderr} {
		go func(name string, stream io.Reader) {
			defer streams.Done()
			keepLog(log, &lock, name, stream)
		}(name, stream)
	}
	return command.Process.Pid, func() int {
		// All that could write has ended with the container's first process.
		streams.Wait()
		command.Wait()
		status := command.ProcessState.Sys().(syscall.WaitStatus)
		if status.Signaled() {
			return 128 + int(status.Signal())
		}
		return status.ExitStatus()
	}, nil
}
