"""One host, and calls of the agent there: one at a time for each lane, and only so many a minute.

    connection = Connection("hpc", transport_to("hpc", "user@login1"))
    call = connection.call([Hello()], timeout_s=60)       when connection.free_in_s() is 0
    call.outcome()                                        None while it runs, then answers or NoAnswer

There are two lanes, so that a large upload does not delay the polls. After a call that brought no answer the next one
has to wait, longer from one failure to the next. The transport (transport.py) knows how the host is reached.
"""

from __future__ import annotations

import enum
import functools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.programs import Finished
from dispatcher.errors import OutletError
from dispatcher.outlets.remote.exchange import Talk
from dispatcher.outlets.remote.operations import Confirm, Operation
from dispatcher.outlets.remote.programs import Program
from dispatcher.outlets.remote.transport import Transport

# How long a dispatcher that ends waits for the call that it has begun.
_CLOSING_S: Final = 10.0


class Lane(enum.Enum):
    """What a call is for; each lane has at most one at a time."""

    CONTROL = "control"
    TRANSFER = "transfer"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a host is called: `calls_per_minute`, and the pause after a failure, which doubles up to `longest`."""

    calls_per_minute: int = 60
    first_pause_s: float = 1.0
    longest_pause_s: float = 300.0


class NoAnswer(msgspec.Struct, frozen=True):
    """There is no answer. Some or all of the operations may have been carried out."""

    why: str


Outcome = Sequence[Any] | NoAnswer


class Call:
    """One call of the agent: the program that runs for it at the moment, and in the end its answers."""

    def __init__(self, talk: Talk, ended: Callable[[Call], None]) -> None:
        """`ended` is called once, with the outcome set; never before the first `outcome`."""
        self._talk = talk
        self._ended = ended
        self._program: Program | None = None
        self._outcome: Outcome | None = None
        self._advance(None)

    def outcome(self) -> Outcome | None:
        """The answers in the order of the operations, each of the type that belongs to it or Failed; None: it runs."""
        while self._program is not None and (finished := self._program.poll()) is not None:
            self._advance(finished)
            if self._program is None:
                self._ended(self)
        return self._outcome

    @property
    def has_begun(self) -> bool:
        """Whether a program runs for it, or did."""
        return self._program is not None

    def wait_fds(self) -> list[int]:
        return [] if self._program is None else self._program.wait_fds()

    def due_in_s(self) -> float | None:
        return None if self._program is None else self._program.due_in_s()

    def close(self, within_s: float) -> None:
        """Wait so long for its end, then end it."""
        end_s = time.monotonic() + within_s
        while self._program is not None:
            self._program.close(max(0.0, end_s - time.monotonic()))
            self.outcome()

    def _advance(self, finished: Finished | None) -> None:
        try:
            self._program = next(self._talk) if finished is None else self._talk.send(finished)
        except StopIteration as end:
            self._end(end.value)
        except (OutletError, OSError) as error:
            self._end(NoAnswer(str(error)))

    def _end(self, outcome: Outcome) -> None:
        self._program, self._outcome = None, outcome


class Connection:
    """One host, called `name` in messages."""

    def __init__(self, name: str, transport: Transport, pace: Pace | None = None) -> None:
        self.name = name
        self.pace = pace or Pace()
        self.transport = transport
        # What comes before the operations of every call, and why none was carried out when it has printed this.
        self.confirm: Confirm | None = None
        self.explain: Callable[[str], str] = str
        # Whether the last call was not carried out for that reason.
        self.has_moved = False
        self.calls = 0
        # Why the last call brought no answer; empty when it did.
        self.unreached = ""
        self._running: dict[Lane, Call] = {}
        self._begun_s: deque[float] = deque()
        self._failures = 0
        self._next_s = 0.0

    def free_in_s(self, lane: Lane = Lane.CONTROL) -> float | None:
        """Seconds until a call is allowed; None while one is running on this lane."""
        running = self._running.get(lane)
        if running is not None and running.outcome() is None:
            return None
        now_s = time.monotonic()
        while self._begun_s and now_s - self._begun_s[0] > 60:
            self._begun_s.popleft()
        by_rate_s = self._begun_s[0] + 60 - now_s if len(self._begun_s) >= self.pace.calls_per_minute else 0.0
        return max(0.0, by_rate_s, self._next_s - now_s)

    def call(self, operations: Sequence[Operation], *, timeout_s: float, lane: Lane = Lane.CONTROL) -> Call:
        """Begin a call, which `free_in_s` must allow; whatever fails is its outcome."""
        if self.free_in_s(lane) != 0.0:
            raise ValueError(f"{self.name}: no call is allowed now")
        self.calls += 1
        self._begun_s.append(time.monotonic())
        call = Call(self._talk(operations, timeout_s), functools.partial(self._ended, lane))
        self._running[lane] = call
        if not call.has_begun:
            self._ended(lane, call)
        return call

    def start_over(self) -> None:
        """The host is another one: what has failed on the old one delays nothing."""
        self.confirm, self.has_moved = None, False
        self._failures = 0
        self._next_s = 0.0

    def wait_fds(self) -> list[int]:
        """Descriptors that become readable when a call has something to do."""
        return [fd for call in self._running.values() for fd in call.wait_fds()]

    def due_in_s(self) -> float | None:
        """Seconds until a call has something to do although no descriptor is readable; None when none is running."""
        dues = (call.due_in_s() for call in self._running.values())
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def close(self, within_s: float = _CLOSING_S) -> None:
        """Let calls that have begun come to their end, for so long, and close the connection."""
        end_s = time.monotonic() + within_s
        for call in list(self._running.values()):
            call.close(max(0.0, end_s - time.monotonic()))
        self.transport.close()

    def _talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        confirm = self.confirm
        if confirm is None:
            return (yield from self.transport.talk(operations, timeout_s))
        told, *answers = yield from self.transport.talk([confirm, *operations], timeout_s)
        found = confirm.found(told)
        self.has_moved = found is not None and confirm.is_elsewhere(found)
        if self.has_moved:
            raise OutletError(self.explain(str(found)))
        return answers

    def _ended(self, lane: Lane, call: Call) -> None:
        del self._running[lane]
        outcome = call.outcome()
        if not isinstance(outcome, NoAnswer):
            self._failures = 0
            self.unreached = ""
            return
        self.unreached = outcome.why
        pause_s = min(self.pace.longest_pause_s, self.pace.first_pause_s * 2**self._failures)
        self._failures = min(self._failures + 1, 30)
        self._next_s = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
        self.transport.failed(another_runs=bool(self._running))
