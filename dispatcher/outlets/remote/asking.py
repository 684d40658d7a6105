"""Asking several hosts at the same time, for commands, which may wait for the answers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.base.programs import wait_for_any
from dispatcher.outlets.remote.connection import Call, Connection, Outcome
from dispatcher.outlets.remote.exchange import Talk
from dispatcher.outlets.remote.operations import Operation
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
            if calls:
                wait_for_any(calls.values())
    return outcomes


def carry_out(talk: Talk) -> Sequence[Any]:
    """The answers of a talk, which is waited for; raises OutletError."""
    try:
        program = next(talk)
        while True:
            program = talk.send(program.wait())
    except StopIteration as end:
        answers: Sequence[Any] = end.value
        return answers
