"""One host, and calls of the agent there: one at a time for each lane, and only so many a minute.

    connection = Connection("hpc", "user@login1")
    call = connection.call([Hello()], timeout_s=60)       when connection.free_in_s() is 0
    call.outcome()                                        None while it runs, then answers or Unreached

There are two lanes, so that a large upload does not delay the polls. After a call that brought no answer the next one
has to wait, longer from one failure to the next.
"""

from __future__ import annotations

import enum
import functools
import random
import secrets
import shlex
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from dispatcher.errors import OutletError
from dispatcher.outlets.remote import ssh
from dispatcher.outlets.remote.agent_source import agent_source
from dispatcher.outlets.remote.operations import ANSWERS, Failed, Operation, Store
from dispatcher.outlets.remote.programs import Finished, Program, given

# The source of the agent is the first thing that it reads.
# Without single quotes, so that every login shell reads it alike.
_LOADER: Final = (
    "import sys,zlib;f=sys.stdin.buffer;"
    'exec(compile(zlib.decompress(f.read(int(f.readline()))),"agent","exec"),{"__name__":"__main__"})'
)
# Its first argument tells how many of the next ones are files; the others are the command.
_FEEDER: Final = 'cat -- - "${@:2:$1}" | "${@:$1+2}"'
# The agent ends by itself so much later than it is given up here.
_AGENT_MARGIN_S: Final = 30.0
# How long a dispatcher that ends waits for the call that it has begun.
_CLOSING_S: Final = 10.0
_CONTROL_LIMIT_S: Final = 10.0


