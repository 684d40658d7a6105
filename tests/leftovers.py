#!/usr/bin/env python3
"""What a run of tests leaves on the machine: `leftovers.py COMMAND ...` runs it, prints a line for each thing left.

    processes   what the command has started and what still runs 15 s after its end, however it detached itself; killed
    machine     mounts, network interfaces and named network namespaces, users, groups, control groups, System V IPC
    files       new names in directories that programs share, in the home directory, and in the checkout what git
                would add; not in the directory of temporary files that pytest keeps of the last runs

While another such run is under way only processes are looked at: nothing tells whose the rest is.
Exits with the command's status; in CI (CI=true) with 70 if it is 0 and more than files is left. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import glob
import grp
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

HOME = os.path.expanduser("~")
CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What the package keeps for a user on a host; its contents are compared.
OWN = f"/tmp/dispatcher-{os.getuid()}"
FOLDERS = (
    OWN,
    *("/tmp", "/var/tmp", tempfile.gettempdir(), "/dev/shm", "/dev/mqueue", "/run", "/run/lock", "/run/netns"),
    *("/var/lib", "/var/lib/nfs", "/var/log", "/etc", HOME, f"{HOME}/.cache", f"{HOME}/.config"),
)
# Kept on purpose: what pytest, the beds and JAX keep of earlier runs, and the folders that hold it.
KEPT = ("pytest-of-*", OWN, f"{HOME}/.cache", f"{HOME}/.cache/dispatcher-*", f"{HOME}/.cache/jax*")
# What systemd makes and removes by itself on a machine that people use.
OF_SYSTEMD = ("*.service", "*.scope", "*.slice", "*.socket", "*.mount")
IPC = ("shm", "sem", "msg")
PR_SET_CHILD_SUBREAPER = 36
RUN = "@dispatcher-tests-"
LEFT = 70

# What there is, by kind.
Snapshot = dict[str, set[str]]


def snapshot() -> Snapshot:
    return {
        "file": set(_files()),
        "mount": {_unescaped(line.split()[4]) for line in _lines("/proc/self/mountinfo")},
        "network interface": set(os.listdir("/sys/class/net")),
        "user": {user.pw_name for user in pwd.getpwall()},
        "group": {group.gr_name for group in grp.getgrall()},
        "control group": set(_control_groups()),
        "System V IPC": {f"{kind} {row.split()[1]}" for kind in IPC for row in _lines(f"/proc/sysvipc/{kind}")[1:]},
    }


def new(before: Snapshot, after: Snapshot) -> list[str]:
    return [f"{kind} {name}" for kind, names in after.items() for name in sorted(names - before[kind])]


def descendants(pid: int) -> dict[int, str]:
    """What a process and its children have started and what has not ended: command lines by pid."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
            if fields[0] not in "ZX":
                parents[int(path.split("/")[2])] = int(fields[1])
    found: dict[int, str] = {}
    above = {pid}
    while above := {child for child, parent in parents.items() if parent in above}:
        found.update((child, _command(child)) for child in above)
    return found


def run(command: Sequence[str], patience_s: float = 15) -> tuple[int, list[str]]:
    """The exit status, and a line for each thing that is left."""
    # What detaches itself comes back to this process when its parent ends.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = snapshot()
    with _registered():
        child = subprocess.Popen(command)
        # An interrupt from the terminal is for the command.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
        status = _reap_until(child)
        left = [f"process {pid}: {words}" for pid, words in _end_of_all(patience_s).items()]
        if not _other_runs():
            left += new(before, snapshot())
    return status, left


def _reap_until(child: subprocess.Popen[bytes]) -> int:
    """The child's exit status. What has ended is reaped at once, as by init: tests wait until a process is gone."""
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode


def _end_of_all(patience_s: float) -> dict[int, str]:
    end_s = time.monotonic() + patience_s
    while (running := _running()) and time.monotonic() < end_s:
        time.sleep(0.1)
    last = running
    while last:
        for pid in last:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        last = _running()
    return running


def _running() -> dict[int, str]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return descendants(os.getpid())


@contextlib.contextmanager
def _registered() -> Iterator[None]:
    # A name in the abstract namespace of Unix sockets goes with its process.
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(f"\0{RUN[1:]}{os.getpid()}")
        yield


def _other_runs() -> bool:
    names = {line.split()[-1] for line in _lines("/proc/net/unix")[1:]}
    return any(name.startswith(RUN) and name != f"{RUN}{os.getpid()}" for name in names)


def _files() -> Iterator[str]:
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if not any(fnmatch.fnmatch(each, kept) for kept in KEPT for each in (name, path)):
                    yield path
    git = ["git", "-C", CHECKOUT, "ls-files", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    yield from (os.path.join(CHECKOUT, name) for name in done.stdout.split("\0") if name)


def _control_groups() -> Iterator[str]:
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        names[:] = [name for name in names if not any(fnmatch.fnmatch(name, kept) for kept in OF_SYSTEMD)]
        yield from (os.path.join(folder, name) for name in names)


def _unescaped(path: str) -> str:
    """As the kernel writes a path with blanks."""
    return path.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return ""


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def main(patience_s: float = 15) -> None:
    status, left = run(sys.argv[1:], patience_s)
    for line in left:
        print(f"left by the tests: {line}", flush=True)
    grave = [line for line in left if not line.startswith("file ")]
    sys.exit(LEFT if grave and status == 0 and os.environ.get("CI") == "true" else status)


if __name__ == "__main__":
    main()
