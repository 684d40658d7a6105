"""Asking several hosts at the same time, for commands, which may wait for the answers."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.outlets.remote.connection import Call, Connection, Outcome
from dispatcher.outlets.remote.exchange import Talk
from dispatcher.outlets.remote.operations import Operation
from dispatcher.outlets.remote.programs import Finished, Program
from dispatcher.outlets.remote.transport import Transport


def ask_all(questions: Mapping[str, tuple[Transport, Sequence[Operation]]], timeout_s: float) -> dict[str, Outcome]:
    """What each host answers, by name; returns when all have answered or their time is over.

    `questions` has the transport to each host, which is closed in the end, and its operations.
    """
    outcomes: dict[str, Outcome] = {}
    calls: dict[str, Call] = {}
    with contextlib.ExitStack() as stack:
        for name, (transport, operations) in questions.items():
            connection = Connection(name, transport)
            stack.callback(connection.close, 0.0)
            calls[name] = connection.call(operations, timeout_s=timeout_s)
        while calls:
            for name, call in list(calls.items()):
                outcome = call.outcome()
                if outcome is not None:
                    outcomes[name] = outcome
                    del calls[name]
            _wait(list(calls.values()))
    return outcomes


def carry_out(talk: Talk) -> Sequence[Any]:
    """The answers of a talk, which is waited for; raises OutletError."""
    try:
        program = next(talk)
        while True:
            program = talk.send(wait_for(program))
    except StopIteration as end:
        answers: Sequence[Any] = end.value
        return answers


def wait_for(program: Program) -> Finished:
    """How a program has ended, which has a time limit."""
    while (finished := program.poll()) is None:
        _wait([program])
    return finished


def _wait(calls: Sequence[Call | Program]) -> None:
    """Until one of them has something to do."""
    if not calls:
        return
    poll = select.poll()
    for fd in {fd for call in calls for fd in call.wait_fds()}:
        poll.register(fd, select.POLLIN)
    dues_s = [due_s for due_s in (call.due_in_s() for call in calls) if due_s is not None]
    poll.poll(min(dues_s) * 1000 if dues_s else None)
