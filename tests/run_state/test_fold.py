"""The fold of the journal gives the same, however the lines come in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_state.lines import AT, histories

from dispatcher.run_state import journal
from dispatcher.run_state.events import Event
from dispatcher.run_state.failures import signature
from dispatcher.run_state.fold import Fold, snapshot
from dispatcher.run_state.journal import Line


def shown(fold: Fold) -> dict[str, Any]:
    """All that a fold says; also the order of the records, which is the order of the status file."""
    return {
        "seq": fold.seq,
        "records": list(fold.records.items()),
        "born": {job: fold.records.born(job) for job in fold.records},
        "pauses": fold.pauses,
        "refusals": fold.refusals,
        "streaks": fold.pauses.streaks,
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
    fold.begin()
    fold.extend(lines[cut:])
    fold.undo()
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


def ending(seq: int, event: Event, job: str, **data: Any) -> Line:
    state = {Event.DONE: "done", Event.FAILED: "failed"}.get(event, "queued")
    return Line(seq=seq, at=AT, by="p", event=event, job=job, set={"state": state, "reason": "lost"}, data=data)


def jobs_of(fold: Fold, scope: str) -> tuple[str, ...]:
    return fold.pauses.streaks[scope].jobs if scope in fold.pauses.streaks else ()


def test_only_jobs_that_failed_for_good_count_for_their_method_and_each_once() -> None:
    fold = Fold()
    fold.extend(failure(1, "a", "error"))
    fold.extend([ending(4, Event.RETRIED, "b", method="fft", gpu="gpu:h:1")])
    fold.extend([ending(5, Event.AUTO_REQUEUED, "c", method="fft", host="host:h", suspect=True)])
    fold.extend([ending(6, Event.DONE, "d", method="fft")])
    fold.extend(failure(7, "e", "error"))
    fold.extend([ending(10, Event.FAILED, "a", method="fft")])
    assert jobs_of(fold, "fft") == ("e", "a")
    assert jobs_of(fold, "gpu:h:1") == ()
    assert fold.pauses.streaks["host:h"].jobs == ("c",)
    assert fold.pauses.streaks["host:h"].methods == ("fft",)


@pytest.mark.parametrize(
    ("pause", "counted"),
    [
        ({"scope": "fft"}, "fft"),
        ({"scope": "fft:lr=1.0", "values": {"lr": "1.0"}}, "fft"),
        ({"scope": "gpu:h:1"}, "gpu:h:1"),
        ({"scope": "host:h"}, "host:h"),
        ({"scope": "host:h:fft"}, "host:h"),
    ],
)
def test_what_had_failed_before_a_person_continued_counts_no_more(pause: dict[str, Any], counted: str) -> None:
    def after(**unpaused: str) -> Fold:
        fold = Fold()
        fold.extend([ending(1, Event.FAILED, "a", method="fft", gpu="gpu:h:1")])
        fold.extend([ending(2, Event.AUTO_REQUEUED, "b", method="fft", host="host:h", suspect=True)])
        fold.extend([Line(seq=3, at=AT, by="p", event=Event.PAUSED, data=pause)])
        data = {"scope": pause["scope"], **unpaused}
        fold.extend([Line(seq=4, at=AT, by="ada@h", event=Event.UNPAUSED, data=data)])
        assert not fold.pauses
        return fold

    everything = {"fft", "gpu:h:1", "host:h"}
    assert set(after().pauses.streaks) == everything - {counted}
    assert set(after(why="c has succeeded").pauses.streaks) == everything


def test_a_success_ends_the_row_of_failures_on_a_gpu_and_an_exit_status_that_on_a_host() -> None:
    fold = Fold()
    fold.extend(failure(1, "a", "error", gpu="gpu:h:1"))
    fold.extend([ending(4, Event.AUTO_REQUEUED, "b", host="host:h", suspect=True)])
    fold.extend([ending(5, Event.FAILED, "c", method="fft", gpu="gpu:h:1", host="host:h")])
    assert jobs_of(fold, "gpu:h:1") == ("a", "c") and jobs_of(fold, "host:h") == ()
    fold.extend([ending(6, Event.DONE, "d", method="lora", gpu="gpu:h:1")])
    assert jobs_of(fold, "gpu:h:1") == ()


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
