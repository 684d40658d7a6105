"""What qstat tells of a job, and what it means for its attempt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.errors import OutletError
from dispatcher.outlets.base import CANCELLED, CANNOT_START, OUT_OF_MEMORY, TIME_LIMIT
from dispatcher.outlets.batch.scheduler import JobState, Phase
from dispatcher.outlets.pbs.states import REFUSED, read_jobs, state_of


def answer(**attributes: Any) -> str:
    job = {"Job_Name": "d-1", "Job_Owner": "u@login", "job_state": "Q", "server": "pbs", **attributes}
    document = {"timestamp": 1700000000, "pbs_version": "23.06.06", "pbs_server": "pbs", "Jobs": {"12.pbs": job}}
    return json.dumps(document, indent=4, separators=(",", ":"))


def state(**attributes: Any) -> JobState:
    return state_of(read_jobs(answer(**attributes))["12.pbs"])


@pytest.mark.parametrize(
    ("letter", "phase", "why"),
    [
        ("Q", Phase.PENDING, ""),
        ("H", Phase.PENDING, "held"),
        ("W", Phase.PENDING, "waits for its start time or its files"),
        ("T", Phase.PENDING, "is being moved"),
        ("R", Phase.RUNNING, ""),
        ("B", Phase.RUNNING, ""),
        ("E", Phase.RUNNING, "its files are being copied"),
        ("S", Phase.RUNNING, "suspended"),
        ("U", Phase.RUNNING, "suspended: its workstation is in use"),
        ("M", Phase.UNKNOWN, "moved to another server"),
        ("Z", Phase.UNKNOWN, "unknown state 'Z'"),
        ("", Phase.UNKNOWN, "unknown state ''"),
    ],
)
def test_states_of_a_job_that_has_not_ended(letter: str, phase: Phase, why: str) -> None:
    found = state(job_state=letter)
    assert (found.phase, found.why, found.handle) == (phase, why, "12.pbs")


@pytest.mark.parametrize(
    ("status", "code", "reason", "why"),
    [
        (0, 0, "", ""),
        (3, 3, "", ""),
        (137, 137, "", ""),
        (271, 143, CANCELLED, "killed by signal 15"),
        (265, 137, CANCELLED, "killed by signal 9"),
        (-29, None, TIME_LIMIT, "its walltime was over"),
        (-27, None, OUT_OF_MEMORY, "it used more memory than it had asked for"),
        (-28, None, TIME_LIMIT, "its CPU time was over"),
        (-25, None, CANCELLED, "it used more CPUs than it had asked for"),
        (-1, None, CANNOT_START, "it could not be started (before its files were there)"),
        (-3, None, CANNOT_START, "it could not be started, repeatedly"),
        (-20, None, "", "its node was lost"),
        (-99, None, "", "PBS ended it (Exit_status -99)"),
    ],
)
def test_how_a_job_has_ended(status: int, code: int | None, reason: str, why: str) -> None:
    found = state(job_state="F", Exit_status=status, run_count=1)
    assert (found.phase, found.exit_code, found.reason, found.why) == (Phase.ENDED, code, reason, why)
    assert found.may_still_run == (status == -20)


def test_a_job_that_was_deleted_before_it_began() -> None:
    found = state(job_state="F")
    assert (found.phase, found.exit_code, found.reason) == (Phase.ENDED, None, CANCELLED)


def test_a_second_run_is_not_the_attempt() -> None:
    """The script refuses it, which says nothing of the first but that PBS has ended it."""
    found = state(job_state="F", Exit_status=REFUSED, run_count=2)
    assert (found.exit_code, found.reason, found.why) == (None, "", "started a second time, which the script refuses")
    assert found.was_preempted
    assert not state(job_state="F", Exit_status=REFUSED, run_count=1).was_preempted, "it was submitted twice"
    # A first start that failed on the node counts too.
    assert state(job_state="F", Exit_status=3, run_count=2).exit_code == 3
    waiting = state(job_state="Q", run_count=1)
    assert waiting.phase is Phase.PENDING
    assert waiting.was_preempted
    assert not state(job_state="Q").was_preempted


def test_a_preemption_is_told_in_the_comment() -> None:
    assert state(job_state="F", Exit_status=271, comment="Job preempted by 13.pbs").was_preempted
    assert not state(job_state="F", Exit_status=271, comment="Job run at Wed on (node1) and terminated").was_preempted


def test_what_people_read() -> None:
    assert state(comment="Can Never Run: Insufficient amount of resource: ncpus").why.startswith("Can Never Run")
    assert state(job_state="R", exec_host="node2/0*4+node2/1+node1/3").host == "node2,node1"
    assert state(job_state="R").host is None


def test_an_answer_without_jobs() -> None:
    assert read_jobs('{"timestamp": 1, "pbs_version": "23.06.06", "pbs_server": "pbs"}') == {}
    assert read_jobs('{"Jobs": {}}') == {}


@pytest.mark.parametrize("value", ['a"b', "a\nb", "a\tb\\x", '}\n"Jobs":{', "\\", "inf", '"job_state":"F"'])
def test_environments_that_make_the_answer_invalid(value: str) -> None:
    """OpenPBS prints them as they are."""
    text = answer(Variable_List={"PBS_O_HOME": "/root", "ODD": "@ODD@"}, job_state="R", exec_host="n/0")
    assert '"ODD":"@ODD@"' in text
    bare = '"ODD":inf' if value == "inf" else f'"ODD":"{value}"'
    job = read_jobs(text.replace('"ODD":"@ODD@"', bare))["12.pbs"]
    assert (job.state, job.exec_host) == ("R", "n/0")


@pytest.mark.parametrize("text", ["", "qstat: cannot connect", "[]", '{"Jobs": {"1.pbs": ', '{"Jobs": 3}'])
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(OutletError, match="qstat"):
        read_jobs(text)


def test_names_and_ids_are_not_numbers() -> None:
    """qstat prints what looks like a number as one."""
    assert read_jobs(answer(Job_Name=1234))["12.pbs"].name == "1234"
