"""What the local outlet of a pod offers, as its pod publishes it, and which requests that refuses. Pure."""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.devices import VISIBLE
from dispatcher.base.messages import counted
from dispatcher.base.values import memory_text, memory_texts
from dispatcher.outlets.base import WORKSPACE, Request
from dispatcher.outlets.local.budget import KINDS, Amounts, compared, lacking
from dispatcher.run_state.liveness import SlotInfo

_GPU: Final = "gpu"
# The options of a pod by which it offers less than its host has.
OPTIONS: Final = {"cpus": "--cpus", "memory_mib": "--memory"}
_WORD: Final = re.compile(r"[a-z0-9]+")
# Parts of a GPU are multiples of this, so that sums and products of them are exact.
_PARTS: Final = 4096


class Free(msgspec.Struct, frozen=True, omit_defaults=True):
    """What attempts can have at the moment: CPUs and memory of the host, and memory of GPUs that share by it."""

    cpus: int | None = None
    memory_mib: int | None = None
    gpu_memory_mib: Mapping[int, int] = {}


class LocalOffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """GPUs by index and a number of CPU slots. `unusable`: GPUs that get no new attempts at the moment, and why.

    So many attempts on one GPU each share one: `jobs_per_gpu`. `names` are the driver's names of GPUs: a GPU without
    one counts as any chip. `gpu_memory_mib` is what attempts can have of a GPU's memory, where that is known. `cpus`
    and `memory_mib` are for attempts that ask for them; None: not counted. `free` None: not known.
    """

    gpus: tuple[int, ...] = ()
    cpu_slots: int = 0
    unusable: Mapping[int, str] = {}
    jobs_per_gpu: int = 1
    names: Mapping[int, str] = {}
    gpu_memory_mib: Mapping[int, int] = {}
    cpus: int | None = None
    memory_mib: int | None = None
    free: Free | None = None

    @property
    def place(self) -> str:
        return WORKSPACE

    def that_are(self, chip: str) -> tuple[int, ...]:
        """The GPUs that are of this kind; of any where it is empty."""
        return tuple(index for index in self.gpus if is_chip(chip, self.names.get(index, "")))

    def named(self, request: Request) -> tuple[int, ...]:
        """The GPUs of the kind that is asked for, and of those that are named."""
        chips = self.that_are(request.chip)
        return tuple(index for index in chips if index in request.only) if request.only else chips

    def refuses(self, request: Request) -> str:
        """Why such an attempt can never run here; empty when it can, once there is room."""
        return self.refuses_slot(request) or self._refuses_amount(request)

    def refuses_slot(self, request: Request) -> str:
        """Why none of the slots is for such an attempt."""
        gpus = gpus_of(request)
        if gpus:
            return self._too_few(request, gpus)
        if gpus is None:
            return "" if self.gpus or self.cpu_slots else "this pod has no slots"
        return "" if self.cpu_slots else "asks for a CPU slot, this pod has none (--slots)"

    def _too_few(self, request: Request, gpus: int) -> str:
        """Why the pod never has so many GPUs for such an attempt; empty when it has."""
        chips = self.that_are(request.chip)
        if gpus > len(chips):
            if gpus > len(self.gpus) or not request.chip:
                return f"asks for {counted(gpus, 'GPU')}, this pod has {len(self.gpus)}"
            return f"asks for {gpus} {request.chip}, this pod has {_listed([self], request.chip)}"
        if gpus > len(self.named(request)):
            return f"{_asked_indices(request)}, this pod has {_indices(chips)}"
        if gpus > len(self.able(request)):
            each = " each" if gpus > 1 else ""
            largest_mib = max(self.gpu_memory_mib.get(index, 0) for index in self.named(request))
            asked, largest = memory_texts(request.gpu_memory_mib or 0, largest_mib)
            return f"asks for {asked} of GPU memory{each}, the largest GPU of this pod has {largest} for jobs"
        return ""

    def able(self, request: Request) -> tuple[int, ...]:
        """The GPUs that are of the kind and of the size that is asked for, and of those that are named."""
        asked_mib = request.gpu_memory_mib or 0
        return tuple(i for i in self.named(request) if asked_mib <= self.gpu_memory_mib.get(i, asked_mib))

    def _most_free_mib(self, request: Request) -> int | None:
        """The most memory that is free on a GPU for such an attempt; None where that of one is not known."""
        free = (
            [self.free.gpu_memory_mib.get(i) for i in self.able(request) if i not in self.unusable] if self.free else []
        )
        known = [mib for mib in free if mib is not None]
        return max(known) if known and len(known) == len(free) else None

    def _refuses_amount(self, request: Request) -> str:
        kinds = lacking(request, Amounts(self.cpus, self.memory_mib))
        if not kinds:
            return ""
        asked, there = compared(kinds[0], getattr(request, kinds[0]), getattr(self, kinds[0]))
        return f"asks for {asked}, this pod has {there} ({OPTIONS[kinds[0]]})"

    def lacks(self, request: Request) -> str:
        """What there is too little of at the moment, besides slots; empty where that is nothing, or not known."""
        if self.free is None:
            return ""
        kinds = lacking(request, Amounts(self.free.cpus, self.free.memory_mib))
        pairs = [compared(kind, getattr(request, kind), getattr(self.free, kind)) for kind in kinds]
        texts = [f"{asked}, {free} free" for asked, free in pairs]
        asked_mib, most_mib = request.gpu_memory_mib or 0, self._most_free_mib(request)
        if most_mib is not None and gpus_of(request) == 1 and most_mib < asked_mib:
            asked, most = memory_texts(asked_mib, most_mib)
            texts.append(f"{asked} of GPU memory, at most {most} free")
        return f"asks for {' and '.join(texts)}" if texts else ""

    def refuses_now(self, request: Request) -> str:
        """Why there is no room whatever ends: GPUs that cannot be used; empty when waiting helps."""
        gpus = gpus_of(request)
        needed = gpus if gpus is not None else 0 if self.cpu_slots else 1
        able = self.able(request)
        unusable = {index: why for index, why in self.unusable.items() if index in able}
        if not unusable or needed <= len(able) - len(unusable):
            return ""
        listed = "; ".join(f"GPU {index}: {why}" for index, why in unusable.items())
        of_all = f"{len(unusable)} of {len(able)} cannot be used now: {listed}"
        asked = f"{needed} {request.chip}" if request.chip else counted(needed, "GPU")
        return f"asks for {asked}, but {of_all}"


