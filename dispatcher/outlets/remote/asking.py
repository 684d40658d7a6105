"""Asking several hosts at the same time, for commands, which may wait for the answers."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Mapping, Sequence

from dispatcher.errors import OutletError
from dispatcher.outlets.remote.connection import Call, Connection, Outcome, Unreached
from dispatcher.outlets.remote.operations import Operation


def ask_all(questions: Mapping[str, tuple[str | None, Sequence[Operation]]], timeout_s: float) -> dict[str, Outcome]:
    """What each host answers, by name; returns when all have answered or their time is over.

    `questions` has the target for ssh (None: this machine) and the operations of each host.
    """
    outcomes: dict[str, Outcome] = {}
    calls: dict[str, Call] = {}
    with contextlib.ExitStack() as stack:
        for name, (target, operations) in questions.items():
            try:
                connection = Connection(name, target)
            except OutletError as error:
                outcomes[name] = Unreached(str(error))
                continue
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


def _wait(calls: Sequence[Call]) -> None:
    """Until one of them has something to do."""
    if not calls:
        return
    poll = select.poll()
    for fd in {fd for call in calls for fd in call.wait_fds()}:
        poll.register(fd, select.POLLIN)
    dues_s = [due_s for due_s in (call.due_in_s() for call in calls) if due_s is not None]
    poll.poll(min(dues_s) * 1000 if dues_s else None)
