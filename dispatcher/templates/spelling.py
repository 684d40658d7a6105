"""The known word that a misspelt one probably means. Stricter than difflib, because a match is reported as an error."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

_DIGITS = re.compile(r"\d+")
# Up to this length most words are one typo apart: only a plural or two swapped letters count. Of words one letter
# longer, two that differ in one letter (data, date) do not count either.
_SHORT = 3
_LONG = 7


def near_misses(key: str, known: Iterable[str]) -> list[str]:
    """The words of `known` that `key` may be a misspelling of, the nearest first.

    One wrong, missing, surplus or swapped letter counts, two in words of seven letters or more; `_`, `-` and capitals
    do not matter. Keys that differ in a number (`layer1`, `layer2`) are different on purpose.
    """
    found = [
        (typos, word) for word in known if (typos := _typos(_plain(key), _plain(word))) is not None and word != key
    ]
    return [word for _, word in sorted(found)]


def _plain(word: str) -> str:
    return word.replace("_", "").replace("-", "").lower()


def _typos(a: str, b: str) -> int | None:
    """The number of typos between two words; None when they are too many, or deliberate."""
    if _DIGITS.sub("", a) == _DIGITS.sub("", b):
        return 0 if a == b else None
    shorter, longer = sorted((a, b), key=len)
    allowed = 2 if len(shorter) >= _LONG else 1
    if len(longer) - len(shorter) > allowed:
        return None
    is_swapped = len(a) == len(b) and sorted(a) == sorted(b)
    if len(shorter) <= _SHORT and not is_swapped and longer != f"{shorter}s":
        return None
    if len(longer) <= _SHORT + 1 and len(a) == len(b) and not is_swapped:
        return None
    typos = _distance(a, b)
    return typos if typos <= allowed else None


def _distance(a: str, b: str) -> int:
    """The optimal string alignment distance: letters inserted, removed, replaced, or swapped with a neighbour."""
    cost = [[max(i, j) if min(i, j) == 0 else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i, j in itertools.product(range(1, len(a) + 1), range(1, len(b) + 1)):
        replaced = cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])
        cost[i][j] = min(cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced)
        if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
            cost[i][j] = min(cost[i][j], cost[i - 2][j - 2] + 1)
    return cost[-1][-1]