def _asked_indices(request: Request) -> str:
    return f"env names GPU {_indices(request.only)} ({VISIBLE})"


def _indices(gpus: Sequence[int]) -> str:
    return ",".join(map(str, gpus)) or "none"


def _asked_memory(request: Request) -> str:
    return f"asks for {memory_text(request.gpu_memory_mib or 0)} of GPU memory"


def gpus_of(request: Request) -> int | None:
    """How many GPUs an attempt asks for, as in Request: one that names a chip does not run on a CPU slot."""
    return 1 if request.gpus is None and request.chip else request.gpus


def gpu_part(asked_mib: int, memory_mib: int) -> float:
    """The part of a GPU that an attempt has by its memory: rounded down, but never nothing."""
    return max(1, asked_mib * _PARTS // memory_mib) / _PARTS


@functools.lru_cache(maxsize=1024)
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
    if all(offer.refuses_slot(request) for offer in offers):
        return _no_slot(request, offers)
    for kind, text in KINDS.items():
        most = max(getattr(offer, kind) or 0 for offer in offers)
        if (getattr(request, kind) or 0) > most:
            return f"asks for {text(getattr(request, kind))}, no live pod has more than {text(most)} ({OPTIONS[kind]})"
    return "; ".join(dict.fromkeys(offer.refuses(request) for offer in offers))


def _no_slot(request: Request, offers: Sequence[LocalOffer]) -> str:
    gpus = gpus_of(request)
    if not gpus:
        return "asks for a CPU slot, no live pod has one (--slots)"
    most = max(len(offer.gpus) for offer in offers)
    if request.chip and gpus <= most and all(gpus > len(offer.that_are(request.chip)) for offer in offers):
        return f"asks for {gpus} {request.chip}, and live pods have {_listed(offers, request.chip)}"
    if gpus <= most and all(gpus > len(offer.named(request)) for offer in offers):
        has = ", ".join(dict.fromkeys(_indices(offer.that_are(request.chip)) for offer in offers))
        return f"{_asked_indices(request)}, and live pods have {has}"
    if gpus <= most:
        return f"{_asked_memory(request)}, no GPU of a live pod has more than {_most_memory(offers)} for jobs"
    return f"asks for {counted(gpus, 'GPU')}, no live pod has " + (f"more than {most}" if most else "any")


def _most_memory(offers: Sequence[LocalOffer]) -> str:
    return memory_text(max((mib for offer in offers for mib in offer.gpu_memory_mib.values()), default=0))


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
