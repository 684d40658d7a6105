"""Which processes of this host belong to an attempt, and signals to them.

psutil is used where it costs no more. Two things are read from /proc directly, because a slot waits for them when a job
ends. On a host with 500 processes, the children of this process take 0.1 ms (psutil, which reads the parent of every
process: 16 ms), and a search for the processes of an attempt 68 ms (psutil: 143 ms; it also calls stat on every file
that they have open, which hangs while a file server is down).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

from dispatcher import contract
from dispatcher.base import host

_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs, so that strays are noticed and reaped."""
    host.libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """The pids of this process's children, including those that have ended and were not waited for yet."""
    pid = os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return {int(word) for word in file.read().split()}
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN.
        import psutil

        return {child.pid for child in psutil.Process().children()}


def is_of_attempt(pid: int, directory: Path) -> bool:
    """Whether the environment of the process names the attempt's directory; proof against a pid that was reused."""
    return b"%s=%s" % (contract.ATTEMPT_DIR.encode(), os.fsencode(directory)) in _environment(pid)


def attempt_of(pid: int) -> str | None:
    """The attempt's directory that the environment of a process names; None if it names none or cannot be read."""
    prefix = contract.ATTEMPT_DIR.encode() + b"="
    for variable in _environment(pid):
        if variable.startswith(prefix):
            return os.fsdecode(variable[len(prefix) :])
    return None


def _environment(pid: int) -> list[bytes]:
    # psutil's environ() ends at the first empty entry, which a program leaves that overwrites its title (setproctitle).
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def of_attempt(directory: Path) -> list[int]:
    """All processes of this host whose environment names the attempt or that have its liveness lock open."""
    import psutil

    me = os.getpid()
    lock = os.path.realpath(directory / contract.ALIVE_FILE)
    return [pid for pid in psutil.pids() if pid != me and (is_of_attempt(pid, directory) or _has_open(pid, lock))]


def of_session(leader: int) -> list[int]:
    """All processes of this host in the session that a process leads, or has led."""
    import psutil

    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def first_of(directory: Path) -> int:
    """The attempt's process that was started first: its wrapper if that is alive; 0 when none is."""
    started = {pid: ticks for pid in of_attempt(directory) if (ticks := host.start_ticks(pid)) is not None}
    return min(started, key=lambda pid: (started[pid], pid), default=0)


def begun_s(pid: int) -> float | None:
    """When a process was started, by the clock of `boot_time_s`; None when it has ended."""
    ticks = host.start_ticks(pid) if pid else None
    return None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    """Whether a process is suspended (SIGSTOP, a debugger)."""
    import psutil

    try:
        return bool(pid) and psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def boot_time_s() -> float:
    """Seconds since this host was started, the same for all processes and independent of the time of day."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _has_open(pid: int, path: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{fd}") == path for fd in os.listdir(folder))
    except OSError:
        # It has ended meanwhile, or is another user's.
        return False


def send(pid: int, number: signal.Signals) -> None:
    """Signal one process. One that has ended meanwhile, or that belongs to another user (sudo), is ignored."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
