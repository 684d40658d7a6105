"""The ids of a manifest without the rest of it."""

from __future__ import annotations

import json

import pytest

from dispatcher.matrix.manifest import job_ids, parse_manifest

M = {"method": "m"}


@pytest.mark.parametrize(
    "content", [[], [{"job_id": "a", **M, "x": {"job_id": "z"}}, {"job_id": "b", **M}], {"a": M, "b": M}]
)
def test_the_same_as_those_of_the_entries(content: object) -> None:
    data = json.dumps(content).encode()
    assert job_ids(data) == parse_manifest(data, "m.json", None).keys()


@pytest.mark.parametrize(
    "data", [b"", b"3", b'[{"job_id": "a"', b'[{"job_id": 1}]', b"[" * 100_000, b'[{"job_id": "\xff"}]']
)
def test_none_of_what_is_no_manifest(data: bytes) -> None:
    assert job_ids(data) == frozenset()


def test_entries_that_cannot_be_used_are_known_all_the_same() -> None:
    assert job_ids(b'[{"job_id": "a", "needs": 3}, {"job_id": "a"}]') == {"a"}
