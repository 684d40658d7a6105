"""What a host has free, for a pod that places attempts by that: asked in the calls that go there anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.outlets.base import Bundle, Key
from dispatcher.outlets.batch.agent_session import Step
from dispatcher.outlets.batch.tracked import Tracked
from dispatcher.outlets.solver.free import FreeHardware


class HardwareQuestions:
    """`free` None: nothing is placed by that. `waiting` are attempts that were not submitted yet."""

    def __init__(
        self, free: FreeHardware | None, tracked: Mapping[Key, Tracked], waiting: Mapping[Key, Bundle]
    ) -> None:
        self._free = free
        self._tracked = tracked
        self._waiting = waiting

    @property
    def problem(self) -> str:
        """Why the host does not tell what is free; empty when nothing is wrong."""
        return "" if self._free is None else self._free.problem

    def due_in_s(self) -> float | None:
        """Seconds until the host is to be asked; None when it is not."""
        return None if self._free is None else self._free.due_in_s()

    def awaited_for_s(self) -> float | None:
        """Seconds until attempts go elsewhere, because the host does not tell what is free; None: they do not wait."""
        return None if self._free is None else self._free.awaited_for_s()

    def steps(self) -> list[Step]:
        """What is asked when attempts are to be placed; after the states, which tell what runs by then."""
        asked = [] if self._free is None else self._free.questions()
        return [Step(asked, self._take_in)] if asked else []

    def _take_in(self, answers: Sequence[Any]) -> None:
        assert self._free is not None
        waiting, running = (
            {
                (one.name, one.index): one.request
                for one in self._tracked.values()
                if one.request is not None and not one.has_ended and one.is_running is is_running
            }
            for is_running in (False, True)
        )
        unsent = [bundle.request for bundle in self._waiting.values()]
        self._free.take_in(answers, [*waiting.values(), *unsent], running.values())
