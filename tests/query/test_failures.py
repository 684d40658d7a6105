"""Failed jobs by cause."""

from __future__ import annotations

from dispatcher.query.failures import failures
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.states import Record, State


def failed(rev: int, reason: str | None, error: str | None) -> Record:
    return Record(state=State.FAILED, reason=reason, error=error, rev=rev, finished_at=f"2026-06-17T22:48:0{rev}.000Z")


def test_errors_that_differ_in_ids_numbers_and_paths_are_one_cause() -> None:
    records = {
        "a": failed(1, "exit 1", "cannot open /data/a/1.npy"),
        "b": failed(2, "exit 1", "cannot open /data/b/17.npy"),
        "c": failed(3, "exit 2", "cannot open /data/c/3.npy"),
        "d": Record(state=State.DONE, reason="exit 1"),
    }
    found = failures(Snapshot(records=records, entries={}, now_s=0.0))
    assert [failure.jobs for failure in found] == [("b", "a"), ("c",)]
    assert found[0].text == "exit 1: cannot open /data/b/17.npy"
    assert found[0].last_at == "2026-06-17T22:48:02.000Z"


def test_what_a_scheduler_refuses_of_one_job_is_not_told_of_another() -> None:
    refused = {number: f"sbatch: error: invalid partition specified: gpu{number}" for number in (1, 2)}
    records = {f"j{number}": failed(number, "cannot start", error) for number, error in refused.items()}
    records["j3"] = failed(3, "cannot start", refused[1])
    found = failures(Snapshot(records=records, entries={}, now_s=0.0))
    assert [(one.jobs, one.error) for one in found] == [(("j3", "j1"), refused[1]), (("j2",), refused[2])]


def test_a_failure_of_which_nothing_is_known() -> None:
    found = failures(Snapshot(records={"a": failed(1, None, None)}, entries={}, now_s=0.0))
    assert found[0].text == "unknown"
