"""Jobs on a real Kubernetes with a stand-in for Volcano, by the scheduler alone: every row of the table of states."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds.volcano import VolcanoBed
from volcano_jobs import VolcanoJobs

from dispatcher.outlets.batch.scheduler import Phase


@pytest.fixture
def jobs(volcano: VolcanoBed, tmp_path: Path) -> VolcanoJobs:
    return VolcanoJobs(volcano, tmp_path)


def test_one_that_runs_and_ends(jobs: VolcanoJobs) -> None:
    jobs.submit("until [ -e go ]; do sleep 0.1; done; exit 0")
    state = jobs.wait(Phase.RUNNING)
    assert state.host in jobs.bed.node_names
    assert (state.why, state.was_preempted) == ("", False)
    jobs.file("go").touch()
    ended = jobs.wait(Phase.ENDED)
    assert (ended.exit_code, ended.reason, ended.may_still_run) == (0, "", False)


def test_one_that_fails(jobs: VolcanoJobs) -> None:
    jobs.submit("echo said >>output.log; echo 'it is broken' >&2; exit 3")
    ended = jobs.wait(Phase.ENDED)
    assert (ended.exit_code, ended.reason, ended.was_preempted) == (3, "", False)
    detail = jobs.details()
    assert detail.exit_code == 3
    assert "it is broken" in detail.why
    assert "said" in detail.why
