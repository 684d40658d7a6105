"""How an attempt ended, from its own exit status and the scheduler's word."""

from __future__ import annotations

import pytest

from dispatcher.outlets.base import CANCELLED, CANNOT_START, LOST, NOT_REACHED, PREEMPTED, SUPERSEDED, TIME_LIMIT, Ended
from dispatcher.outlets.batch.ends import end_of, why_superseded
from dispatcher.outlets.batch.scheduler import JobState, Phase

NONE = Ended(None)


def told(reason: str = "", exit_code: int | None = None, **words: bool) -> JobState:
    return JobState(phase=Phase.ENDED, reason=reason, exit_code=exit_code, **words)


def end(own: Ended, state: JobState | None, *, has_begun: bool = True, is_packed: bool = False) -> tuple[object, str]:
    ended = end_of(own, state, has_begun=has_begun, is_packed=is_packed)
    assert ended is not None
    return ended.exit_code, ended.exit_reason


@pytest.mark.parametrize("reason", [TIME_LIMIT, "out of memory"])
def test_what_others_of_its_pack_have_used_up_is_not_the_end_of_one_that_was_not_begun(reason: str) -> None:
    state = told(reason, 137)
    assert end(NONE, state, has_begun=False, is_packed=True) == (None, NOT_REACHED)
    assert end(NONE, state, has_begun=True, is_packed=True) == (137, reason)
    assert end(NONE, state, has_begun=False) == (137, reason)


@pytest.mark.parametrize("reason", [PREEMPTED, CANCELLED, CANNOT_START])
def test_what_was_done_to_the_whole_pack_is_the_end_of_each(reason: str) -> None:
    assert end(NONE, told(reason), has_begun=False, is_packed=True) == (None, reason)


def test_one_that_was_cancelled_before_it_began_has_no_exit_status() -> None:
    """SLURM calls it 255 while the node launches the job."""
    assert end(NONE, told(CANCELLED, 255), has_begun=False) == (None, CANCELLED)
    assert end(NONE, told(CANCELLED, 137)) == (137, CANCELLED)


def test_only_one_of_a_pack_goes_back_uncounted_when_its_job_completed_without_it() -> None:
    assert end(NONE, told(exit_code=0), has_begun=False, is_packed=True) == (None, NOT_REACHED)
    assert end(NONE, told(exit_code=0), has_begun=False) == (None, "")


def test_an_exit_status_counts_before_the_word_of_the_scheduler() -> None:
    assert end(Ended(3), told(CANCELLED, 0)) == (3, "")
    assert end(Ended(0), told(TIME_LIMIT, 1)) == (0, "")


@pytest.mark.parametrize("code", [0, 143])
def test_one_that_a_signal_of_somebody_else_stopped_is_not_done(code: int) -> None:
    own = Ended(code, told_by_signal="TERM")
    assert end(own, told(may_still_run=True)) == (code, LOST)
    assert end(own, None) == (code, PREEMPTED)
    assert end(own, JobState(phase=Phase.UNKNOWN, why="slurmdbd is down")) == (code, PREEMPTED)
    assert end(own, told(CANCELLED, may_still_run=True)) == (code, CANCELLED)
    assert end(own, told(was_preempted=True)) == (code, PREEMPTED)
    assert end(own, told()) == (code, "")


def test_the_scheduler_may_know_why_one_was_killed() -> None:
    """Above all for its memory; without a word of it a job may have killed itself."""
    own = Ended(137)
    assert end(own, told("out of memory", 137)) == (137, "out of memory")
    assert end(own, told(was_preempted=True)) == (137, PREEMPTED)
    for state in (None, JobState(phase=Phase.UNKNOWN), told(exit_code=137), told(may_still_run=True)):
        assert end(own, state) == (137, "")
    assert end(Ended(137, TIME_LIMIT), told("out of memory", 137)) == (137, TIME_LIMIT)


def test_one_that_was_superseded_tells_why() -> None:
    own = Ended(143, SUPERSEDED)
    lost = JobState(phase=Phase.ENDED, why="n1 does not answer", may_still_run=True)
    assert why_superseded(own, lost) == Ended(143, SUPERSEDED, error="n1 does not answer")
    assert why_superseded(own, None) == own
    assert why_superseded(Ended(143), lost) == Ended(143)


def test_that_a_job_completed_is_not_believed_without_an_exit_status() -> None:
    assert end(NONE, told(exit_code=0)) == (None, "")
    assert end_of(NONE, None, has_begun=True) is None
    assert end_of(NONE, JobState(phase=Phase.UNKNOWN), has_begun=True) is None
