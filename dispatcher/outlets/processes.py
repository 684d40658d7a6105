"""Which processes of this host belong to an attempt, and stopping them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from typing import Final

from dispatcher import contract

_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Make processes that lose their parent below this one its children, so that strays are noticed and reaped."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """The pids of this process's children."""
    pid = os.getpid()
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()}


def is_of_attempt(pid: int, directory: Path) -> bool:
    """Whether the process carries the attempt's marker in its environment; proof against a pid that was reused."""
    marker = b"%s=%s" % (contract.ATTEMPT_DIR.encode(), os.fsencode(directory))
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return marker in environment.split(b"\0")


def of_attempt(directory: Path) -> list[int]:
    """All processes of this host that carry the attempt's marker or have its life sign open."""
    me = os.getpid()
    sign = os.path.realpath(directory / contract.ALIVE_FILE)
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if pid != me and (is_of_attempt(pid, directory) or _has_open(pid, sign))]


def first_of(directory: Path) -> int:
    """The attempt's process that was started first, its wrapper if that lives; 0 when nothing of it does."""
    started = {pid: ticks for pid in of_attempt(directory) if (ticks := _start_ticks(pid)) is not None}
    return min(started, key=lambda pid: (started[pid], pid), default=0)


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the command in parentheses and may hold anything.
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


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
    """Signal one process; one that is gone meanwhile is what was wanted."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def send_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group that `pid` leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
