"""One request to one agent, and its answers: how operations are written for the program that carries them out."""

from __future__ import annotations

import functools
import secrets
import shlex
import zlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.programs import Finished
from dispatcher.errors import OutletError
from dispatcher.outlets.remote.agent_source import agent_source
from dispatcher.outlets.remote.operations import ANSWERS, Failed, Operation, Store
from dispatcher.outlets.remote.programs import Program, given

# One call: it yields the programs that it needs, one after the other, is sent how each has ended, and returns the
# answers in the order of the operations. OutletError when there is no answer.
Talk = Generator[Program, Finished, Sequence[Any]]

# What every request begins with. A shell that a start file puts in the place of the one that was given the command
# reads its own commands there, and leaves before it comes to the rest.
TAKEN_OVER: Final = 93
GUARD: Final = f"exit {TAKEN_OVER}"
# With which the loader ends when something else has read from its standard input before.
CUT_SHORT: Final = 94
# What the loader prints before all else. Where a program is killed that has not printed it, the agent has not begun.
BEGUN: Final = "dispatcher agent"
# The source of the agent is what it reads next.
# Without single quotes, so that every login shell reads it alike. It goes on where its dispatcher was killed meanwhile.
_LOADER: Final = (
    f'import os,sys,zlib;w=b"{BEGUN}\\n";exec("try:os.write(1,w)\\nexcept OSError:0");f=sys.stdin.buffer;'
    f'f.readline()==b"{GUARD}\\n" or sys.exit({CUT_SHORT});'
    'exec(compile(zlib.decompress(f.read(int(f.readline()))),"agent","exec"),{"__name__":"__main__"})'
)
# Its first argument says how many of the next ones are files; the others are the command.
_FEEDER: Final = 'cat -- - "${@:2:$1}" | "${@:$1+2}"'
# The agent ends by itself so much later than it is given up here.
_AGENT_MARGIN_S: Final = 30.0


def agent_words(python: str) -> list[str]:
    """The words that start the agent where they are run: it reads its own source and the request from stdin."""
    return [python, "-I", "-c", _LOADER]


def agent_command(python: str) -> str:
    """The same for a login shell, whichever it is."""
    return f"exec {shlex.quote(python)} -I -c {shlex.quote(_LOADER)}"


class Exchange:
    """Operations as a request. `request` is the agent's input, and `sources` are the files that follow it there."""

    def __init__(self, operations: Sequence[Operation], timeout_s: float) -> None:
        self._operations = operations
        self._nonce = secrets.token_hex(8)
        document = {"nonce": self._nonce, "limit_s": timeout_s + _AGENT_MARGIN_S, "operations": operations}
        body = zlib.compress(msgspec.json.encode(document), 1)
        source = _source()
        self.request = b"%b\n%d\n%b%d\n%b" % (GUARD.encode(), len(source), source, len(body), body)
        self.sources = [operation.source for operation in operations if isinstance(operation, Store)]
        self._stored_bytes = sum(operation.size for operation in operations if isinstance(operation, Store))

    @property
    def size(self) -> int:
        """What is sent, in bytes."""
        return len(self.request) + self._stored_bytes

    def program(self, words: Sequence[str], limit_s: float) -> Program:
        """The program with these words, which start an agent, given the request; raises OutletError."""
        if self.sources:
            # The request comes first, from stdin, and the files behind it, however large.
            words = ["bash", "-c", _FEEDER, "bash", str(len(self.sources)), *self.sources, *words]
        return Program(words, stdin=given(self.request), limit_s=limit_s)

    def answers(self, out: bytes) -> Sequence[Any] | None:
        """The answers in what the agent and a login shell have printed; None when the agent has not, or not all.

        Each has the type that belongs to its operation, or is Failed. Raises OutletError for one that cannot be read.
        """
        try:
            return self._answers(out)
        except (msgspec.MsgspecError, zlib.error) as error:
            raise OutletError(f"the answer cannot be read: {error}") from error

    def _answers(self, out: bytes) -> Sequence[Any] | None:
        begin = out.rfind(b"\n%b " % self._nonce.encode())
        if begin < 0:
            return None
        length, newline, rest = out[begin + len(self._nonce) + 2 :].partition(b"\n")
        if not newline or len(rest) < int(length):
            return None
        found = msgspec.json.decode(zlib.decompress(rest[: int(length)]), type=list[tuple[str, msgspec.Raw]])
        if len(found) != len(self._operations):
            raise msgspec.ValidationError(f"{len(found)} answers to {len(self._operations)} operations")
        return [
            msgspec.json.decode(raw, type=ANSWERS[type(operation)] if word == "done" else Failed)
            for operation, (word, raw) in zip(self._operations, found, strict=True)
        ]


def talk_once(exchange: Exchange, words: Sequence[str], timeout_s: float, explain: Callable[[Finished], str]) -> Talk:
    """A call that needs one program. `explain` says why a program that has ended gave no answer."""
    finished = yield exchange.program(words, timeout_s)
    answers = exchange.answers(finished.out)
    if answers is None:
        raise OutletError(explain(finished))
    return answers


def nothing() -> Talk:
    """A talk that needs no program and has no answers."""
    return ()
    yield


@functools.cache
def _source() -> bytes:
    return zlib.compress(agent_source().encode(), 9)
