"""A host in two places: the programs of its scheduler run on this machine, and its files are somewhere else."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.outlets.remote.exchange import Talk
from dispatcher.outlets.remote.operations import Confirm, Failed, Greeting, Hello, Operation, Run, RunThere
from dispatcher.outlets.remote.transport import LocalTransport, Transport

_NOT_DONE: Final = "not done, because what comes before it has failed"


class DividedTransport:
    """`Run` operations are carried out on this machine, all others where `files` leads.

    They are done in their order, with one call for each group of those that belong to the same place. `programs` are
    those that `Hello` looks for on this machine.
    """

    def __init__(self, name: str, programs: Sequence[str], files: Transport) -> None:
        self._here = LocalTransport(name)
        self._files = files
        self._programs = programs

    @property
    def sent_bytes(self) -> int:
        """What was sent to where the files are."""
        return self._files.sent_bytes

    def talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        ends_at_s = time.monotonic() + timeout_s
        answers: list[Any] = []
        for is_here, group in itertools.groupby(operations, _is_here):
            wanted = list(group)
            why = _why_not(operations[0], answers, is_run=is_here)
            sent = {} if why else _sent(wanted, answers)
            transport: Transport = self._here if is_here else self._files
            left_s = max(1.0, ends_at_s - time.monotonic())
            told = (yield from transport.talk([self._asked(one) for one in sent.values()], left_s)) if sent else ()
            by_place = dict(zip(sent, told, strict=True))
            answers += [
                self._completed(operation, by_place.get(at, Failed(error=why or _NOT_DONE)))
                for at, operation in enumerate(wanted)
            ]
        return answers

    def failed(self, *, another_runs: bool) -> None:
        self._files.failed(another_runs=another_runs)

    def reach(self, timeout_s: float) -> Talk:
        return self._files.reach(timeout_s)

    def follow_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return self._files.follow_words(directory, offset, name)

    def rest_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return self._files.rest_words(directory, offset, name)

    def close(self) -> None:
        self._files.close()

    def _asked(self, operation: Operation) -> Operation:
        if not isinstance(operation, Hello):
            return operation
        there = [name for name in operation.programs if name not in self._programs]
        return msgspec.structs.replace(operation, programs=there)

    def _completed(self, operation: Operation, answer: Any) -> Any:
        if not (isinstance(operation, Hello) and isinstance(answer, Greeting)):
            return answer
        here = {name: shutil.which(name) for name in operation.programs if name in self._programs}
        found = {name: path for name, path in here.items() if path is not None}
        return msgspec.structs.replace(answer, programs={**answer.programs, **found})


def _is_here(operation: Operation) -> bool:
    return isinstance(operation, Run) and not isinstance(operation, RunThere)


def _why_not(first: Operation, answers: Sequence[Any], *, is_run: bool) -> str:
    """Why operations must not be done after the answer to `Confirm`; empty where they may."""
    if not (answers and isinstance(first, Confirm)):
        return ""
    found = first.found(answers[0])
    if found is None:
        return answers[0].error if is_run else ""
    return f"not done: this is {found}" if first.is_elsewhere(found) else ""


def _sent(group: Sequence[Operation], answers: Sequence[Any]) -> dict[int, Operation]:
    """What of a group is to be done after what was answered before it, by its place in the group.

    `only_after` of those counts within the group.
    """
    sent: dict[int, Operation] = {}
    for at, operation in enumerate(group):
        inside = min(operation.only_after, at)
        before = answers[len(answers) - (operation.only_after - inside) :] if operation.only_after > inside else ()
        if any(isinstance(answer, Failed) for answer in before):
            continue
        if all(place in sent for place in range(at - inside, at)):
            sent[at] = msgspec.structs.replace(operation, only_after=inside)
    return sent
