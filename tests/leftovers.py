#!/usr/bin/env python3
"""What a run of tests leaves on the machine: `leftovers.py COMMAND ...` runs it, prints a line for each thing left.

    processes   what the command has started and what still runs 15 s after its end, however it detached itself; killed
    machine     mounts, network interfaces and named network namespaces, users, groups, control groups, System V IPC
    files       new names in directories that programs share, in the home directory, and in the checkout what git
                would add; with the tests at whose end they were first seen, but for home and checkout

The command has a directory for temporary files and a home directory of its own, which are removed in the end. What is
in the user's home is linked there, of its caches only those that are kept on purpose. What pytest keeps of the last
runs stays where it is looked for.

While another such run is under way only processes are looked at: nothing tells whose the rest is.
Exits with the command's status; in CI (CI=true) with 70 if it is 0 and anything is left. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import glob
import grp
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

HOME = os.path.expanduser("~")
CACHE = os.environ.get("XDG_CACHE_HOME") or f"{HOME}/.cache"
CONFIG = os.environ.get("XDG_CONFIG_HOME") or f"{HOME}/.config"
CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What the package keeps for users on a host; the contents are compared.
OWN = "/tmp/dispatcher-[0-9]*"
FOLDERS = (
    *("/", "/mnt", "/home", "/tmp", "/var/tmp", tempfile.gettempdir(), "/dev/shm", "/dev/mqueue"),
    *("/run", "/run/lock", "/run/netns", "/var/lib", "/var/lib/nfs", "/var/log", "/etc", HOME, CACHE, CONFIG),
)
# What the beds, the tests and pip keep of earlier runs.
CACHES = ("dispatcher-beds", "dispatcher-jax", "dispatcher-tests", "pip")
# Kept on purpose, the folders that hold it, and what a machine makes by itself, a new day's logs among it.
KEPT = ("pytest-of-*", OWN, CACHE, *(f"{CACHE}/{name}" for name in CACHES), "systemd-private-*", "/var/log/*[.-][0-9]*")
# What systemd makes and removes by itself on a machine that people use.
OF_SYSTEMD = ("*.service", "*.scope", "*.slice", "*.socket", "*.mount")
IPC = ("shm", "sem", "msg")
PR_SET_CHILD_SUBREAPER = 36
RUN = "@dispatcher-tests-"
# In the environment of the tests: a file for lines of a path and the test at whose end it was first seen.
NOTES_FILE = "DISPATCHER_TESTS_LEFT"
LEFT = 70

# What there is, by kind.
Snapshot = dict[str, set[str]]


def snapshot() -> Snapshot:
    return {
        "file": set(_files()),
        "mount": _mounts(),
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
    with _registered(), _own_directories() as own:
        child = subprocess.Popen(command, env=own)
        # An interrupt from the terminal is for the command.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
        status = _reap_until(child)
        left = [f"process {pid}: {words}" for pid, words in _end_of_all(patience_s).items()]
        notes = _lines(own[NOTES_FILE])
        is_alone = not _other_runs()
    return status, [*left, *(_with_tests(new(before, snapshot()), notes) if is_alone else ())]


class Notes:
    """Which files are new at the end of a test, of one process that runs tests; does nothing outside of `run`."""

    def __init__(self) -> None:
        self._path = os.environ.get(NOTES_FILE)
        self._seen = set(_shared_files()) if self._path else set()

    def end_of(self, test: str) -> None:
        if self._path:
            now = set(_shared_files())
            with open(self._path, "a", encoding="utf-8") as file:
                file.writelines(f"{path}\t{test}\n" for path in sorted(now - self._seen))
            self._seen = now


def _with_tests(left: list[str], notes: list[str]) -> Iterator[str]:
    """The lines, with the tests at whose end a file was new: one of each process that runs tests."""
    for line in left:
        tests = [note.rpartition("\t")[2] for note in notes if line == f"file {note.rpartition(chr(9))[0]}"]
        yield f"{line}, first seen after {' or '.join(dict.fromkeys(tests))}" if tests else line


@contextlib.contextmanager
def _own_directories() -> Iterator[dict[str, str]]:
    """The environment of a command that has temporary files and a home of its own."""
    parent = tempfile.gettempdir()
    # Short and plain: it is part of the names of sockets and of mount options.
    # Its real path, as the mounts below it have it.
    place = os.path.realpath(tempfile.mkdtemp(prefix="tests", dir=parent))
    try:
        # As /tmp: programs of all users write there.
        os.chmod(place, 0o1777)
        home = f"{place}/home"
        _link(HOME, home, lambda name: name not in (".cache", ".config"))
        _link(CONFIG, f"{home}/.config", lambda name: True)
        for name in CACHES:
            with contextlib.suppress(OSError):
                os.makedirs(f"{CACHE}/{name}", exist_ok=True)
        _link(CACHE, f"{home}/.cache", lambda name: name in CACHES)
        kept = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
        own = {"TMPDIR": place, "HOME": home, NOTES_FILE: f"{place}/notes", "PYTEST_DEBUG_TEMPROOT": parent}
        yield {**kept, **own}
    finally:
        # A mount that is left may show what is not the tests'.
        if not any(mount.startswith(f"{place}/") for mount in _mounts()):
            # Tests take rights away; `-R` follows no links.
            subprocess.run(["chmod", "-R", "u+rwX", place], stderr=subprocess.DEVNULL, check=False)
            shutil.rmtree(place, ignore_errors=True)


def _link(source: str, target: str, is_shown: Callable[[str], bool]) -> None:
    os.makedirs(target)
    with contextlib.suppress(OSError):
        for name in filter(is_shown, os.listdir(source)):
            os.symlink(os.path.join(source, name), os.path.join(target, name))


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


def _mounts() -> set[str]:
    return {_unescaped(line.split()[4]) for line in _lines("/proc/self/mountinfo")}


def _files() -> Iterator[str]:
    yield from _shared_files()
    git = ["git", "-C", CHECKOUT, "ls-files", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    yield from (os.path.join(CHECKOUT, name) for name in done.stdout.split("\0") if name)


def _shared_files() -> Iterator[str]:
    # For its tests, the temporary directory and the home are the run's own.
    place = os.path.dirname(os.environ.get(NOTES_FILE, ""))
    for folder in (*FOLDERS, *glob.glob(OWN)):
        if place and f"{folder}/".startswith(f"{place}/"):
            continue
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if not any(fnmatch.fnmatch(each, kept) for kept in KEPT for each in (name, path)):
                    yield path


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
    sys.exit(LEFT if left and status == 0 and os.environ.get("CI") == "true" else status)


if __name__ == "__main__":
    main()
