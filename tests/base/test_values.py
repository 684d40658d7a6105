"""Values that several files have in common."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.base.values import (
    BadValueError,
    group_label,
    identity,
    memory_mib,
    memory_texts,
    parse_duration,
    parse_integer,
)
from dispatcher.job_keys import parse_resources


@pytest.mark.parametrize(
    ("text", "mib"),
    [("64G", 65536), ("64 GB", 65536), ("64GiB", 65536), ("1.5T", 1572864), ("512M", 512), ("1K", 1), ("1025K", 2)],
)
def test_memory(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@given(st.integers(0, 10**9))
def test_memory_in_mib_is_what_it_says(mib: int) -> None:
    assert memory_mib(f"{mib}M") == mib


def test_amounts_of_memory_that_cannot_be_used_say_why() -> None:
    for text, why in (("64g", 'upper case: write "64G"'), ("1gib", "write .1G"), ("9" * 400 + "G", "at most 1024T")):
        with pytest.raises(BadValueError, match=why):
            memory_mib(text)
    with pytest.raises(BadValueError, match=r"memory = .*more than nothing"):
        parse_resources({"memory": "0G"})


def test_two_amounts_look_equal_only_where_they_are() -> None:
    assert memory_texts(10245, 10241) == ("10245M", "10241M")
    assert memory_texts(10240, 10240) == ("10G", "10G")
    assert memory_texts(20480, 10241) == ("20G", "10G")


@pytest.mark.parametrize(
    ("value", "why"),
    [(-5, "more than 0"), ("-90m", "more than 0"), (1e12, "too long"), ("99999999999h", "too long"),
     (float("inf"), "expected a time"), (float("nan"), "expected a time")],
)  # fmt: skip
def test_times_that_cannot_be_used_say_why(value: object, why: str) -> None:
    with pytest.raises(BadValueError, match=why):
        parse_duration(value)


@pytest.mark.parametrize("value", ["64", 64, "G", "-1G", "٣G", "1G\n", None])
def test_memory_without_a_unit_is_refused(value: object) -> None:
    with pytest.raises(BadValueError, match="expected an amount with its unit"):
        memory_mib(value)


def test_resources() -> None:
    everything = {"chip": "h100", "min_chips": 0, "cpus": 4, "memory": "64G", "nodes": 2}
    assert parse_resources(everything) == everything


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], "expected keys such as {chip: h100, min_chips: 4}"),
        ({"node": 2}, r"node: unknown key \(did you mean 'nodes'\?\)"),
        ({"nodes": 0}, "nodes = 0: expected a whole number, 1 or more"),
        ({"min_chips": -1}, "min_chips = -1: expected a whole number, 0 or more"),
        ({"cpus": True}, "cpus = true: expected a whole number, 1 or more"),
        ({"memory": "64"}, "expected an amount with its unit"),
        ({"cpus": 10**10}, "too large: expected a whole number, at most"),
        ({"chip": ""}, 'chip = "": expected text'),
    ],
)
def test_resources_that_cannot_be_used(value: object, expected: str) -> None:
    with pytest.raises(BadValueError, match=expected):
        parse_resources(value)


def test_a_whole_number_has_64_bits() -> None:
    assert parse_integer(1 - 2**63) == 1 - 2**63
    for value in (2**63, -(10**30)):
        with pytest.raises(BadValueError, match=f"from -{2**63 - 1} to {2**63 - 1}"):
            parse_integer(value)


def test_values_that_look_alike_are_different_and_are_called_so() -> None:
    values = [False, 0, 0.0, "0", "false", None, "", [1], [1.0], {"a": 1, "b": True}]
    assert len({identity(value) for value in values}) == len(values)
    assert identity({"b": True, "a": 1}) == identity({"a": 1, "b": True})
    assert identity(math.nan) == identity(float("nan")) != identity("NaN")
    assert identity("\ud800") == identity("\ud800")
    name = group_label(values)
    assert [name(value) for value in values[:7]] == ["false", "0", "0.0", '"0"', '"false"', "", '""']
    # Text that is like no other value is not quoted.
    assert group_label(["0", "a b", None])("0") == "0"
