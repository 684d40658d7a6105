"""Limits on how many attempts may be in flight at once, as dispatcher.yaml states them; matrix/limits.py applies them.

`limits:` is a list of `{per: lang, max_running: 2}` (each value of a key by itself), `{where: lang=greek, max_running:
3}` (all jobs that match), or both at once. `max_running` of a method is one more.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, TypeAlias

import msgspec

from dispatcher.base.schema.faults import PartFault, PartsError
from dispatcher.base.schema.kinds import TEXT, Words, number
from dispatcher.base.schema.types import Key, Value
from dispatcher.base.values import MOST, BadValueError, parse_positive, parse_words

_CONDITION: Final = r"[^=!\s][^=]*!?=.*"


def _parse_most(value: object) -> int:
    try:
        return parse_positive(value)
    except BadValueError as error:
        raise BadValueError(f"{error}; jobs that are not to run are held: `dispatcher hold`") from None


def _parse_per(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadValueError("expected the key of entries whose values are limited, such as lang")
    return value


def _parse_where(value: object) -> tuple[str, ...]:
    conditions = parse_words(value)
    wrong = [one for one in conditions if not re.fullmatch(_CONDITION, one, re.DOTALL)]
    if wrong:
        raise PartsError([PartFault("", one, "expected key=value, such as lang=greek") for one in wrong])
    return conditions


MaxRunning: TypeAlias = Annotated[int, number(1, MOST, _parse_most)]


class RunningLimit(msgspec.Struct, frozen=True):
    """At most `max_running` attempts in flight of the jobs that match `where`, for each value of the key `per`."""

    EXAMPLE: ClassVar[str] = "{per: lang, max_running: 2}"

    max_running: Annotated[MaxRunning, Key("how many attempts may be in flight at once, in all pods together")]
    per: Annotated[
        str,
        Value(_parse_per, TEXT),
        Key("a key of entries, each value of which has the limit", default="all matching jobs have it together"),
    ] = ""
    where: Annotated[tuple[str, ...], Value(_parse_where, Words.__metadata__[0].json),
        Key("the jobs that it is for, `lang=greek`, in the words of `--where`; a list is combined with AND",
            default="all jobs"),
    ] = ()  # fmt: skip

    def __post_init__(self) -> None:
        if not self.per and not self.where:
            raise BadValueError("limits nothing: expected per: KEY or where: KEY=VALUE")
