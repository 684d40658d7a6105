"""The graph of needs, against brute force."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.matrix.needs import dependents, find_cycles

names = st.sampled_from("abcdefgh")
graphs = st.dictionaries(names, st.lists(names, unique=True, max_size=4).map(tuple))


def reaches_itself(needs: dict[str, tuple[str, ...]], start: str) -> bool:
    seen: set[str] = set()
    todo = list(needs[start])
    while todo:
        other = todo.pop()
        if other not in seen:
            seen.add(other)
            todo += needs.get(other, ())
    return start in seen


@given(graphs)
def test_cycles_are_real_and_every_tangle_is_reported(needs: dict[str, tuple[str, ...]]) -> None:
    cycles = find_cycles(needs)
    for cycle in cycles:
        assert cycle[0] == cycle[-1]
        assert all(after in needs[before] for before, after in itertools.pairwise(cycle))
    assert bool(cycles) == any(reaches_itself(needs, start) for start in needs)


@given(graphs)
def test_dependents_turn_every_need_round(needs: dict[str, tuple[str, ...]]) -> None:
    reverse = dependents(needs)
    assert {(one, other) for one in needs for other in needs[one]} == {
        (one, other) for other, users in reverse.items() for one in users
    }


def test_two_separate_cycles_are_both_found() -> None:
    assert find_cycles({"a": ["b"], "b": ["a"], "c": ["c"]}) == [["a", "b", "a"], ["c", "c"]]


def test_a_chain_of_a_hundred_thousand_needs_no_stack() -> None:
    needs = {str(number): (str(number + 1),) for number in range(100_000)}
    assert find_cycles(needs) == []
    needs["100000"] = ("0",)
    assert len(find_cycles(needs)[0]) == 100_002


def test_many_cycles_of_one_group_are_followed_once() -> None:
    count = 100_000
    names = [str(number) for number in range(count)]
    # A chain, whose last job needs all others, the nearest one first, and each of which needs the first, too.
    needs = {one: (other, "0") for one, other in itertools.pairwise(names)} | {names[-1]: tuple(reversed(names[:-1]))}
    assert [(cycle[0], len(cycle)) for cycle in find_cycles(needs)] == [("99998", 3), ("0", count - 1)]
    ring = dict(zip(names, ((name,) for name in [*names[1:], names[0]]), strict=True))
    assert find_cycles(ring) == [[*names, "0"]]
