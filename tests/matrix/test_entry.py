"""Time limits, and entries made in code."""

from __future__ import annotations

import msgspec
import pytest

from dispatcher.base.values import parse_duration
from dispatcher.hosts.types import Container
from dispatcher.matrix import Entry
from dispatcher.matrix.entry import KEYS, UNDIGESTED, read_entry


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("8h", 28800),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("30s", 30),
        ("01:30:00", 5400),
        ("100:00:00", 360000),
        ("1-12:00:00", 129600),
        ("1-12", 129600),
        ("1-12:30", 131400),
        (5400, 5400),
        (0.5, 0.5),
    ],
)
def test_time_limits(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "90",
        "01:30",
        "8 hours",
        "-8h",
        "8h-",
        "1:99:00",
        "h",
        "0m",
        0,
        -1,
        True,
        None,
        [],
        float("nan"),
        float("inf"),
        "9" * 400 + "h",
        "9999d",
        "٣h",
    ],
)
def test_times_that_could_mean_two_things_or_nothing_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a time such as 90m"):
        parse_duration(text)


def test_an_entry_made_in_code_says_only_what_was_given() -> None:
    assert Entry(job_id="a", method="m", params={"x": 1}).document() == {"job_id": "a", "method": "m", "x": 1}
    entry = Entry(job_id="a", method="m", needs=("b",), env={"A": "1"}, time_limit_s=60.0)
    assert entry.document() == {"job_id": "a", "method": "m", "needs": ["b"], "time_limit": 60.0, "env": {"A": "1"}}
    assert entry.value("needs") == ["b"] and entry.value("gpus") is None


@pytest.mark.parametrize("word", KEYS)
def test_every_reserved_key_counts_in_the_digest_unless_it_is_for_scheduling(word: str) -> None:
    plain = Entry(job_id="a", method="m")
    field = KEYS[word].name
    assert (msgspec.structs.replace(plain, **{field: "x"}).digest() == plain.digest()) is (word in UNDIGESTED)


def test_the_container_of_an_entry() -> None:
    document = {"job_id": "a", "method": "m", "container": {"runtime": "podman", "image": "b:1"}, "queue_limit": "1h"}
    entry, faults = read_entry(dict(document), 0)
    assert entry is not None and not faults
    assert (entry.container, entry.queue_limit_s) == (Container(runtime="podman", image="b:1"), 3600)
    assert entry.document() == document

    made = Entry(job_id="a", method="m", container=Container(runtime="podman", image="b:1"))
    assert made.document() == {"job_id": "a", "method": "m", "container": {"runtime": "podman", "image": "b:1"}}
    assert made.digest() == entry.digest() != Entry(job_id="a", method="m").digest()
    huge = {"job_id": "a", "method": "m", "n": 2**70, "container": {"runtime": "podman", "image": "b:1"}}
    read, _ = read_entry(huge, 0)
    assert read is not None and read.digest() != made.digest()

    _, faults = read_entry({"job_id": "a", "method": "m", "container": {"runtime": "podmn"}, "queue_limit": "90"}, 0)
    assert faults[0] == "container.image: is missing"
    assert faults[1].startswith('container.runtime = "podmn": expected one of') and "did you mean 'podman'" in faults[1]
    assert faults[2].startswith('queue_limit = "90": expected a time')
