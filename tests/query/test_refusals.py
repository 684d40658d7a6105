"""Refused hand edits: reported for as long as they matter."""

from __future__ import annotations

import json

import pytest
from fleet import Fleet, shell, wait_until

from dispatcher.query.refusals import is_settled, refusal_text
from dispatcher.run_state.facets.refusals import Refusal
from dispatcher.run_state.states import Record, State

BEFORE, REFUSED, LATER, END = (f"2026-06-17T10:00:0{second}.500Z" for second in range(4))


def settled(line: str, state: State, started_at: str = BEFORE, finished_at: str | None = END) -> bool:
    record = Record(state=state, attempt=1, started_at=started_at, finished_at=finished_at)
    return is_settled(Refusal("a", line, "it is running", REFUSED), record)


@pytest.mark.parametrize("state", [State.DONE, State.FAILED])
def test_what_was_asked_for_has_happened(state: State) -> None:
    line = json.dumps({"state": state.value})
    assert settled(f'"a": {line}', state)
    assert not settled(f'"a": {line}', State.RUNNING)
    # The end was known when the edit was refused.
    assert not settled(f'"a": {line}', state, finished_at=BEFORE)
    assert not settled(f'"a": {line}', state, finished_at=None)
    # In the same second, an end is before the edit unless it has no more than that second.
    assert not settled(f'"a": {line}', state, finished_at=REFUSED.replace(".500", ".400"))
    assert settled(f'"a": {line}', state, finished_at=REFUSED.replace(".500", ""))


@pytest.mark.parametrize("word", ["running", "held", "abandoned"])
def test_an_edit_of_an_attempt_that_is_over_has_no_effect_any_more(word: str) -> None:
    assert settled(f'"a": {{"state": "{word}", "pid": 4}}', State.DONE)
    assert not settled(f'"a": {{"state": "{word}", "pid": 4}}', State.QUEUED)


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ('"a": {"state": "done"}', State.FAILED),
        ('"a": {"state": "failed"}', State.DONE),
        ('"a": {"state": "quued"}', State.DONE),
        ('"a": {"priority": "high"}', State.DONE),
        ('"a": {"state": "done", "note": "cut o', State.DONE),
        ("", State.DONE),
        ('"a": 3', State.DONE),
    ],
)
def test_what_still_matters_is_kept(line: str, state: State) -> None:
    assert not settled(line, state)


def test_queued_is_settled_by_an_attempt_that_began_later() -> None:
    line = '"a": {"state": "queued", "priority": "high"}'
    assert not settled(line, State.DONE, started_at=BEFORE)
    assert settled(line, State.DONE, started_at=LATER)


def test_refusals_without_a_record_or_a_time_are_kept() -> None:
    assert not is_settled(Refusal("a", '"a": {"state": "done"}', "unknown job", REFUSED), None)
    assert not is_settled(Refusal("a", '"a": {"state": "done"}', "why", ""), Record(state=State.DONE, finished_at=END))


def test_the_text_says_when() -> None:
    text = refusal_text(Refusal("a", "", "it is running", REFUSED), lambda at: f"<{at}>")
    assert text.startswith(f"hand edit of a refused at <{REFUSED}>: it is running. Edit it again")


def test_an_edit_of_a_running_job_is_reported_until_the_job_has_ended_so(fleet: Fleet) -> None:
    gated = "echo begun; until [ -e go ]; do sleep 0.02; done"
    fleet.write_manifest([shell("a", gated), shell("b", f"{gated}; exit 3")])
    pod = fleet.start("pod", "--slots", "2", poll="0.2")
    for job in ("a", "b"):
        fleet.wait_running(job)
    wait_until(lambda: {line["state"] for line in fleet.status().values()} == {"running"}, "both are shown as running")
    lines = fleet.status()
    for line in lines.values():
        line["state"] = "done"
    fleet.layout.status_file.write_text(json.dumps(lines))
    wait_until(lambda: fleet.try_("status").stderr.count("refused at") == 2, "both edits are refused")
    (fleet.root / "go").touch()
    fleet.wait_for("a", "done")
    fleet.wait_for("b", "failed")
    notes = fleet.try_("status").stderr
    assert "hand edit of a refused" not in notes
    assert "hand edit of b refused at " in notes
    assert pod.stop() == 1
