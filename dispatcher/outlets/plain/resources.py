"""Which requests a host without a scheduler can never run, by its configuration. Pure."""

from __future__ import annotations

from dispatcher.hosts.types import PlainHost
from dispatcher.outlets.base import Request


def refusal(host: PlainHost, request: Request) -> str:
    """Why the host can never run such a request; empty when it may."""
    if request.nodes > 1:
        return f"{host.name} is one machine, and {request.nodes} nodes are asked for"
    shown = ", ".join(f"{count} {chip}" for chip, count in host.chips.items())
    listed = f" (`chips` of the host: {shown or 'none'})"
    wanted = request.gpus or 0
    if request.chip and request.gpus != 0 and not host.chips.get(request.chip):
        return f"{host.name} has no {request.chip}{listed}"
    has = host.chips[request.chip] if request.chip and wanted else sum(host.chips.values())
    return f"{host.name} has {has} GPUs, and {wanted} are asked for{listed}" if wanted > has else ""
