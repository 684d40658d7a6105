from __future__ import annotations

import pytest

from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.query.selection import select
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.waiting import reasons
from dispatcher.run_state.states import Record, State


def snapshot():
    jobs = {"a_1": State.QUEUED, "a_2": State.DONE, "b[1]": State.FAILED}
    return Snapshot(
        records={job: Record(state=state, extra={"note": "x"}) for job, state in jobs.items()},
        entries={
            "a_1": Entry(job_id="a_1", method="fft", params={"lr": 0.1, "tags": ["x", 1]}, needs=("gone",)),
            "a_2": Entry(job_id="a_2", method="lora", params={"lr": 0.5}),
        },
        now_s=0.0,
    )


@pytest.mark.parametrize(
    ("names", "states", "where", "chosen"),
    [
        ((), (), (), ["a_1", "a_2", "b[1]"]),
        (("a_2", "a_1"), (), (), ["a_1", "a_2"]),
        (("a*",), (State.DONE,), (), ["a_2"]),
        (("b[1]",), (), (), ["b[1]"]),
        ((), (), (("lr", "0.*"),), ["a_1", "a_2"]),
        ((), (), (("tags", '[[]"x"\\, 1]'),), ["a_1"]),
        ((), (), (("method", "fft"), ("state", "queued")), ["a_1"]),
        ((), (), (("note", "x"), ("lr", "")), ["b[1]"]),
    ],
)
def test_select(names, states, where, chosen):
    assert select(snapshot(), names, states, Where.parse(f"{key}={glob}" for key, glob in where)) == chosen


def test_a_key_that_nobody_has():
    with pytest.raises(UsageError, match="no job has a value for 'lrr'"):
        select(snapshot(), where=Where.parse(["lrr=1"]))
    assert select(snapshot(), where=Where.parse(["finished_at=2026*"])) == []


def test_a_word_is_not_proposed_instead_of_itself():
    assert nearest("method", ["method", "methods"]) == " (did you mean 'methods'?)"
    assert nearest("method", ["method", "lr"]) == " (known: lr)"
    assert nearest("method", ["method"]) == ""


def test_needs_that_nobody_knows():
    assert reasons(snapshot()).why("a_1").text == "needs gone (unknown job)"
