"""Which host this is, to whom its process ids belong, and whether one of its processes lives.

A pid means something only together with the host, its boot and its PID namespace: two containers on one machine may
share the name and the boot and still number their processes apart.
"""

from __future__ import annotations

import functools
import os
import re
import socket
from pathlib import Path
from typing import Final

# PROC_PID_INIT_INO of the kernel: the namespace of a host's own processes, at every boot.
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC


def host_name() -> str:
    """This host's name; `DISPATCHER_HOST` overrides it where several hosts have the same."""
    return os.environ.get("DISPATCHER_HOST") or socket.gethostname()


@functools.cache
def boot_id() -> str:
    """Changes at every boot, so that a pid of before is not taken for one of now."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> int:
    """The number of this process's PID namespace; 0 where /proc does not say."""
    return _pid_namespace_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _pid_namespace_of(_own_pid: int) -> int:
    # A process stays in its namespace, but one that it forks may begin another.
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def here() -> str:
    """One line that names this host, its boot and its PID namespace: pids may be compared where it is the same."""
    return f"{host_name()} {boot_id()} {pid_namespace():x}"


def process_name(pid: int | None = None) -> str:
    """A word for the names of this process's own files (or those of `pid`), different on every host and namespace."""
    return f"{_as_word(host_name())}.{pid_namespace():x}.{os.getpid() if pid is None else pid}"


def start_ticks(pid: int) -> int | None:
    """When a process of this namespace started (clock ticks since boot); None when there is none to be seen."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def is_gone(pid: int, ticks: int | None = None) -> bool:
    """Whether it is certain that a process of this namespace has ended, of which `ticks` says when it started."""
    fields = _stat(pid)
    if fields is not None:
        return fields[0] in (b"Z", b"X") or (ticks is not None and int(fields[19]) != ticks)
    # A /proc that is mounted with hidepid shows nothing of other users.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def proc_fault() -> str:
    """What is wrong with /proc; empty when it shows the processes of this process's own PID namespace."""
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


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the third on: state, parent, group ..., start time in clock ticks (19)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses and may hold anything.
    return stat[stat.rindex(b")") + 2 :].split()


def _as_word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)