class Lane(enum.Enum):
    """What a call is for; each lane has at most one at a time."""

    CONTROL = "control"
    TRANSFER = "transfer"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often a host is called: `calls_per_minute`, and the pause after a failure, which doubles up to `longest`."""

    calls_per_minute: int = 60
    first_pause_s: float = 1.0
    longest_pause_s: float = 300.0


class Unreached(msgspec.Struct, frozen=True):
    """There is no answer. Some or all of the operations may have been carried out."""

    why: str


Outcome = Sequence[Any] | Unreached


class Call:
    """One call of the agent: the child process, and in the end its answers."""

    def __init__(
        self,
        operations: Sequence[Operation],
        nonce: str,
        program: Program | Unreached,
        explain: Callable[[Finished], str],
        ended: Callable[[Call], None],
    ) -> None:
        """`explain` says why a program that has ended gave no answer; `ended` is called once, with the outcome set."""
        self.operations = operations
        self._nonce = nonce
        self._explain = explain
        self._ended = ended
        self._program = None if isinstance(program, Unreached) else program
        self._outcome: Outcome | None = program if isinstance(program, Unreached) else None

    def outcome(self) -> Outcome | None:
        """The answers in the order of the operations, each of the type that belongs to it or Failed; None: it runs."""
        if self._outcome is None and self._program is not None:
            finished = self._program.poll()
            if finished is not None:
                self._outcome = self._read(finished)
                self._ended(self)
        return self._outcome

    def wait_fds(self) -> list[int]:
        return [] if self._program is None else self._program.wait_fds()

    def due_in_s(self) -> float | None:
        return None if self._program is None else self._program.due_in_s()

    def close(self, within_s: float) -> None:
        """Wait so long for its end, then end it."""
        if self._program is not None:
            self._program.close(within_s)
        self.outcome()

    def _read(self, finished: Finished) -> Outcome:
        try:
            found = _answers(self.operations, finished.out, self._nonce)
        except (msgspec.MsgspecError, zlib.error) as error:
            return Unreached(f"the answer cannot be read: {error}")
        return Unreached(self._explain(finished)) if found is None else found


class Connection:
    """One host. `ssh_target` None: this machine, where the agent runs as a child process."""

    def __init__(self, name: str, ssh_target: str | None, pace: Pace | None = None, python: str = "python3") -> None:
        """`python` is the interpreter on the host; here it is the one of this process.

        Raises OutletError for a target that can be no host.
        """
        self.name = name
        self.pace = pace or Pace()
        self.shared = None if ssh_target is None else ssh.SharedConnection(ssh_target)
        self.sent_bytes = 0
        self.calls = 0
        # Why the last call brought no answer; empty when it did.
        self.unreached = ""
        self._python = python
        self._running: dict[Lane, Call] = {}
        self._begun_s: deque[float] = deque()
        self._failures = 0
        self._next_s = 0.0
        # Programs that close connections: nobody waits for them.
        self._closing: list[Program] = []

    def free_in_s(self, lane: Lane = Lane.CONTROL) -> float | None:
        """Seconds until a call is allowed; None while one is running on this lane."""
        self._closing = [program for program in self._closing if program.poll() is None]
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
        nonce = secrets.token_hex(8)
        request = _request(operations, nonce, timeout_s + _AGENT_MARGIN_S)
        sources = [operation.source for operation in operations if isinstance(operation, Store)]
        self.calls += 1
        self.sent_bytes += len(request) + sum(each.size for each in operations if isinstance(each, Store))
        self._begun_s.append(time.monotonic())
        program: Program | Unreached
        try:
            program = Program(self._words(sources), stdin=given(request), limit_s=timeout_s)
        except (OutletError, OSError) as error:
            program = Unreached(str(error))
        call = Call(operations, nonce, program, self._explain, functools.partial(self._ended, lane))
        self._running[lane] = call
        if isinstance(program, Unreached):
            self._ended(lane, call)
        return call

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
        if self.shared is not None:
            if self.shared.is_open():
                self._close_shared(self.shared.control_words("exit"))
            for program in self._closing:
                program.close(_CONTROL_LIMIT_S)
            self.shared.remove()

    def _words(self, sources: Sequence[str]) -> list[str]:
        if self.shared is None:
            words = [sys.executable, "-I", "-c", _LOADER]
        else:
            words = self.shared.words(_remote_command(self._python))
        if not sources:
            return words
        # The request comes first, from stdin, and the files behind it, however large.
        return ["bash", "-c", _FEEDER, "bash", str(len(sources)), *sources, *words]

    def _ended(self, lane: Lane, call: Call) -> None:
        del self._running[lane]
        outcome = call.outcome()
        if not isinstance(outcome, Unreached):
            self._failures = 0
            self.unreached = ""
            return
        self.unreached = outcome.why
        pause_s = min(self.pace.longest_pause_s, self.pace.first_pause_s * 2**self._failures)
        self._failures = min(self._failures + 1, 30)
        self._next_s = time.monotonic() + pause_s * random.uniform(0.5, 1.0)
        if self.shared is not None and self.shared.is_open():
            # It may hang for longer than a new one takes, and a call over it that was given up goes on. One of the
            # other lane keeps it until it has ended.
            self._close_shared(self.shared.renew("stop" if self._running else "exit"))

    def _close_shared(self, words: Sequence[str]) -> None:
        try:
            self._closing.append(Program(words, limit_s=_CONTROL_LIMIT_S))
        except OutletError as error:
            # Without its client it ends when it is idle.
            self.unreached = self.unreached or str(error)

    def _explain(self, finished: Finished) -> str:
        err = finished.err.decode(errors="replace")
        if finished.killed_because:
            return f"{self.name}: {finished.killed_because}" + (f": {err.strip()}" if err.strip() else "")
        return ssh.explain(finished.exit_code, err, self.name if self.shared is None else self.shared.target)


def _remote_command(python: str) -> str:
    """What the login shell there is given, whichever it is."""
    return f"exec {shlex.quote(python)} -I -c {shlex.quote(_LOADER)}"


@functools.cache
def _source() -> bytes:
    return zlib.compress(agent_source().encode(), 9)


def _request(operations: Sequence[Operation], nonce: str, limit_s: float) -> bytes:
    document = {"nonce": nonce, "limit_s": limit_s, "operations": operations}
    body = zlib.compress(msgspec.json.encode(document), 1)
    source = _source()
    return b"%d\n%b%d\n%b" % (len(source), source, len(body), body)


def _answers(operations: Sequence[Operation], out: bytes, nonce: str) -> Sequence[Any] | None:
    """The answers in what the agent and the login shell have printed; None when the agent has not, or not all."""
    begin = out.rfind(b"\n%b " % nonce.encode())
    if begin < 0:
        return None
    length, newline, rest = out[begin + len(nonce) + 2 :].partition(b"\n")
    if not newline or len(rest) < int(length):
        return None
    found = msgspec.json.decode(zlib.decompress(rest[: int(length)]), type=list[tuple[str, msgspec.Raw]])
    if len(found) != len(operations):
        raise msgspec.ValidationError(f"{len(found)} answers to {len(operations)} operations")
    return [
        msgspec.json.decode(raw, type=ANSWERS[type(operation)] if word == "done" else Failed)
        for operation, (word, raw) in zip(operations, found, strict=True)
    ]
