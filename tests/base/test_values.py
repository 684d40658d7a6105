"""Values that several files have in common."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.base.values import BadValueError, memory_mib, parse_integer, parse_resources


@pytest.mark.parametrize(
    ("text", "mib"),
    [("64G", 65536), ("64 GB", 65536), ("64GiB", 65536), ("1.5T", 1572864), ("512M", 512), ("1K", 1), ("1025K", 2)],
)
def test_memory(text: str, mib: int) -> None:
    assert memory_mib(text) == mib


@given(st.integers(0, 10**9))
def test_memory_in_mib_is_what_it_says(mib: int) -> None:
    assert memory_mib(f"{mib}M") == mib


@pytest.mark.parametrize("value", ["64", 64, "64g", "G", "-1G", "9" * 400 + "G", "٣G", "1G\n", None])
def test_memory_without_a_unit_is_refused(value: object) -> None:
    with pytest.raises(BadValueError, match="expected an amount with its unit"):
        memory_mib(value)


def test_resources() -> None:
    everything = {"chip": "h100", "min_chips": 0, "cpus": 4, "memory": "64G", "nodes": 2}
    assert parse_resources(everything) == everything


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], "expected a mapping"),
        ({"node": 2}, r"unknown resource \"node\" \(did you mean 'nodes'\?\)"),
        ({"nodes": 0}, "nodes is 0: expected a whole number, 1 or more"),
        ({"min_chips": -1}, "min_chips is -1: expected a whole number, 0 or more"),
        ({"cpus": True}, "cpus is true: expected a whole number, 1 or more"),
        ({"memory": "64"}, "expected an amount with its unit"),
        ({"chip": ""}, "expected a name"),
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
