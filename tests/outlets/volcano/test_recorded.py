"""What kubectl told of attempts in several states, with both dialects of Volcano: recorded by record_volcano.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from volcano_jobs import make_host

from dispatcher.outlets.base import CANCELLED, PREEMPTED, Key
from dispatcher.outlets.batch.scheduler import JobState, Phase, Submitted
from dispatcher.outlets.remote.operations import Ran
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout

FOLDER = Path(__file__).parent / "recorded"
RELEASES = ("v1.5.1", "master")
NAMES = ("done", "failed", "running", "preempted", "evicted", "killed", "aborted", "deleted")
FIRST, SECOND = "d-0123456789ab-0000000001", "d-0123456789ab-0000000002"
ATTEMPTS = [
    *(Submitted(key=Key(name, 1), name=FIRST, index=index, directory="/d") for index, name in enumerate(NAMES)),
    Submitted(key=Key("waiting", 1), name=SECOND, index=0, directory="/d"),
]
SCHEDULER = VolcanoScheduler(make_host(), Layout(Path("/nonexistent")), 30)
ENDS = {
    "done": (0, ""), "failed": (3, ""), "preempted": (None, PREEMPTED), "evicted": (None, PREEMPTED),
    "killed": (137, "out of memory"), "aborted": (None, CANCELLED), "deleted": (None, ""),
}  # fmt: skip


@pytest.fixture(params=RELEASES)
def answers(request: pytest.FixtureRequest) -> list[Ran]:
    found = json.loads((FOLDER / f"{request.param}.json").read_text())
    assert len(found) == len(SCHEDULER.detail(ATTEMPTS))
    return [Ran(**answer) for answer in found]


def told(answers: list[Ran]) -> dict[str, JobState]:
    return {key.job_id: state for key, state in SCHEDULER.details(ATTEMPTS, answers).items()}


def test_how_they_ended(answers: list[Ran]) -> None:
    states = told(answers)
    ended = {name: state for name, state in states.items() if state.phase is Phase.ENDED}
    assert ended.keys() == ENDS.keys()
    for name, (code, reason) in ENDS.items():
        # One that is told to end may leave with any status.
        assert reason == PREEMPTED or ended[name].exit_code == code, name
        assert ended[name].reason == reason, name
        assert ended[name].was_preempted == (reason == PREEMPTED), name


def test_those_that_have_not(answers: list[Ran]) -> None:
    states = told(answers)
    assert (states["running"].phase, states["running"].why) == (Phase.RUNNING, "")
    assert states["running"].host in ("n1", "n2")
    assert states["waiting"].phase is Phase.PENDING
    assert states["waiting"].why


def test_what_is_told_of_them_without_details(answers: list[Ran]) -> None:
    """One `kubectl get` for all: of what was deleted nothing is left."""
    found = {key.job_id for key in SCHEDULER.states(ATTEMPTS, answers[:1])}
    assert found == {*NAMES, "waiting"} - {"deleted"}
