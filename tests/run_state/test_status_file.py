"""matrix_status.json as text: what goes in comes out, and what cannot be read is said with its line."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_state.lines import json_values, text

from dispatcher.errors import StatusFileError
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.states import FIELD_NAMES, Record, State, make_record

small = st.integers(0, 2**31)
extras = st.dictionaries(
    text.filter(lambda key: key not in FIELD_NAMES), json_values.filter(lambda value: value is not None), max_size=3
)
records = st.builds(
    Record,
    state=st.sampled_from(list(State)),
    pod=st.none() | text,
    pid=st.none() | small,
    gpu=st.none() | st.integers(0, 15) | st.lists(st.integers(0, 15), min_size=1, max_size=4).map(tuple),
    started_at=st.none() | text,
    attempt=small,
    exit_code=st.none() | st.integers(-64, 255),
    error=st.none() | text,
    priority=st.integers(-(2**31), 2**31),
    desired=st.none() | st.sampled_from(list(State)),
    rev=small,
    extra=extras,
)


@given(st.dictionaries(text, records, max_size=5))
def test_what_is_rendered_reads_the_same_everywhere(known: dict[str, Record]) -> None:
    data = status_file.render(known)
    lines = status_file.parse(data, "status")
    assert lines == json.loads(data)
    assert {job: make_record(line) for job, line in lines.items()} == known
    assert list(lines) == list(known)


@given(st.dictionaries(text, records, min_size=1, max_size=5))
def test_every_job_has_one_line_of_its_own(known: dict[str, Record]) -> None:
    head, *lines, end = status_file.render(known).decode().removesuffix("\n").split("\n")
    assert (head, end) == ("{", "}")
    assert len(lines) == len(known)
    for job, line in zip(known, lines, strict=True):
        assert list(json.loads("{" + line.removesuffix(",") + "}")) == [job]


def test_a_byte_order_mark_is_no_fault() -> None:
    assert status_file.parse(b'\xef\xbb\xbf{"a": {"state": "queued"}}', "status") == {"a": {"state": "queued"}}


@pytest.mark.parametrize(
    ("time", "line"),
    [
        ("2026-06-17T22:48:00.999Z", "2026-06-17T22:48:00Z"),
        ("2026-06-17T22:48:00Z", "2026-06-17T22:48:00Z"),
        ("2026-06-17T26:12:00.123Z", "2026-06-17T26:12:00.123Z"),
        ("2026-06-17T22:48:00.123456+02:00", "2026-06-17T22:48:00.123456+02:00"),
        ("yesterday, or the day...Z", "yesterday, or the day...Z"),
    ],
)
def test_times_have_whole_seconds_as_scripts_parse_them(time: str, line: str) -> None:
    times = {"started_at": time, "finished_at": time, "retry_at": time}
    rendered = json.loads(status_file.render({"a": Record(state=State.DONE, **times)}))["a"]
    assert {name: rendered[name] for name in times} == dict.fromkeys(times, line)
    if line != time:
        assert datetime.strptime(line, "%Y-%m-%dT%H:%M:%SZ")


def test_the_lines_of_the_lab_keep_their_impossible_time() -> None:
    line = {"state": "done", "pod": "shivam-0_tokfix", "finished_at": "2026-06-17T26:12:00Z"}
    record = make_record(line)
    assert record.finished_at == "2026-06-17T26:12:00Z"
    assert json.loads(status_file.render({"a": record}))["a"]["finished_at"] == "2026-06-17T26:12:00Z"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "line 1: the file is empty"),
        (b" \n\n ", "line 1: the file is empty"),
        (b"[]", "a list, expected an object of jobs"),
        (b"7", "a int, expected an object of jobs"),
        (b'{"a": {"state": "queued"}\n', "line 2"),
        (b'{\n"a": {"state": "queued"},\n"b" {"state": "queued"}\n}', "line 3, column 5"),
        (b'{\n"a": {"state": "queued"},\n}', "line 3"),
        (b'{\n"a": {},\n"b": {},\n"a": {}\n}', "lines 2, 4: duplicate key 'a'"),
        (b'{\n"a": {"x": 1, "x": 2}}', "line 2: duplicate key 'x'"),
        (b'{\n\n"a": {"loss": NaN}}', "line 3: NaN is not a number"),
        (b'{"a": {"note": "NaN",\n"loss": -Infinity}}', "line 2: -Infinity"),
        (b'{"a": {"loss":\n1e999}}', "line 2: 1e999 is not a number"),
        (b'{"a": {"n":\n123456789012345678901234567890}}', "line 2: 1234567890"),
        (b'{"a": {"n": ' + b"9" * 5000 + b"}}", "(5000 characters) is not a number"),
        (b'{"a":\n{"note": "\\ud800"}}', "line 2: "),
        (b'{\n"a": {"note": "\xff"}}', "line 2: byte 0xff is not UTF-8"),
        (b'{\n"a": 5\n}', "line 2: 'a' holds 5"),
        (b'{"a": [{"state": "queued"}]}', "'a' holds"),
        (b"\x00" * 100, "line 1"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a": ' * 500_000, "nested too deeply"),
        (b'{"a": {"n": ' + b"[" * 900 + b"]" * 900 + b"}}", "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(data: bytes, words: str) -> None:
    with pytest.raises(StatusFileError) as caught:
        status_file.parse(data, "status.json")
    assert str(caught.value).startswith("status.json: ")
    assert words in str(caught.value)


def test_numbers_at_the_edge_of_what_can_be_kept() -> None:
    data = b'{"a": {"state": "queued", "n": [9223372036854775807, -9223372036854775808, 1e308, 0.1]}}'
    line = status_file.parse(data, "status")["a"]
    assert json.loads(status_file.render({"a": make_record(line)}))["a"]["n"] == line["n"]


def test_a_line_that_is_too_long_is_refused_and_the_others_count() -> None:
    long = json.dumps({"state": "queued", "note": "x" * 2 * status_file.LONGEST_LINE})
    data = b'{\n"a": {"state": "done"},\n"b": %s\n}\n' % long.encode()
    found = status_file.parse_lines(data, "status.json")
    assert found.jobs == {"a": {"state": "done"}}
    assert [(line.number, line.job) for line in found.broken] == [(3, "b")]
    assert found.broken[0].why == "'b' has 2.0 MiB of text, a line at most 1.0 MiB: shorten it"
    with pytest.raises(StatusFileError, match="line 1: 'b' has"):
        status_file.parse(b'{"b": %s}' % long.encode(), "status.json")
