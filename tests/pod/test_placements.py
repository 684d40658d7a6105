"""What of a reported placement a record does not have yet."""

from __future__ import annotations

import pytest

from dispatcher.outlets.base import CANNOT_START, Ended, Pending, Placement, Running, Status, Unknown
from dispatcher.pod.placements import begun_change, differs, gpu_field, has_run, placement_change, placement_of
from dispatcher.run_state.change import Change
from dispatcher.run_state.states import Record, State

FULL = Placement(handle="7", host="n1", pid=42, gpus=(0, 1), code="abc 123")


def test_a_placement_adds_what_is_missing_and_removes_nothing() -> None:
    empty = Record(state=State.SUBMITTED)
    assert placement_change(FULL, empty) == Change(handle="7", host="n1", pid=42, gpu=(0, 1), code="abc 123")
    full = Record(state=State.RUNNING, handle="7", host="n1", pid=42, gpu=(0, 1), code="abc 123")
    assert placement_of(full) == FULL
    assert placement_change(Placement(), full) == Change()
    assert not differs(FULL, full)
    assert placement_change(Placement(handle="8"), full) == Change(handle="8")


def test_what_was_submitted_and_has_begun_is_running() -> None:
    submitted = Record(state=State.SUBMITTED, handle="7")
    assert begun_change(Placement(handle="7"), submitted, has_begun=True) == Change(state=State.RUNNING)
    assert begun_change(Placement(handle="7"), submitted, has_begun=False) == Change()
    assert begun_change(Placement(), Record(state=State.RUNNING), has_begun=True) == Change()


@pytest.mark.parametrize(
    ("status", "host", "expected"),
    [
        (Running(), None, True),
        (Pending(), "h1", False),
        (Unknown(), "h1", False),
        (Ended(0), "h1", True),
        (Ended(None), None, False),
        (Ended(None, CANNOT_START), "h1", False),
    ],
)
def test_whether_it_has_run(status: Status, host: str | None, expected: bool) -> None:
    assert has_run(status, Placement(host=host)) is expected


def test_gpus_of_a_record() -> None:
    assert [gpu_field(gpus) for gpus in ((), (3,), (0, 3))] == [None, 3, (0, 3)]
