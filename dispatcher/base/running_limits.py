"""Limits on how many attempts may be in flight at once, as dispatcher.yaml states them; matrix/limits.py applies them.

`limits:` is a list of `{per: lang, max_running: 2}` (each value of a key by itself), `{where: lang=greek, max_running:
3}` (all jobs that match), or both at once. `max_running` of a method is one more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

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
    """A list of limits, each a mapping."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise BadValueError("expected a list such as [{per: lang, max_running: 2}]")
    return tuple(map(_parse_limit, value))


def _parse_limit(value: Mapping[object, object]) -> RunningLimit:
    for key in value:
        if key not in _KEYS:
            raise BadValueError(f"unknown key {shown(key)}{nearest(str(key), _KEYS)}")
    per, where = value.get("per"), value.get("where")
    if per is None and where is None:
        raise BadValueError(f"{shown(value)} limits nothing: expected per: KEY or where: KEY=VALUE")
    if per is not None and (not isinstance(per, str) or not per):
        raise BadValueError(f"per is {shown(per)}: expected the key of entries whose values are limited, such as lang")
    conditions = () if where is None else parse_words(where)
    for condition in conditions:
        if not _CONDITION.fullmatch(condition):
            raise BadValueError(f"where is {shown(condition)}: expected key=value, such as lang=greek")
    try:
        return RunningLimit(parse_max_running(value.get("max_running")), per or "", conditions)
    except BadValueError as error:
        raise BadValueError(f"max_running is {shown(value.get('max_running'))}: {error}") from None
