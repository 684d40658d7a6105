"""Which processes of this host belong to an attempt, and stopping them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Final

from dispatcher import contract

_PR_SET_CHILD_SUBREAPER: Final = 36
# The same number on all architectures but alpha.
_PIDFD_OPEN: Final = 434


def adopt_orphans() -> None:
    """Make processes that lose their parent below this one its children, so that strays are noticed and reaped."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """The pids of this process's children, also of those that have ended and were not collected yet."""
    pid = os.getpid()
    try:
        return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()}
    except FileNotFoundError:
        # A kernel without CONFIG_PROC_CHILDREN.
        return children_by_parent()


def children_by_parent() -> set[int]:
    """The same from all processes, each of which names its parent."""
    me = str(os.getpid()).encode()
    return {pid for pid in _pids() if (stat := _stat(pid)) is not None and stat[1] == me}


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 when it is gone, or the kernel is older than 5.3."""
    if not pid:
        return -1
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
    except OSError:
        return -1
    # A Python that was built on an older Linux than it runs on, as conda's are.
    return int(ctypes.CDLL(None).syscall(_PIDFD_OPEN, pid, 0))


def is_of_attempt(pid: int, directory: Path) -> bool:
    """Whether the process carries the attempt's marker in its environment; proof against a pid that was reused."""
    marker = b"%s=%s" % (contract.ATTEMPT_DIR.encode(), os.fsencode(directory))
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return marker in environment.split(b"\0")


def of_attempt(directory: Path) -> list[int]:
    """All processes of this host that carry the attempt's marker or have its liveness lock open."""
    me = os.getpid()
    sign = os.path.realpath(directory / contract.ALIVE_FILE)
    return [pid for pid in _pids() if pid != me and (is_of_attempt(pid, directory) or _has_open(pid, sign))]


def first_of(directory: Path) -> int:
    """The attempt's process that was started first, its wrapper if that lives; 0 when nothing of it does."""
    started = {pid: int(stat[19]) for pid in of_attempt(directory) if (stat := _stat(pid)) is not None}
    return min(started, key=lambda pid: (started[pid], pid), default=0)


def begun_s(pid: int) -> float | None:
    """When a process was started, by the clock of `boot_time_s`; None when it is gone."""
    stat = _stat(pid) if pid else None
    return None if stat is None else int(stat[19]) / os.sysconf("SC_CLK_TCK")


def is_stopped(pid: int) -> bool:
    """Whether a process stands still (SIGSTOP, a debugger) and does nothing that it is there for."""
    stat = _stat(pid) if pid else None
    return stat is not None and stat[0] in (b"T", b"t")


def boot_time_s() -> float:
    """Seconds since the host was started: no change of the time of day moves it, and all processes agree on it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the third on: state, parent, group ..., start time in clock ticks (19)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the command in parentheses and may hold anything.
    return stat[stat.rindex(b")") + 2 :].split()


def _has_open(pid: int, path: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        return any(os.readlink(f"{folder}/{fd}") == path for fd in os.listdir(folder))
    except OSError:
        # Gone meanwhile, or another user's.
        return False


def attempt_of(pid: int) -> str | None:
    """The attempt's directory that a process's environment names."""
    prefix = contract.ATTEMPT_DIR.encode() + b"="
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for word in environment.split(b"\0"):
        if word.startswith(prefix):
            return os.fsdecode(word[len(prefix) :])
    return None


def send(pid: int, number: signal.Signals) -> None:
    """Signal one process; one that is gone meanwhile is what was wanted, another user's (sudo) is left to itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group that `pid` leads, as far as this user may."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
