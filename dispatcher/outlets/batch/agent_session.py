"""Calls of the agent on one host: at most one at a time, made of all steps that are due at that moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from dispatcher.outlets.remote.connection import Call, Connection, NoAnswer, Outcome
from dispatcher.outlets.remote.operations import Operation

_CALL_LIMIT_S: Final = 300.0
# How long a dispatcher that ends waits for the call that it has begun, and for a last one.
_CLOSING_S: Final = 10.0


class Step(msgspec.Struct, frozen=True):
    """Operations that belong together, and what takes in their answers, in the same order."""

    operations: Sequence[Operation]
    take_in: Callable[[Sequence[Any]], None]


class AgentSession:
    """Calls of the agent, one after the other. `problem` is why the last one failed, empty when it did not.

    `plan` gives the steps that are due; it is asked whenever a call may begin. `lost` is told that a call has failed
    whose operations may have been done all the same.
    """

    def __init__(self, connection: Connection, plan: Callable[[], list[Step]], lost: Callable[[], None]) -> None:
        self._connection = connection
        self._plan = plan
        self._lost = lost
        self._call: Call | None = None
        self._steps: list[Step] = []
        self.problem = ""

    @property
    def is_busy(self) -> bool:
        return self._call is not None

    def work(self) -> None:
        """Take in what was answered, and begin what is due; never waits."""
        if self._call is not None:
            answers = self._call.outcome()
            if answers is None:
                return
            self._call = None
            self._take_in(answers)
        if self._connection.free_in_s() != 0.0:
            return
        self._steps = self._plan()
        operations = [operation for step in self._steps for operation in step.operations]
        if operations:
            self._call = self._connection.call(operations, timeout_s=_CALL_LIMIT_S)

    def start_over(self) -> None:
        """The host is another one: what has failed on the old one says nothing."""
        self.problem = ""

    def wait_fds(self) -> list[int]:
        return self._connection.wait_fds()

    def due_in_s(self, next_s: float | None) -> float | None:
        """Seconds until `work` has something to do, if the next step is due in `next_s`."""
        if self._call is not None:
            return self._connection.due_in_s()
        if next_s is None:
            return self._connection.due_in_s()
        waits = [self._connection.due_in_s(), max(next_s, self._connection.free_in_s() or 0.0)]
        return min(wait_s for wait_s in waits if wait_s is not None)

    def finish(self) -> None:
        """The dispatcher ends: let the call that runs come to its end, for so long; nothing is taken in any more."""
        if self._call is not None:
            self._call.close(_CLOSING_S)
            self._call, self._steps = None, []

    def last(self, operations: Sequence[Operation]) -> Outcome:
        """After `finish`, one more call, which is waited for; none of a host that did not answer the one before."""
        if self._connection.unreached:
            return NoAnswer(self._connection.unreached)
        free_s = self._connection.free_in_s()
        if free_s is None or free_s > _CLOSING_S:
            return NoAnswer("another call is not allowed so soon (calls_per_minute)")
        time.sleep(free_s)
        call = self._connection.call(operations, timeout_s=_CLOSING_S)
        call.close(_CLOSING_S)
        return call.outcome() or NoAnswer(f"no answer within {_CLOSING_S:g} s")

    def close(self) -> None:
        self._connection.close()

    def _take_in(self, answers: Sequence[Any] | NoAnswer) -> None:
        steps, self._steps = self._steps, []
        if isinstance(answers, NoAnswer):
            # The caller that shows it names the host.
            self.problem = answers.why.removeprefix(f"{self._connection.name}: ")
            self._lost()
            return
        self.problem = ""
        at = 0
        for step in steps:
            step.take_in(answers[at : at + len(step.operations)])
            at += len(step.operations)
