"""The identity of this host and of its processes.

A pid is meaningful only together with the host, its boot and its PID namespace: two containers on one machine may have
the same name and the same boot and still number their processes independently.

psutil knows neither boot id nor PID namespace, and its start times are the kernel's clock ticks plus a boot time that
moves when the clock is set: another process gets another number for the same pid. So ticks are read here, the only
place that parses /proc/PID/stat. Its import (14 ms) would also be a tenth of `dispatcher status`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dispatcher.base.messages import readable

if TYPE_CHECKING:
    import ctypes

# The same number on all architectures but alpha.
_PIDFD_OPEN: Final = 434

# PROC_PID_INIT_INO of the kernel: the initial PID namespace, that of processes outside containers.
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC


def host_name() -> str:
    r"""The name of this host; `DISPATCHER_HOST` overrides it where several hosts have the same name.

    It is written into files, so bytes that are not UTF-8 become `\xff`.
    """
    return readable(os.environ.get("DISPATCHER_HOST") or os.uname().nodename)


@functools.cache
def boot_id() -> str:
    """An id that changes at every boot, so that pids of different boots are not compared."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> int:
    """The number of the PID namespace of this process; 0 where /proc does not show it."""
    return _pid_namespace_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _pid_namespace_of(_own_pid: int) -> int:
    # A process never changes its namespace, but a child may be created in a new one.
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def here() -> str:
    """One line that names this host, its boot and its PID namespace; pids can be compared only where it is equal."""
    return f"{host_name()} {boot_id()} {pid_namespace():x}"


def process_name(pid: int | None = None) -> str:
    """A part of file names that identifies this process (or `pid`) among all hosts and PID namespaces."""
    return f"{_as_word(host_name())}.{pid_namespace():x}.{os.getpid() if pid is None else pid}"


def start_ticks(pid: int) -> int | None:
    """When a process of this namespace was started, in clock ticks since boot; None when it has ended or is hidden."""
    stat = _read_stat(pid)
    return None if stat is None or stat.has_ended else stat.start_ticks


def is_gone(pid: int, ticks: int | None = None) -> bool:
    """Whether a process of this namespace has certainly ended; `ticks` is its start time, where that is known."""
    stat = _read_stat(pid)
    if stat is not None:
        return stat.has_ended or (ticks is not None and stat.start_ticks != ticks)
    # Where /proc is mounted with hidepid, it does not show the processes of other users.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


@functools.cache
def libc() -> ctypes.CDLL:
    """Loaded once: that takes longer than the calls, which belong to every start of an attempt."""
    import ctypes

    return ctypes.CDLL(None)


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 when it has ended, or on Linux before 5.3."""
    if not pid:
        return -1
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
    except OSError:
        return -1
    # A Python that was built on an older Linux than it runs on, such as conda's.
    return int(libc().syscall(_PIDFD_OPEN, pid, 0))


def send_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group that `pid` leads. One that has ended, or that belongs to another user, is ignored."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def proc_fault() -> str:
    """What is wrong with /proc; empty when it shows the PID namespace of this process."""
    try:
        shown = os.readlink("/proc/self")
    except OSError as error:
        return f"/proc cannot be read ({error.strerror})"
    if shown == str(os.getpid()):
        return ""
    return (
        "/proc shows the processes of another PID namespace "
        f"(this process is {os.getpid()}, but {shown} there), so pids mean other processes"
    )


class _Stat(NamedTuple):
    has_ended: bool
    start_ticks: int


def _read_stat(pid: int) -> _Stat | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Nothing else is caught: without a free descriptor a process must not count as ended.
        return None
    # The second field is the command in parentheses and may contain anything, so fields are counted behind it.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return _Stat(has_ended=fields[0] in (b"Z", b"X"), start_ticks=int(fields[19]))


def _as_word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)
