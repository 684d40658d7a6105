"""Hosts without a scheduler: which GPUs they have, and which of them are busy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.errors import OutletError
from dispatcher.hosts.types import Hosts, PlainHost
from dispatcher.outlets.plain.resources import refusal
from dispatcher.outlets.remote.agent import gpus as agent_gpus
from dispatcher.outlets.remote.operations import Failed, GpuInfo, ListGpus, Operation, Run
from dispatcher.outlets.solver.answers import output
from dispatcher.outlets.solver.reports import PlainReport
from dispatcher.outlets.solver.request import Choice, HardwareRequest, UnsuitableHost, chips_text

_GIVEN: Final = "given to an attempt just now"


def questions(host: PlainHost, timeout_s: float, root: Path) -> list[Operation]:
    """What to ask a host: its processors, its memory, and its GPUs with those who use them."""
    del host, root
    words = (["nproc", "--all"], ["cat", "/proc/meminfo"])
    return [*(Run(words=each, timeout_s=timeout_s) for each in words), ListGpus()]


def report(answers: Sequence[Any]) -> PlainReport:
    """What the answers to `questions` tell; OutletError when the host cannot tell."""
    cpus, memory, gpus = answers
    sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", output("cat /proc/meminfo", memory), re.MULTILINE))
    try:
        return PlainReport(
            cpus=int(output("nproc", cpus)),
            memory_mib=int(sizes["MemTotal"]) // 1024,
            free_mib=int(sizes["MemAvailable"]) // 1024,
            gpus=() if isinstance(gpus, Failed) else tuple(gpus.gpus),
            no_gpus=gpus.error if isinstance(gpus, Failed) else "",
        )
    except (KeyError, ValueError):
        raise OutletError("nproc and /proc/meminfo do not show its CPUs and its memory") from None


def gpus_for(host: PlainHost, chip: str, gpus: Sequence[GpuInfo]) -> list[GpuInfo]:
    """The GPUs of the host that jobs may use and that are a `chip` (empty: any), by the rule of the agent.

    Where the host has several kinds, the driver's names tell which is which. A CUDA_VISIBLE_DEVICES in the host's `env`
    limits the GPUs that are used.
    """
    visible = host.visible_gpus
    only = None if visible is None else list(visible)
    found = agent_gpus.gpus_for(only, chip, list(host.chips), [msgspec.to_builtins(gpu) for gpu in gpus])
    taken = {gpu["index"] for gpu in found}
    return [gpu for gpu in gpus if gpu.index in taken]


def judge(
    host: PlainHost, request: HardwareRequest, hosts: Hosts, found: PlainReport | None
) -> Choice | UnsuitableHost:
    """Whether the host can run the request now; it has no queue."""
    del hosts
    why = refusal(host, request.for_outlet()) or (_too_small(request, found) if found is not None else "")
    if why:
        return UnsuitableHost(host=host.name, why=why)
    if found is None:
        return Choice(host=host.name, why="as configured, not asked")
    if not request.min_chips:
        return Choice(host=host.name, free_chips=0, why=f"{found.cpus} CPUs, {found.free_mib} MiB of memory free")
    gpus = gpus_for(host, request.chip, found.gpus)
    configured = _configured(host, request.chip)
    free = min(configured, sum(not gpu.busy for gpu in gpus))
    share = f"{free} of {chips_text(configured, request.chip)} free"
    if free >= request.min_chips:
        return Choice(host=host.name, free_chips=free, why=share)
    why = f"{share}, {request.min_chips} needed: {_busy_text(gpus, configured, found.no_gpus)}"
    return UnsuitableHost(host=host.name, why=why)


def give(host: PlainHost, request: HardwareRequest, hosts: Hosts, found: PlainReport) -> PlainReport:
    """The report as it will be when an attempt with this request has started, if it can start now."""
    del hosts
    free = [gpu.index for gpu in gpus_for(host, request.chip, found.gpus) if not gpu.busy]
    taken = free[: request.min_chips] if len(free) >= request.min_chips else []
    gpus = (msgspec.structs.replace(gpu, busy=_GIVEN) if gpu.index in taken else gpu for gpu in found.gpus)
    return msgspec.structs.replace(found, gpus=tuple(gpus))


def _configured(host: PlainHost, chip: str) -> int:
    return host.chips.get(chip, 0) if chip else sum(host.chips.values())


def _too_small(request: HardwareRequest, found: PlainReport) -> str:
    if (request.cpus or 0) > found.cpus:
        return f"too few CPUs: it has {found.cpus}, {request.cpus} needed"
    if (request.memory_mib or 0) > found.memory_mib:
        return f"too little memory: it has {found.memory_mib} MiB, {request.memory_mib} MiB needed"
    if (request.memory_mib or 0) > found.free_mib:
        return f"{found.free_mib} of {found.memory_mib} MiB of memory free, {request.memory_mib} MiB needed"
    return ""


def _busy_text(gpus: Sequence[GpuInfo], configured: int, no_gpus: str) -> str:
    parts = [f"GPU {gpu.index}: {gpu.busy}" for gpu in gpus if gpu.busy]
    if len(gpus) < configured:
        parts.append(no_gpus or f"nvidia-smi lists {len(gpus)} of {configured} that are configured")
    return "; ".join(parts)
