"""Which attempts go together."""

from __future__ import annotations

from typing import Any

from dispatcher.outlets.base import Bundle, Key, Request, Slot
from dispatcher.outlets.batch.grouping import jobs_of, submissions_of


def bundle(job: str, pack: str = "", gpus: int = 1, **words: Any) -> Bundle:
    first = Key(pack, 1) if pack else None
    return Bundle(key=Key(job, 1), request=Request(gpus), slot=Slot(), files={}, pack=first, **words)


def names(groups: list[list[Bundle]]) -> list[str]:
    return ["".join(one.key.job_id for one in group) for group in groups]


def test_equal_requests_are_one_array() -> None:
    bundles = [bundle("a"), bundle("b", gpus=2), bundle("c"), bundle("d", time_limit_s=60.0)]
    assert names(submissions_of(bundles, None, makes_arrays=True)) == ["ac", "b", "d"]


def test_without_arrays_each_job_is_submitted_alone() -> None:
    bundles = [bundle("a"), bundle("b", pack="b"), bundle("c", pack="b")]
    assert names(submissions_of(bundles, None, makes_arrays=False)) == ["a", "bc"]


def test_an_array_is_not_larger_than_the_site_allows() -> None:
    bundles = [bundle(name) for name in "abcde"]
    assert names(submissions_of(bundles, 2, makes_arrays=True)) == ["ab", "cd", "e"]
    assert names(submissions_of(bundles, 0, makes_arrays=True)) == ["abcde"]


def test_an_array_has_packs_of_one_length() -> None:
    """All jobs of an array get the same time, which a longer pack would need more of."""
    packs = {"a": "a", "b": "a", "c": "c", "d": "c", "e": "e", "f": ""}
    bundles = [bundle(name, pack) for name, pack in packs.items()]
    groups = submissions_of(bundles, None, makes_arrays=True)
    assert names(groups) == ["abcd", "ef"]
    assert jobs_of(groups[0]) == ((0, 1), (2, 3))
    assert jobs_of(groups[1]) == ((0,), (1,))
