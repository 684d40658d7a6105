"""The fold of the journal gives the same, however the lines come in."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from run_state.lines import AT, histories

from dispatcher.run_state import journal
from dispatcher.run_state.events import Event
from dispatcher.run_state.fold import STREAK_LENGTH, Fold, pause_reason, signature, snapshot
from dispatcher.run_state.journal import Line


def shown(fold: Fold) -> dict[str, Any]:
    """All that a fold says; also the order of the records, which is the order of the status file."""
    return {
        "seq": fold.seq,
        "records": list(fold.records.items()),
        "born": {job: fold.records.born(job) for job in fold.records},
        "pauses": fold.pauses,
        "refusals": fold.refusals,
        "streaks": fold.streaks,
    }


def folded(lines: list[Line]) -> Fold:
    fold = Fold()
    fold.extend(lines)
    return fold


@given(histories())
def test_many_lines_at_once_give_what_they_give_one_by_one(lines: list[Line]) -> None:
    bulk = Fold()
    bulk.extend_in_bulk(lines)
    assert shown(bulk) == shown(folded(lines))


@given(histories(), st.data())
def test_any_split_gives_the_same(lines: list[Line], data: st.DataObject) -> None:
    fold = Fold()
    rest = lines
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        part, rest = rest[:size], rest[size:]
        (fold.extend if data.draw(st.booleans()) else fold.extend_in_bulk)(part)
    assert shown(fold) == shown(folded(lines))


@given(histories())
def test_what_was_written_and_read_again_gives_the_same(lines: list[Line]) -> None:
    data = b"".join(journal.encode(line) + b"\n" for line in lines)
    read, length = journal.parse_consecutive(data, 0)
    assert length == len(data)
    assert shown(folded(read)) == shown(folded(lines))


@given(histories(), histories())
def test_a_snapshot_stands_for_all_lines_before_it(before: list[Line], after: list[Line]) -> None:
    whole = folded(before)
    lines = list(snapshot(whole, AT, "p"))
    again = Fold()
    again.seq = whole.seq
    again.extend_in_bulk(msgspec.json.decode(journal.encode(lines), type=list[Line]))
    assert shown(again) == shown(whole)
    # And what follows is judged alike: streaks go on, born and rev are those of the lines.
    jobs = {job: f"{job}+" for job in [line.job for line in after if line.job]}
    rest = [msgspec.structs.replace(line, seq=line.seq + whole.seq, job=jobs.get(line.job or "")) for line in after]
    whole.extend(rest)
    again.extend(rest)
    assert shown(again) == shown(whole)


@given(histories(), st.data())
def test_taking_changes_back_leaves_no_trace(lines: list[Line], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(lines)))
    fold = folded(lines[:cut])
    expected = shown(folded(lines[:cut]))
    old = {
        line.job: (fold.records.get(line.job), fold.records.born(line.job), None) for line in lines[cut:] if line.job
    }
    rest = (fold.seq, dict(fold.pauses), dict(fold.refusals), dict(fold.streaks))
    fold.extend(lines[cut:])
    for job, (record, born, taken) in old.items():
        fold.restore(job, record, born, taken)
    fold.seq, fold.pauses, fold.refusals, fold.streaks = rest
    found = shown(fold)
    # A job that was forgotten and is back stands at the end.
    assert dict(found.pop("records")) == dict(expected.pop("records"))
    assert found == expected


def failure(
    seq: int, job: str, error: str | None, method: str = "fft", gpu: str | None = None, reason: str = "exit 1"
) -> list[Line]:
    data = {"method": method, "gpu": gpu}
    ended = {"state": "failed", "error": error, "reason": reason}
    return [
        Line(seq=seq, at=AT, by="p", event=Event.QUEUED, job=job, set={"state": "queued"}),
        Line(seq=seq + 1, at=AT, by="p", event=Event.CLAIMED, job=job, set={"state": "running"}),
        Line(seq=seq + 2, at=AT, by="p", event=Event.FAILED, job=job, set=ended, data=data),
    ]


def failures(errors: list[str], **where: str) -> Fold:
    fold = Fold()
    for number, error in enumerate(errors):
        fold.extend(failure(3 * number + 1, f"job{number}", error, **where))
    return fold


def test_the_same_failure_of_five_entries_in_a_row_trips() -> None:
    alike = [f"RuntimeError: step {n} of /scratch/run{n}/x.py at 0x{n:x}f" for n in range(STREAK_LENGTH)]
    why = pause_reason(failures(alike).streaks["fft"], "fft")
    assert why is not None
    assert "job0, job1, job2, job3, job4" in why
    assert pause_reason(failures(alike[1:]).streaks["fft"], "fft") is None
    assert pause_reason(failures([*alike[1:], "KeyError: 'lr'"]).streaks["fft"], "fft") is None


def test_different_reasons_are_never_alike() -> None:
    """The numbers in a reason say what happened; those in an error line do not."""
    fold = Fold()
    for number, reason in enumerate(["signal 9", "exit 3", "exit 1", "signal 11", "exit 2"]):
        fold.extend(failure(3 * number + 1, f"job{number}", None, reason=reason))
    assert pause_reason(fold.streaks["fft"], "fft") is None
    for number in range(5, 5 + STREAK_LENGTH):
        fold.extend(failure(3 * number + 1, f"job{number}", None, reason="signal 9"))
    why = pause_reason(fold.streaks["fft"], "fft")
    assert why is not None
    assert "signal 9" in why


def test_a_pause_shows_one_example_word_for_word() -> None:
    alike = [f"RuntimeError: step {n} of /scratch/run{n}/x.py at 0x{n:x}f" for n in range(STREAK_LENGTH)]
    why = pause_reason(failures(alike).streaks["fft"], "fft")
    assert why is not None
    assert why == f"5 jobs failed alike: exit 1: {alike[-1]} (job0, job1, job2, job3, job4)"


def ending(seq: int, event: Event, job: str, **data: Any) -> Line:
    state = {Event.DONE: "done", Event.FAILED: "failed"}.get(event, "queued")
    return Line(seq=seq, at=AT, by="p", event=event, job=job, set={"state": state, "reason": "lost"}, data=data)


def test_a_host_trips_when_different_jobs_cannot_run_there_in_a_row() -> None:
    fold = Fold()
    suspect = {"host": "host:h", "suspect": True}
    fold.extend(ending(n, Event.AUTO_REQUEUED, f"job{n % 4}", **suspect) for n in range(1, 21))
    assert pause_reason(fold.streaks["host:h"], "host:h") is None
    fold.extend([ending(21, Event.FAILED, "job5", **suspect)])
    why = pause_reason(fold.streaks["host:h"], "host:h")
    assert why is not None
    assert "job5" in why
    # One that told how it ended shows that the host is well.
    fold.extend([ending(22, Event.FAILED, "job6", method="fft", host="host:h")])
    assert "host:h" not in fold.streaks
    assert "fft" in fold.streaks


def test_a_gpu_trips_only_when_different_methods_fail_on_it() -> None:
    fold = Fold()
    for number in range(STREAK_LENGTH):
        method = "lora" if number == 2 else "fft"
        fold.extend(failure(3 * number + 1, f"job{number}", f"error {'abcdef'[number]}", method, "gpu:h:1"))
    assert pause_reason(fold.streaks["gpu:h:1"], "gpu:h:1") is not None
    only_one = failures([f"error {letter}" for letter in "abcde"], gpu="gpu:h:1")
    assert pause_reason(only_one.streaks["gpu:h:1"], "gpu:h:1") is None


def test_a_refusal_of_a_job_without_record_is_settled_without_making_one() -> None:
    fold = Fold()
    fold.extend([Line(seq=1, at=AT, by="p", event=Event.REFUSED, job="x", data={"line": "l", "why": "w"})])
    assert set(fold.refusals) == {"x"}
    fold.extend([Line(seq=2, at=AT, by="p", event=Event.CLEARED, job="x", data={})])
    assert fold.refusals == {}
    assert fold.records == {}


def test_a_corrected_line_of_a_new_job_settles_its_refusal() -> None:
    for bulk in (False, True):
        fold = Fold()
        lines = [
            Line(seq=1, at=AT, by="p", event=Event.REFUSED, job="x", data={"line": "l", "why": "quued"}),
            Line(seq=2, at=AT, by="p", event=Event.ADOPTED, job="x", set={"state": "queued"}),
        ]
        (fold.extend_in_bulk if bulk else fold.extend)(lines)
        assert fold.refusals == {}


def test_failures_that_name_their_entry_are_alike() -> None:
    """A parameter that the template requires and nobody says: every entry would fail, one after another."""
    said = "train.py: {} has no lang, which the template requires"
    jobs = ("fft_german_s1", "a", "lora.spanish-2")
    assert len({signature(said.format(job), None, job) for job in jobs}) == 1
    assert signature("fft_german_s10: x", None, "fft_german_s1") != signature("fft_german_s1: x", None, "fft_german_s1")
