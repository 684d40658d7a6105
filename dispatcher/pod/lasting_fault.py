"""What a pod says of steps that fail again and again: a full disk, a file server that is away. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.base.messages import counted

# How often it is said again while ends of jobs wait to be recorded.
_AGAIN_S: Final = 60.0


class LastingFault:
    """A fault is reported once, not at every try; but ends that it keeps from being recorded now and then."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._why = ""
        self._next_s = 0.0

    def report(self, why: str, ends: int) -> str:
        """What to say after a step that failed; empty for nothing. `ends` could not be recorded yet."""
        if why != self._why:
            self._why = why
            self._next_s = self._clock() + _AGAIN_S
            return f"warning: {why}; trying again"
        return self.ends_text(ends) if self._clock() >= self._next_s else ""

    def ends_text(self, ends: int) -> str:
        """How many ends are not recorded yet, and why; empty when all are."""
        if not ends:
            return ""
        self._next_s = self._clock() + _AGAIN_S
        return f"{counted(ends, 'end')} not recorded yet: {self._why or 'the next step does that'}"

    def clear(self) -> None:
        """A step has succeeded."""
        self._why = ""
