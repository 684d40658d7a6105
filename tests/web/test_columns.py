"""Filters and values by key are those of `status`, though no job is asked."""

from __future__ import annotations

import json
import math

import pytest
from starlette.datastructures import QueryParams

from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where
from dispatcher.query.selection import select
from dispatcher.query.values import JobValues, sort_key
from dispatcher.run_state.states import State
from dispatcher.web.answers import encode
from dispatcher.web.board import Board, Filter, FilterError
from dispatcher.web.jobs import listed, values
from dispatcher.web.matrix import matrix
from dispatcher.web.queries import Query

CONDITIONS = (
    ["method=fft"], ["seed=1*"], ["seed!=3"], ["seed="], ["note=größer*"], ["state=failed"], ["reason=exit*"],
    ["pod=pod-0", "seed=1,3,5"], ["priority=0"], ["needs=*fft_greek_s1*"], ["job_id=eval_*"], ["gpu=3"],
    ["error=*Error*"], ["lang=greek"],
)  # fmt: skip


@pytest.fixture
def board(lab) -> Board:
    # What ran is not what the manifest has: the values are those that ran.
    entries = json.loads(lab.layout.default_matrix.read_text())
    for entry in entries[18:22]:
        lab.attempt(entry["job_id"], entry=json.dumps({**entry, "seed": 1000 + entry["seed"], "lang": "greek"}))
    made = Board(lab.root, {})
    made.look()
    return made


@pytest.mark.parametrize("options", CONDITIONS, ids=" ".join)
def test_a_filter_selects_what_status_selects(board, options):
    where, snapshot = Where.parse(options), board.snapshot
    expected = [job for job in snapshot.records if where.holds(lambda key: snapshot.value(job, key))]  # noqa: B023
    assert board.select(Filter(where=where)) == expected
    # Without what the page keeps, each key is read by itself.
    assert select(snapshot, where=where) == expected
    running = select(board.snapshot, (), {State.DONE}, where)
    assert board.select(Filter(frozenset({State.DONE}), where)) == running
    assert expected


def test_every_value_is_that_of_the_snapshot(board):
    snapshot, columns = board.snapshot, board.columns
    for key in ("method", "seed", "note", "lang", "state", "pod", "gpu", "reason", "attempt", "priority", "needs"):
        column = columns.column(key)
        values = [column.values[code] for code in column.codes]
        assert values == [snapshot.value(job, key) for job in columns.jobs], key


def test_changes_are_followed_as_a_new_reader_would_see_them(board, lab):
    for key in ("seed", "state", "pod", "reason"):
        board.columns.column(key)
    lab.workspace.requeue("fft_greek_s19", "fft_greek_s9")
    lab.workspace.hold("lora_hindi_s1")
    lab.put("lora_hindi_s2", "done")
    board.look()
    new = JobValues()
    new.follow(board.snapshot, None)
    assert board.columns.jobs == new.jobs
    for key in ("method", "seed", "lang", "state", "pod", "reason"):
        one, other = board.columns.column(key), new.column(key)
        assert [one.values[c] for c in one.codes] == [other.values[c] for c in other.codes], key


def test_a_new_manifest_is_followed(board, lab):
    board.columns.column("seed")
    entries = [{**entry, "lr": 0.1} for entry in json.loads(lab.layout.default_matrix.read_text())]
    lab.write_manifest([{"job_id": "first", "method": "fft", "lr": 0.5}, *entries])
    board.look()
    assert board.columns.jobs[0] == "first"
    assert board.select(Filter(where=Where.parse(["lr=0.5"]))) == ["first"]


def test_a_matrix_has_every_job_once_in_portions(board, monkeypatch):
    monkeypatch.setattr("dispatcher.web.matrix._CELLS", 20)
    rows, first, jobs = [], 0, 0
    while first is not None:
        found = matrix(board, ("seed",), ("method",), None, Filter(), first)
        rows += found["rows"]
        jobs += sum(cell["of"] for row in found["cells"] for cell in row if cell)
        first = found["next"]
    assert len(rows) == found["total_rows"] and jobs == len(board.columns.jobs)


def test_lists_are_sorted_by_the_time_that_attempts_took(board):
    found = [row.get("started_at") for row in listed(board, Filter(), "-elapsed_s", 500, 0)["jobs"]]
    known = [at for at in found if at is not None]
    # Those that run began first, and run longest.
    assert len(known) > 20 and found[len(known) :] == [None] * (len(found) - len(known))
    assert {row["state"] for row in listed(board, Filter(), "-elapsed_s", 9, 0)["jobs"]} == {"running"}


def test_lists_are_sorted_as_numbers_and_what_has_no_value_is_last(board):
    found = listed(board, Filter(), "seed", 500, 0)["jobs"]
    seeds = [row["params"].get("seed") for row in found]
    known = [seed for seed in seeds if seed is not None]
    assert known == sorted(known) and seeds[len(known) :] == [None] * (len(seeds) - len(known))


