"""What the local outlet of a pod offers, as its pod publishes it, and which requests that refuses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.messages import counted
from dispatcher.outlets.base import WORKSPACE, Request
from dispatcher.run_state.liveness import SlotInfo

_GPU: Final = "gpu"


class LocalOffer(msgspec.Struct, frozen=True):
    """GPUs by index and a number of CPU slots. `unusable`: GPUs that get no new attempts at the moment, and why.

    So many attempts on one GPU each share one: `jobs_per_gpu`.
    """

    gpus: tuple[int, ...] = ()
    cpu_slots: int = 0
    unusable: Mapping[int, str] = {}
    jobs_per_gpu: int = 1

    @property
    def place(self) -> str:
        return WORKSPACE

    def refuses(self, request: Request) -> str:
        """Why such an attempt can never run here; empty when it can, once there is room."""
        if request.gpus is None:
            return "" if self.gpus or self.cpu_slots else "this pod has no slots"
        if request.gpus == 0:
            return "" if self.cpu_slots else "asks for a CPU slot, this pod has none (--slots)"
        if request.gpus <= len(self.gpus):
            return ""
        return f"asks for {counted(request.gpus, 'GPU')}, this pod has {len(self.gpus)}"

    def refuses_now(self, request: Request) -> str:
        """Why there is no room whatever ends: GPUs that cannot be used; empty when waiting helps."""
        needed = request.gpus if request.gpus is not None else 0 if self.cpu_slots else 1
        if not self.unusable or needed <= len(self.gpus) - len(self.unusable):
            return ""
        listed = "; ".join(f"GPU {index}: {why}" for index, why in self.unusable.items())
        of_all = f"{len(self.unusable)} of {len(self.gpus)} cannot be used now: {listed}"
        return f"asks for {counted(needed, 'GPU')}, but {of_all}"


def read_offer(published: Mapping[str, Any]) -> LocalOffer:
    """The offer that a pod has published; raises msgspec.ValidationError for what is none."""
    return msgspec.convert(published, LocalOffer, str_keys=True)


def refused_by_all(request: Request, offers: Sequence[LocalOffer]) -> str:
    """Why none of these can ever run such an attempt, for a request that each of them refuses."""
    if not request.gpus:
        return "asks for a CPU slot, no live pod has one (--slots)"
    most = max(len(offer.gpus) for offer in offers)
    return f"asks for {counted(request.gpus, 'GPU')}, no live pod has " + (f"more than {most}" if most else "any")


def shared_hardware(mine: Sequence[SlotInfo], theirs: Sequence[SlotInfo], same_host_name: bool) -> str:
    """The GPUs that slots of two pods of one machine have in common (`--gpus: 0, 1`); empty for none.

    A GPU is known by its UUID, else by its index where the host's name is the same: containers with host names of
    their own may number their GPUs differently.
    """
    shared = [slot.name for slot in mine if any(_is_same_gpu(slot, other, same_host_name) for other in theirs)]
    return f"--gpus: {', '.join(name.removeprefix(_GPU) for name in shared)}" if shared else ""


def _is_same_gpu(slot: SlotInfo, other: SlotInfo, same_host_name: bool) -> bool:
    if not slot.name.startswith(_GPU):
        return False
    if slot.gpu_uuid and other.gpu_uuid:
        return slot.gpu_uuid == other.gpu_uuid
    return slot.name == other.name and same_host_name


def gpu_slot_name(index: int) -> str:
    """What `dispatcher pods` calls a GPU."""
    return f"{_GPU}{index}"
