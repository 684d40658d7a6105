"""What Google calls a TPU and what this tool calls it: `v4-32` is the chip `tpu-v4`, 32 times.

The number is Google's own, which counts cores in some generations (v2 to v4, v5p) and chips in others.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.base import Request

_PREFIX: Final = "tpu-"


class Accelerator(msgspec.Struct, frozen=True):
    """The TPUs of a VM: their kind as requests name it, and their number over all workers."""

    chip: str
    number: int


def accelerator_of(host: TpuHost) -> Accelerator:
    """What the VM of a host has."""
    generation, _, number = host.accelerator_type.rpartition("-")
    return Accelerator(_PREFIX + generation, int(number))


def refusal(host: TpuHost, request: Request) -> str:
    """Why the VM can never run such a request; empty when it may.

    An attempt has the whole VM, so whatever it has suffices for a request that asks for less.
    """
    has = accelerator_of(host)
    gpus = request.gpus or 0
    if gpus and request.chip not in ("", has.chip):
        return f"{host.name} has no {request.chip}, but {has.chip}"
    if gpus > has.number:
        return f"{gpus} chips are asked for, and {host.name} has {has.number} {has.chip}"
    return ""
