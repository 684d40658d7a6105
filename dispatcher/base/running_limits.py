"""Limits on how many attempts may be in flight at once, as dispatcher.yaml states them; matrix/limits.py applies them.

`limits:` is a list of `{per: lang, max_running: 2}` (each value of a key by itself), `{where: lang=greek, max_running:
3}` (all jobs that match), or both at once. `max_running` of a method is one more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.values import BadValueError, parse_words, shown
from dispatcher.errors import nearest

_KEYS: Final = ("per", "where", "max_running")
_CONDITION: Final = re.compile(r"[^=!\s][^=]*!?=.*", re.DOTALL)


class RunningLimit(msgspec.Struct, frozen=True):
    """At most `max_running` attempts in flight of the jobs that match `where`, for each value of the key `per`.

    `per` empty: all of them count together. `where` is in the words of `--where`.
    """

    max_running: int
    per: str = ""
    where: tuple[str, ...] = ()


def parse_max_running(value: object) -> int:
    """A whole number, 1 or more."""
    if type(value) is not int or value < 1:
        raise BadValueError("expected a whole number, 1 or more; jobs that are not to run are held: `dispatcher hold`")
    return value


def parse_limits(value: object) -> tuple[RunningLimit, ...]:
    """A list of limits, each a mapping. Raises BadValueError with the faults of all."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise BadValueError("expected a list such as [{per: lang, max_running: 2}]")
    faults = [f"limit {number}: {fault}" for number, one in enumerate(value, 1) for fault in _faults(one)]
    if faults:
        raise BadValueError("; ".join(faults))
    return tuple(map(_limit, value))


def _limit(value: Mapping[str, Any]) -> RunningLimit:
    where = value.get("where")
    return RunningLimit(value["max_running"], value.get("per") or "", () if where is None else parse_words(where))


def _faults(value: Mapping[object, object]) -> Iterator[str]:
    """Everything that is wrong with one limit."""
    for key in value:
        if key not in _KEYS:
            yield f"unknown key {shown(key)}{nearest(str(key), _KEYS)}"
    per, where = value.get("per"), value.get("where")
    if per is None and where is None:
        yield f"{shown(value)} limits nothing: expected per: KEY or where: KEY=VALUE"
    if per is not None and (not isinstance(per, str) or not per):
        yield f"per is {shown(per)}: expected the key of entries whose values are limited, such as lang"
    if where is not None:
        yield from _faults_of_where(where)
    if "max_running" not in value:
        yield "max_running is missing: expected a whole number, 1 or more"
        return
    try:
        parse_max_running(value["max_running"])
    except BadValueError as error:
        yield f"max_running is {shown(value['max_running'])}: {error}"


def _faults_of_where(where: object) -> Iterator[str]:
    try:
        conditions = parse_words(where)
    except BadValueError as error:
        yield f"where is {shown(where)}: {error}"
        return
    for condition in conditions:
        if not _CONDITION.fullmatch(condition):
            yield f"where is {shown(condition)}: expected key=value, such as lang=greek"