def test_a_nan_has_no_place_among_numbers():
    values = [3.0, math.nan, 1.0, "NaN", 2.0, "0.5", None, "text"]
    assert sorted(values, key=sort_key)[:4] == ["0.5", 1.0, 2.0, 3.0] and sorted(values, key=sort_key)[-1] is None


def test_an_answer_with_what_json_does_not_have_keeps_its_text():
    value = {"error": "loss is NaN \udc80 or -Infinity", "loss": [math.nan, -math.inf, 1.5], "count": 1 << 70}
    assert json.loads(encode(value)) == {**value, "loss": [None, None, 1.5]}


def test_jobs_of_a_user_are_those_of_status(lab):
    """Of an attempt in flight, whose job it was when it was claimed."""
    entries = json.loads(lab.layout.default_matrix.read_text())
    lab.write_manifest([{**one, "user": "ada" if number < 20 else "bob"} for number, one in enumerate(entries)])
    lab.put("report", "running", user="eve")
    board = Board(lab.root, {})
    board.look()
    for option in ("user=ada", "user=eve", "user!=bob", "user=*b*,eve"):
        where = Where.parse([option])
        assert board.select(Filter(where=where)) == select(board.snapshot, where=where) != [], option
    assert board.select(Filter(where=Where.parse(["user=eve"]))) == ["report"]
    rows = {row["job"]: row["user"] for row in listed(board, Filter(), "user", 500, 0)["jobs"]}
    assert list(rows.values()) == sorted(rows.values()) and rows["report"] == "eve"
    lab.put("report", "failed")
    lab.workspace.requeue("report")
    board.look()
    assert board.select(Filter(where=Where.parse(["user=eve"]))) == [], "the next attempt is of the entry's owner"
    with pytest.raises(UsageError, match=r"no job is of user 'boc'.*did you mean 'bob'"):
        board.select(Filter(where=Where.parse(["user=boc"])))


def test_values_are_completed_of_a_key_and_of_all(board):
    found = values(board, "method", "")["values"]
    assert [(one["value"], one["where"]) for one in found] == [(m, f"method={m}") for m in ("eval", "fft", "lora")]
    assert sum(one["of"] for one in found) == len(board.columns.jobs)
    assert [one["value"] for one in values(board, "method", "LO")["values"]] == ["lora"]
    # Without a key, all that entries have is looked through.
    assert [one["where"] for one in values(board, None, "größer")["values"]] == ["note=größer 语言"]
    assert [one["value"] for one in values(board, "seed", "")["values"]][:3] == ["0", "1", "2"]
    with pytest.raises(UsageError, match="colour"):
        values(board, "colour", "")


@pytest.mark.parametrize("text", ["a,b", "*x*", " lead", "[1", "{", '"q', "größer", "", "true", "1e-3"])
def test_a_completed_value_selects_its_jobs_and_no_others(lab, text):
    entries = json.loads(lab.layout.default_matrix.read_text())
    lab.write_manifest([{**one, "name": text if number < 3 else "other"} for number, one in enumerate(entries)])
    board = Board(lab.root, {})
    board.look()
    (found,) = [one for one in values(board, "name", "")["values"] if one["value"] == text]
    assert found["of"] == 3
    wanted = Query(QueryParams([("where", found["where"])]), "where").filter()
    assert len(board.places(wanted)) == 3


def test_a_filter_that_makes_no_sense_is_named(board):
    options = [("where", "method=fft"), ("where", "colour=red"), ("state", "failed")]
    with pytest.raises(FilterError) as caught:
        board.places(Query(QueryParams(options), "where", "state").filter())
    assert (caught.value.name, caught.value.number) == ("where", 1) and "colour" in str(caught.value)
    for options in ([("state", "done"), ("state", "dnoe")], [("where", "seed=1"), ("where", "x=[1")]):
        with pytest.raises(FilterError) as caught:
            Query(QueryParams(options), "where", "state").filter()
        assert (caught.value.name, caught.value.number) == (options[1][0], 1)
        assert "--where" not in str(caught.value).partition(":")[0]


@pytest.mark.parametrize(
    ("word", "matches"),
    [("hindi", "lora_hindi_s"), ("lora_*", "lora_"), ("eval,report", "e"), ("*_s1?", "_s1"), ("*_s3", "_s3")],
)
def test_words_and_globs_are_looked_for_in_ids(board, word, matches):
    found = board.select(Query(QueryParams([("where", word)]), "where").filter())
    assert found and all(matches in job for job in found) and len(found) < len(board.columns.jobs)


def test_without_any_job_a_word_finds_none(empty_lab):
    empty_lab.write_manifest([])
    board = Board(empty_lab.root, {})
    board.look()
    assert board.select(Query(QueryParams([("where", "greek")]), "where").filter()) == []


def test_as_many_jobs_with_long_ids_can_be_chosen_as_a_page_compares():
    jobs = [f"muon_w1024_swiglu_lr0.003_warmup2000_cosine_s{n:04}" for n in range(200)]
    assert Query(QueryParams([("jobs", ",".join(jobs))]), "jobs").words("jobs") == tuple(jobs)
    with pytest.raises(UsageError, match="at most 12000"):
        Query(QueryParams([("jobs", "x" * 12_001)]), "jobs")
