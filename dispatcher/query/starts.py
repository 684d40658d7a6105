"""Waits until a job runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from dispatcher.errors import StateError, UsageError, nearest
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.waiting import reasons
from dispatcher.run_state.states import Record, State

# Changes by other hosts show in no other way than by looking again.
_LOOK_AGAIN_S: Final = 0.5


def wait_for_start(read: Callable[[], Snapshot], job: str, timeout_s: float | None) -> Record:
    """Wait until the job runs, and return its record. `read` returns what is known now.

    Raises UsageError for an unknown job, and StateError as Workspace.wait_until_running says.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        snapshot = read()
        record = snapshot.records.get(job)
        if record is None:
            raise UsageError(f"unknown job {job!r}{nearest(job, snapshot.records)}")
        if record.state is State.RUNNING:
            return record
        if record.state not in (State.QUEUED, State.SUBMITTED):
            why = f": {record.error}" if record.error else ""
            raise StateError(f"{job} does not run, it is {record.state}{why}")
        if time.monotonic() >= end_s:
            submitted = f"submitted to {record.outlet}"
            why = reasons(snapshot).why(job).text if record.state is State.QUEUED else submitted
            raise StateError(f"{job} does not run after {timeout_s:g} s: {why}")
        time.sleep(_LOOK_AGAIN_S)
