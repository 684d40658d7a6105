"""Hypothesis strategies for journal lines that make a valid history, and for JSON values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dispatcher.run_state.events import Blame, Event
from dispatcher.run_state.journal import Line
from dispatcher.run_state.states import ENDED, IN_FLIGHT, State

AT = "2026-06-17T22:48:00.123Z"
JOBS = ["fft_spanish_s42", "lora_日本語", 'a b\n"c"', "-x"]

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
# What people add to a line: names that are nobody else's.
notes = st.dictionaries(st.sampled_from(["note", "owner", "naïve ключ", "extra"]), json_values, max_size=2)

FAILURES = ["RuntimeError: CUDA error 700 at /tmp/x.cu:12", "ValueError: lr", None]


def change(draw: st.DrawFn, job: str, state: State | None) -> tuple[Event, dict[str, Any], Blame | None]:
    """An event that may follow on `state`: its fields and data."""
    if state is None:
        return Event.QUEUED, {"state": "queued", "priority": draw(st.integers(-3, 3))}, None
    if state is State.QUEUED:
        gpu = draw(st.sampled_from([None, 2, [2, 3]]))
        claimed = (
            Event.CLAIMED,
            {"state": "running", "gpu": gpu, "attempt": 1, "pod": "pod-0", "started_at": AT},
            None,
        )
        return draw(
            st.sampled_from([claimed, (Event.HELD, {"state": "held"}, None), (Event.EDITED, draw(notes), None)])
        )
    if state in IN_FLIGHT:
        where = Blame(method=draw(st.sampled_from(["fft", "lora"])), gpu=draw(st.sampled_from([None, "gpu:h:1"])))
        failed = {"state": "failed", "reason": "exit 1", "error": draw(st.sampled_from(FAILURES))}
        return draw(
            st.sampled_from(
                [
                    (Event.STARTED, {"pid": 4711}, None),
                    (Event.REQUESTED, {"desired": "abandoned"}, None),
                    (Event.DONE, {"state": "done", "exit_code": 0, "finished_at": AT}, where),
                    (Event.FAILED, failed, where),
                    (Event.RETRIED, {**failed, "state": "queued", "retries": 1}, where),
                ]
            )
        )
    assert state in ENDED or state is State.HELD
    return Event.REQUEUED, {"state": "queued", "pod": None, "gpu": None, "error": None, "reason": None}, None


@st.composite
def histories(draw: st.DrawFn, max_lines: int = 40) -> list[Line]:
    """Consecutive journal lines of a few jobs, with pauses, refusals and forgotten jobs among them."""
    states: dict[str, State] = {}
    lines: list[Line] = []
    for seq in range(1, draw(st.integers(0, max_lines)) + 1):
        job = draw(st.sampled_from(JOBS))
        kind = draw(st.integers(0, 11))
        scope = {"scope": draw(st.sampled_from(["fft", "gpu:h:1"])), "why": "so"}
        if kind == 0:
            line = Line(seq=seq, at=AT, by="p", event=Event.DELETED, job=job)
            states.pop(job, None)
        elif kind == 1:
            line = Line(seq=seq, at=AT, by="p", event=draw(st.sampled_from([Event.PAUSED, Event.UNPAUSED])), data=scope)
        elif kind == 2:
            data = {"line": '"x": 1', "why": "bad"}
            line = Line(seq=seq, at=AT, by="p", event=Event.REFUSED, job=draw(st.sampled_from([job, None])), data=data)
        elif kind == 3:
            line = Line(seq=seq, at=AT, by="p", event=Event.CLEARED, job=draw(st.sampled_from([job, None])), data={})
        else:
            event, fields, blame = change(draw, job, states.get(job))
            line = Line(seq=seq, at=AT, by="p", event=event, job=job, set=fields, data=blame and blame.as_json())
            if "state" in fields:
                states[job] = State(fields["state"])
        lines.append(line)
    return lines
