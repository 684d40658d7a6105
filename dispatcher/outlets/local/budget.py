"""The CPUs and the memory of a host that a pod gives to its attempts: counted, as they ask for them. Pure.

What asks for none takes none. Nothing here keeps an attempt from using more: cgroups.py does, where that is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dispatcher.base.messages import counted
from dispatcher.base.values import memory_text, memory_texts
from dispatcher.outlets.base import Request, Slot


class Amounts(msgspec.Struct, frozen=True):
    """CPUs and memory. None: not counted."""

    cpus: int | None = None
    memory_mib: int | None = None


NOT_COUNTED: Final = Amounts()

# The parts of Amounts, each with how an amount of it is written in a sentence.
KINDS: Final[Mapping[str, Callable[[int], str]]] = {
    "cpus": lambda amount: counted(amount, "CPU"),
    "memory_mib": lambda amount: f"{memory_text(amount)} of memory",
}


def compared(kind: str, asked: int, there: int) -> tuple[str, str]:
    """What is asked for and what there is, written so that they differ where the amounts do."""
    if kind == "memory_mib":
        return tuple(f"{text} of memory" for text in memory_texts(asked, there))  # type: ignore[return-value]
    return KINDS[kind](asked), KINDS[kind](there)


def lacking(request: Request, there: Amounts) -> list[str]:
    """Of what an attempt asks for more than there is."""
    found = []
    for kind in KINDS:
        asked, amount = getattr(request, kind), getattr(there, kind)
        if asked is not None and amount is not None and asked > amount:
            found.append(kind)
    return found


class Budget:
    """How much of what a pod offers is in use. More may be than there is: attempts that were found again count too."""

    def __init__(self, offered: Amounts) -> None:
        self.offered = offered
        self._used = dict.fromkeys(KINDS, 0)

    @property
    def free(self) -> Amounts:
        """What attempts can have now."""
        left = {}
        for kind, used in self._used.items():
            offered = getattr(self.offered, kind)
            left[kind] = None if offered is None else max(0, offered - used)
        return Amounts(**left)

    def take(self, slot: Slot) -> None:
        for kind in KINDS:
            self._used[kind] += getattr(slot, kind)

    def give_back(self, slot: Slot) -> None:
        for kind in KINDS:
            self._used[kind] -= getattr(slot, kind)

    def has_room(self, request: Request, kept: Iterable[str]) -> bool:
        """Whether such an attempt could begin now. Of the kinds that are `kept` for others, it must ask for none."""
        return not lacking(request, self.free) and not any(getattr(request, kind) for kind in kept)
