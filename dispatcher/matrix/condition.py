"""Conditions on the values of an entry: which combinations a sweep leaves out, which entries `--where` selects."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dispatcher.errors import UsageError
from dispatcher.matrix.entry import Entry
from dispatcher.values import text_of

_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "min": lambda value, bound: bool(value >= bound),
    "max": lambda value, bound: bool(value <= bound),
    "above": lambda value, bound: bool(value > bound),
    "below": lambda value, bound: bool(value < bound),
}


def check_condition(expected: object) -> None:
    """ValueError unless `expected` is a value, a glob, a list of them, or bounds such as `{min: 1, below: 5}`."""
    if not isinstance(expected, Mapping):
        return
    for word, bound in expected.items():
        if word == "not":
            check_condition(bound)
        elif word not in _BOUNDS:
            raise ValueError(f"unknown condition {word!r}: expected {', '.join(_BOUNDS)} or not")
        elif type(bound) not in (int, float):
            raise ValueError(f"{word} = {bound!r}: expected a number")
    if not expected:
        raise ValueError("is empty: expected a value, a list of values, or bounds such as {min: 1}")


def holds(expected: object, value: object) -> bool:
    """Whether `value` is what a checked condition expects."""
    if isinstance(expected, Mapping):
        return all(_bound_holds(word, bound, value) for word, bound in expected.items())
    if isinstance(expected, list):
        return any(holds(one, value) for one in expected)
    if isinstance(expected, str):
        return isinstance(value, str) and fnmatch.fnmatchcase(value, expected)
    # true is not 1: a switch and a number are different parameters.
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def _bound_holds(word: str, bound: Any, value: object) -> bool:
    if word == "not":
        return not holds(bound, value)
    return type(value) in (int, float) and _BOUNDS[word](value, bound)


class Where:
    """What several `--where key=value` options select together: every one must hold.

    The value is a glob over the entry's value as text (`lang=es*`, `seed=42`); `key!=value` turns it round. An entry
    that does not say the key matches only `key!=value`.
    """

    def __init__(self, options: Iterable[str] = ()) -> None:
        self._conditions = [_parse_option(option) for option in options]

    def __bool__(self) -> bool:
        return bool(self._conditions)

    def matches(self, entry: Entry) -> bool:
        return all(
            _text_matches(entry.value(key), pattern) is not negated for key, pattern, negated in self._conditions
        )


def _parse_option(option: str) -> tuple[str, str, bool]:
    key, equals, pattern = option.partition("=")
    negated = key.endswith("!")
    key = key.removesuffix("!").strip()
    if not equals or not key:
        raise UsageError(f"--where {option}: expected key=value, as in --where lang=spanish or --where 'seed!=4*'")
    return key, pattern, negated


def _text_matches(value: object, pattern: str) -> bool:
    return value is not None and fnmatch.fnmatchcase(text_of(value), pattern)
