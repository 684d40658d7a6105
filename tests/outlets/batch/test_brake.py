"""Pauses of an outlet that refuses submissions."""

from __future__ import annotations

from dispatcher.outlets.batch.brake import MOST_AT_ONCE, Brake


def refuse(brake: Brake, now_s: float, *, times: int = 1, is_transient: bool = False) -> None:
    """One call whose submissions are all refused."""
    brake.begin_call()
    for _ in range(times):
        brake.refused("qsub: no", now_s, is_transient=is_transient)


def test_several_calls_in_a_row() -> None:
    brake = Brake(30)
    for now_s in (0, 1):
        refuse(brake, now_s)
        assert brake.wait_s(now_s) == 0
        assert brake.problem == "", "it may be the entry's fault"
    refuse(brake, 2)
    assert brake.wait_s(2) == 30
    assert brake.problem == "qsub: no (tried again in 30 s)"


def test_refusals_of_one_call_count_once() -> None:
    brake = Brake(30)
    refuse(brake, 0, times=MOST_AT_ONCE)
    assert brake.wait_s(0) == 0
    for now_s in (1, 2, 100):
        refuse(brake, now_s, times=MOST_AT_ONCE)
    assert brake.wait_s(100) == 60


def test_a_transient_refusal_pauses_at_once_and_pauses_double() -> None:
    brake = Brake(30)
    pauses = []
    now_s = 0.0
    for _ in range(9):
        refuse(brake, now_s, is_transient=True)
        pauses.append(brake.wait_s(now_s))
        now_s += pauses[-1]
    assert pauses == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]


def test_one_submission_is_the_test() -> None:
    brake = Brake(30)
    assert brake.most_at_once == MOST_AT_ONCE
    refuse(brake, 0, is_transient=True)
    assert brake.most_at_once == 1
    brake.begin_call()
    brake.accepted()
    assert (brake.most_at_once, brake.wait_s(0), brake.problem) == (MOST_AT_ONCE, 0, "")
    refuse(brake, 0, is_transient=True)
    assert brake.wait_s(0) == 30, "pauses begin anew"


def test_a_problem_is_shown_until_its_pause_is_over() -> None:
    brake = Brake(30)
    refuse(brake, 0, is_transient=True)
    brake.lift(29)
    assert brake.problem
    brake.lift(30)
    assert not brake.problem
    brake.doubted("no answer")
    assert (brake.problem, brake.wait_s(31)) == ("no answer", 0)
