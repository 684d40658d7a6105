"""Whose memory is on a GPU: that of our attempts, of other processes, or of processes that cannot be named.

NVML names processes by pid. On the host these are the pids that every process sees. Inside a container they may be the
host's: then a pid means nothing here or, worse, names an unrelated process of ours. So a pid is used only where it can
be trusted; elsewhere the memory in use on the device decides, and no process is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

from dispatcher.base import host
from dispatcher.outlets.local.gpus import Gpu, GpuProcess, GpuReading, Health
from dispatcher.run_state.gpu_hour import GpuUser

FOREIGN_MIB = 100
# What only draws keeps jobs away from this on: below it is the desktop of a workstation, which is always there.
DRAWING_MIB = 1024
# /dev/dxg is the GPU under WSL.
GPU_DEVICES = ("/dev/nvidia", "/dev/dxg")
_COMMAND_WIDTH = 60
_USERS_SHOWN = 3


def foreign_use(
    reading: GpuReading,
    is_ours: Callable[[int], bool],
    occupied: Collection[int],
    *,
    contained: bool | None = None,
) -> dict[int, str]:
    """The GPUs that processes of others use (100 MiB or more, a GiB to draw), and which ones, for a person to read.

    `is_ours` tells whether a PID belongs to one of our attempts; `occupied` are the GPUs that our attempts hold, on
    which memory alone proves nothing. `contained` (found out where None) says that pids may be those of another
    namespace. GPUs that are not healthy are left out: they get no attempts anyway.
    """
    if contained is None:
        contained = in_container()
    found = {}
    for gpu in reading.gpus:
        if gpu.health is Health.OK:
            why = _foreign_use(gpu, is_ours, gpu.index in occupied, contained)
            if why is not None:
                found[gpu.index] = why
    return found


def foreign_mib(gpu: Gpu, is_ours: Callable[[int], bool]) -> int:
    """How much memory of a GPU processes of others have that can be named."""
    contained = in_container()
    theirs = (one for one in gpu.processes or () if is_believable(one.pid, contained) and not is_ours(one.pid))
    return sum(one.used_mib or 0 for one in theirs)


def unnamed_share_mib(gpu: Gpu) -> int:
    """What drivers before 510 keep for themselves: they count it as used, and do not say how much; it is under 1 %."""
    return (gpu.memory_total_mib or 0) // 100


def in_container() -> bool:
    """Whether this process has a PID namespace of its own, so that pids from the driver may mean nothing here."""
    return host.pid_namespace() != host.FIRST_PID_NAMESPACE


def _foreign_use(gpu: Gpu, is_ours: Callable[[int], bool], held: bool, contained: bool) -> str | None:
    listed = gpu.processes or ()
    named = [process for process in listed if is_believable(process.pid, contained)]
    theirs = [process for process in named if not is_ours(process.pid) and not _is_desktop(process)]
    known_mib = sum(process.used_mib or 0 for process in theirs)
    if known_mib >= FOREIGN_MIB:
        return f"{known_mib} MiB used by {_users(theirs)}"
    rest_mib = _unexplained_mib(gpu, named)
    if rest_mib is None or rest_mib < FOREIGN_MIB:
        return _untold_use(theirs) if rest_mib is None else None
    if not contained and gpu.processes is not None and len(named) == len(listed):
        # The list is complete; what is left belongs to processes whose size the driver does not tell, or to none.
        may_draw = rest_mib < DRAWING_MIB
        unsized = [process for process in named if process.used_mib is None and not (may_draw and process.draws)]
        if unsized and not any(is_ours(process.pid) for process in unsized):
            return f"{rest_mib} MiB in use, an unknown part of it by {_users(unsized)}"
        return None
    if held:
        return None
    return f"{rest_mib} MiB in use by processes that cannot be seen from here (inside a container, or already ending)"


def _untold_use(theirs: Collection[GpuProcess]) -> str | None:
    """How processes use a GPU whose memory the driver does not tell, as where it is that of the host."""
    unsized = [process for process in theirs if process.used_mib is None]
    return f"in use by {_users(unsized)}, how much of it is not told" if unsized else None


def _is_desktop(process: GpuProcess) -> bool:
    return process.draws and (process.used_mib or 0) < DRAWING_MIB


def is_believable(pid: int, contained: bool) -> bool:
    """Whether `pid`, as the driver gives it, is that process here: it exists, and in a container it has a GPU open."""
    if not contained:
        return os.path.exists(f"/proc/{pid}")
    try:
        return any(_is_gpu(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        # It does not exist here, or it is another user's and may be any process.
        return False


def _is_gpu(descriptor: str) -> bool:
    try:
        return os.readlink(descriptor).startswith(GPU_DEVICES)
    except OSError:
        return False


def _unexplained_mib(gpu: Gpu, named: Collection[GpuProcess]) -> int | None:
    """Memory in use that neither the driver nor a named process of known size accounts for; None if unknown."""
    if gpu.memory_used_mib is None:
        return None
    baseline = unnamed_share_mib(gpu) if gpu.memory_reserved_mib is None else 0
    return gpu.memory_used_mib - baseline - sum(process.used_mib or 0 for process in named)


def _users(processes: Collection[GpuProcess]) -> str:
    largest = sorted(processes, key=lambda process: (-(process.used_mib or 0), process.pid))
    shown = ", ".join(describe_process(process.pid) for process in largest[:_USERS_SHOWN])
    return shown if len(largest) <= _USERS_SHOWN else f"{shown} and {len(largest) - _USERS_SHOWN} more"


def others_on(gpu: Gpu, is_ours: Callable[[int], bool]) -> tuple[list[GpuUser] | None, int]:
    """The processes on a GPU that are not ours, None where the driver lists none; how many others cannot be named here.

    The name of the program, not its command line: that may have secrets.
    """
    if gpu.processes is None:
        return None, 0
    contained = in_container()
    named = [process for process in gpu.processes if is_believable(process.pid, contained)]
    users = [_user(process) for process in named if not is_ours(process.pid)]
    return users, len(gpu.processes) - len(named)


def _user(process: GpuProcess) -> GpuUser:
    import psutil

    try:
        found = psutil.Process(process.pid)
        return GpuUser(process.pid, _printable(found.username()), _printable(found.name()), process.used_mib)
    except psutil.Error:
        return GpuUser(process.pid, used_mib=process.used_mib)


def describe_process(pid: int) -> str:
    """`pid 4242 (alice: python train.py)`; what cannot be found out is left out."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            user = process.username()
            command = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"pid {pid}"
    clean = _printable(command)
    return f"pid {pid} ({user}: {clean if len(clean) <= _COMMAND_WIDTH else clean[: _COMMAND_WIDTH - 3] + '...'})"


def _printable(text: str) -> str:
    """A process may call itself anything: what is no text at all, or moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
