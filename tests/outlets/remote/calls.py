"""Calls of an agent, waited for as the loop does."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

from fleet import PATIENCE_S

from dispatcher.outlets.remote.connection import Call, Connection, Lane, NoAnswer, Outcome
from dispatcher.outlets.remote.operations import Operation


def wait(connection: Connection, call: Call, patience_s: float = PATIENCE_S) -> Outcome:
    """The outcome of a call, woken by what the connection asks for alone."""
    end_s = time.monotonic() + patience_s
    while (outcome := call.outcome()) is None:
        assert time.monotonic() < end_s, f"no outcome within {patience_s:g} s"
        select.select(connection.wait_fds(), [], [], connection.due_in_s())
    return outcome


def ask(
    connection: Connection,
    *operations: Operation,
    timeout_s: float = 30.0,
    lane: Lane = Lane.CONTROL,
    patience_s: float = PATIENCE_S,
) -> Any:
    """The answers, or the one answer to a single operation; fails when there is none."""
    outcome = wait(connection, connection.call(operations, timeout_s=timeout_s, lane=lane), patience_s)
    assert not isinstance(outcome, NoAnswer), outcome.why
    return outcome[0] if len(operations) == 1 else outcome


def unreached(
    connection: Connection, operations: Sequence[Operation], timeout_s: float = 30.0, patience_s: float = PATIENCE_S
) -> str:
    """Why there is no answer; fails when there is one."""
    outcome = wait(connection, connection.call(operations, timeout_s=timeout_s), patience_s)
    assert isinstance(outcome, NoAnswer), outcome
    return outcome.why
