"""Which GPUs of this host a pod may use: those that its own environment leaves it, as in the allocation of a scheduler.

CUDA_VISIBLE_DEVICES lists indices or UUIDs, and ends where CUDA would stop reading it: at what is no GPU of this host.
Parts of GPUs (MIG) have no index, so `--gpus` counts them as they are listed, from 0. On hosts with GPUs of AMD the
variables of ROCm count as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

import msgspec

from dispatcher.base.devices import HIP, ORDER, PCI, ROCR, VISIBLE, hides_all
from dispatcher.errors import PodError, UsageError
from dispatcher.outlets.local.gpus import GpuReader, parse_gpus

_PART = "MIG-"
_WHOLE = "GPU-"


class GivenGpus(msgspec.Struct, frozen=True):
    """The GPUs that `source`, a variable of the pod's environment, leaves it: `indices`, None for all.

    `parts` are the UUIDs of those that are parts of a GPU.
    """

    source: str = ""
    indices: tuple[int, ...] | None = None
    parts: Mapping[int, str] = MappingProxyType({})

    def chosen(self, text: str, existing: Callable[[], Sequence[int]]) -> tuple[int, ...]:
        """The GPUs that `--gpus` asks for, ascending; UsageError for one that the pod may not use.

        `existing` gives those of the host.
        """
        asked = parse_gpus(text, existing if self.indices is None else self._all)
        outside = [] if self.indices is None else [index for index in asked if index not in self.indices]
        if outside:
            named = ",".join(map(str, outside))
            left = ",".join(map(str, sorted(self.indices or ()))) or "none"
            raise UsageError(
                f"--gpus {text!r}: GPU {named} is not among those that this pod may use ({left}): {self.source}; "
                "name one of these, use --gpus all, or start it without that variable"
            )
        return asked

    def _all(self) -> Sequence[int]:
        if not self.indices:
            raise PodError(f"--gpus all: this pod may use no GPU: {self.source}; unset that, or use --slots N")
        return sorted(self.indices)


def read_given(environment: Mapping[str, str], reader: GpuReader) -> GivenGpus:
    """What `environment` leaves of this host's GPUs; PodError where that cannot be told."""
    count = reader.count
    text = environment.get(VISIBLE)
    name = VISIBLE
    source = ""
    if count is None:
        # HIP counts what ROCm leaves, and its own variable comes before CUDA's.
        if environment.get(HIP):
            name, text = HIP, environment[HIP]
        of_rocm = environment.get(ROCR)
        if of_rocm is not None:
            source = f"{ROCR}={of_rocm!r}"
            count = 0 if hides_all(of_rocm) else len(of_rocm.split(","))
    if text is None:
        return GivenGpus(source, tuple(range(count))) if source and count is not None else GivenGpus()
    source = f"{name}={text!r}"
    words = [word.strip() for word in text.split(",")]
    if words[0].startswith(_PART):
        return _parts(source, words)
    if environment.get(ORDER, PCI) != PCI:
        _refuse_order(source, environment[ORDER], reader)
    return GivenGpus(source, tuple(_indices(source, words, count, reader)))


def _parts(source: str, words: Sequence[str]) -> GivenGpus:
    wrong = next((word for word in words if not word.startswith(_PART)), None)
    if wrong is not None:
        raise PodError(f"{source}: {wrong!r} is no part of a GPU as the others are; list parts, or whole GPUs")
    parts = dict(enumerate(dict.fromkeys(words)))
    return GivenGpus(source, tuple(parts), parts)


def _refuse_order(source: str, order: str, reader: GpuReader) -> None:
    """With GPUs of one kind, CUDA's orders are the same."""
    names = {gpu.name for gpu in reader.read(range(reader.count or 0)).gpus}
    if len(names) > 1:
        raise PodError(f"{source} with {ORDER}={order}: use {ORDER}={PCI}, in which this host's GPUs are numbered here")


def _indices(source: str, words: Sequence[str], count: int | None, reader: GpuReader) -> list[int]:
    found: list[int] = []
    uuids: dict[int, str] = {}
    for word in words:
        if word.startswith(_WHOLE):
            if reader.count is None:
                _no_driver(source, word)
            uuids = uuids or {gpu.index: gpu.uuid or "" for gpu in reader.read(range(reader.count)).gpus}
            fitting = [index for index, uuid in uuids.items() if uuid.startswith(word)]
            index = fitting[0] if len(fitting) == 1 else -1
        else:
            index = int(word) if word.isascii() and word.isdecimal() else -1
        if index < 0 or (count is not None and index >= count):
            break
        if index in found:
            # CUDA sees no GPU at all then.
            return []
        found.append(index)
    return found


def _no_driver(source: str, word: str) -> NoReturn:
    raise PodError(f"{source}: which GPU {word} is can only be told by a driver; name GPUs by their indices")
