"""Pauses of an outlet that refuses submissions."""

from __future__ import annotations

from dispatcher.outlets.batch.backoff import MOST_AT_ONCE, SubmissionBackoff


def refuse(backoff: SubmissionBackoff, now_s: float, *, times: int = 1, is_transient: bool = False) -> None:
    """One call whose submissions are all refused."""
    backoff.begin_call()
    for _ in range(times):
        backoff.refused("qsub: no", now_s, is_transient=is_transient)


def test_several_calls_in_a_row() -> None:
    backoff = SubmissionBackoff(30)
    for now_s in (0, 1):
        refuse(backoff, now_s)
        assert backoff.wait_s(now_s) == 0
        assert backoff.problem == "", "it may be the entry's fault"
    refuse(backoff, 2)
    assert backoff.wait_s(2) == 30
    assert backoff.problem == "qsub: no (tried again in 30 s)"


def test_refusals_of_one_call_count_once() -> None:
    backoff = SubmissionBackoff(30)
    refuse(backoff, 0, times=MOST_AT_ONCE)
    assert backoff.wait_s(0) == 0
    for now_s in (1, 2, 100):
        refuse(backoff, now_s, times=MOST_AT_ONCE)
    assert backoff.wait_s(100) == 60


def test_a_transient_refusal_pauses_at_once_and_pauses_double() -> None:
    backoff = SubmissionBackoff(30)
    pauses = []
    now_s = 0.0
    for _ in range(9):
        refuse(backoff, now_s, is_transient=True)
        pauses.append(backoff.wait_s(now_s))
        now_s += pauses[-1]
    assert pauses == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]


def test_one_submission_is_the_test() -> None:
    backoff = SubmissionBackoff(30)
    assert backoff.most_at_once == MOST_AT_ONCE
    refuse(backoff, 0, is_transient=True)
    assert backoff.most_at_once == 1
    backoff.begin_call()
    backoff.accepted()
    assert (backoff.most_at_once, backoff.wait_s(0), backoff.problem) == (MOST_AT_ONCE, 0, "")
    refuse(backoff, 0, is_transient=True)
    assert backoff.wait_s(0) == 30, "pauses begin anew"


def test_a_problem_is_shown_until_its_pause_is_over() -> None:
    backoff = SubmissionBackoff(30)
    refuse(backoff, 0, is_transient=True)
    backoff.lift(29)
    assert backoff.problem
    backoff.lift(30)
    assert not backoff.problem
    backoff.doubted("no answer")
    assert (backoff.problem, backoff.wait_s(31)) == ("no answer", 0)
