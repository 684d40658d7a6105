"""What the local outlet of a pod offers, as its pod publishes it, and which requests that refuses. Pure."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.messages import counted
from dispatcher.outlets.base import WORKSPACE, Request
from dispatcher.run_state.liveness import SlotInfo

_GPU: Final = "gpu"
_WORD: Final = re.compile(r"[a-z0-9]+")


class LocalOffer(msgspec.Struct, frozen=True):
    """GPUs by index and a number of CPU slots. `unusable`: GPUs that get no new attempts at the moment, and why.

    So many attempts on one GPU each share one: `jobs_per_gpu`. `names` are the driver's names of GPUs: a GPU without
    one counts as any chip.
    """

    gpus: tuple[int, ...] = ()
    cpu_slots: int = 0
    unusable: Mapping[int, str] = {}
    jobs_per_gpu: int = 1
    names: Mapping[int, str] = {}

    @property
    def place(self) -> str:
        return WORKSPACE

    def that_are(self, chip: str) -> tuple[int, ...]:
        """The GPUs that are of this kind; of any where it is empty."""
        return tuple(index for index in self.gpus if is_chip(chip, self.names.get(index, "")))

    def refuses(self, request: Request) -> str:
        """Why such an attempt can never run here; empty when it can, once there is room."""
        gpus = gpus_of(request)
        if gpus is None:
            return "" if self.gpus or self.cpu_slots else "this pod has no slots"
        if gpus == 0:
            return "" if self.cpu_slots else "asks for a CPU slot, this pod has none (--slots)"
        if gpus <= len(self.that_are(request.chip)):
            return ""
        if gpus > len(self.gpus) or not request.chip:
            return f"asks for {counted(gpus, 'GPU')}, this pod has {len(self.gpus)}"
        return f"asks for {gpus} {request.chip}, this pod has {_listed([self], request.chip)}"

    def refuses_now(self, request: Request) -> str:
        """Why there is no room whatever ends: GPUs that cannot be used; empty when waiting helps."""
        gpus = gpus_of(request)
        needed = gpus if gpus is not None else 0 if self.cpu_slots else 1
        able = self.that_are(request.chip)
        unusable = {index: why for index, why in self.unusable.items() if index in able}
        if not unusable or needed <= len(able) - len(unusable):
            return ""
        listed = "; ".join(f"GPU {index}: {why}" for index, why in unusable.items())
        of_all = f"{len(unusable)} of {len(able)} cannot be used now: {listed}"
        asked = f"{needed} {request.chip}" if request.chip else counted(needed, "GPU")
        return f"asks for {asked}, but {of_all}"


def gpus_of(request: Request) -> int | None:
    """How many GPUs an attempt asks for, as in Request: one that names a chip does not run on a CPU slot."""
    return 1 if request.gpus is None and request.chip else request.gpus


def is_chip(chip: str, name: str) -> bool:
    """Whether the GPU that the driver calls `name` is one of this kind; where either is unknown, it may be.

    `NVIDIA A100-SXM4-40GB` is an `a100`, an `a100-40gb` and an `A100 SXM4`, and no `a10`; `NVIDIA GeForce RTX 4090` is
    an `rtx4090`.
    """
    words, asked = _WORD.findall(name.lower()), _WORD.findall(chip.lower())
    runs = {"".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, len(words) + 1)}
    return not words or runs.issuperset(asked)


def _listed(offers: Iterable[LocalOffer], chip: str) -> str:
    """The GPUs of these pods by name, and the word of these names that is nearest to a chip."""
    names = Counter(offer.names.get(index, "unknown GPU") for offer in offers for index in offer.gpus)
    words = sorted({word for name in names for word in _WORD.findall(name.lower())})
    near = [] if any(is_chip(chip, name) for name in names) else difflib.get_close_matches(chip.lower(), words, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return ", ".join(f"{count} {name}" for name, count in names.items()) + hint


def read_offer(published: Mapping[str, Any]) -> LocalOffer:
    """The offer that a pod has published; raises msgspec.ValidationError for what is none."""
    return msgspec.convert(published, LocalOffer, str_keys=True)


def refused_by_all(request: Request, offers: Sequence[LocalOffer]) -> str:
    """Why none of these can ever run such an attempt, for a request that each of them refuses."""
    gpus = gpus_of(request)
    if not gpus:
        return "asks for a CPU slot, no live pod has one (--slots)"
    most = max(len(offer.gpus) for offer in offers)
    if request.chip and gpus <= most:
        return f"asks for {gpus} {request.chip}, and live pods have {_listed(offers, request.chip)}"
    return f"asks for {counted(gpus, 'GPU')}, no live pod has " + (f"more than {most}" if most else "any")


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
