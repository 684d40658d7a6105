"""Which places are the same, as far as is known of both."""

from __future__ import annotations

import pytest

from dispatcher.hosts.types import Location
from dispatcher.outlets.remote.agent.names import is_same_place

PARTS = ("cluster", "address")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("u1 a1", "u1 a1", True),
        # The cluster's own name decides where both have it, also where it is reached by another address.
        ("u1 a1", "u1 a2", True),
        ("u1 a1", "u2 a1", False),
        ("u1 a1", "- a1", True),
        ("- a1", "u1 a1", True),
        ("- a1", "- a1", True),
        ("- a1", "- a2", False),
        ("u1 a1", "- a2", False),
        # Nothing tells whether they are.
        ("u1 -", "- a1", False),
        ("alpha", "alpha", True),
        ("alpha", "beta", False),
    ],
)
def test_names_of_one_cluster(one: str, other: str, is_same: bool) -> None:
    assert is_same_place(one, other) == is_same_place(other, one) == is_same

    def location(words: str) -> Location:
        named = {name: word for name, word in zip(PARTS, words.split(), strict=False) if word != "-"}
        return Location({"namespace": "n", **named})

    assert location(one).has(location(other)) == location(other).has(location(one)) == is_same
    assert not location(one).has(Location({"namespace": "m"}))
    assert location(one).has(Location({"namespace": "n"}))
