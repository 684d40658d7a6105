"""Conditions on the values of an entry: `include` and `exclude` of a sweep, and the filter `--where`."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.values import identity, text_of
from dispatcher.base.yaml_text import last_value, missing_end, read_value, split_values
from dispatcher.errors import UsageError
from dispatcher.matrix.entry import OWNER

_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "min": lambda value, bound: bool(value >= bound),
    "max": lambda value, bound: bool(value <= bound),
    "above": lambda value, bound: bool(value > bound),
    "below": lambda value, bound: bool(value < bound),
}
_ONE_LETTER: Final = re.compile(r"""\[[\[{("']\]""")
_SPECIAL: Final = re.compile(r"([*?[])")


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
    """Whether `value` meets the condition `expected`, which `check_condition` has accepted."""
    if isinstance(expected, Mapping):
        return all(_bound_holds(word, bound, value) for word, bound in expected.items())
    if isinstance(expected, list):
        return any(holds(one, value) for one in expected)
    if isinstance(expected, str):
        return isinstance(value, str) and fnmatch.fnmatchcase(value, expected)
    return identity(value) == identity(expected)


def _bound_holds(word: str, bound: Any, value: object) -> bool:
    if word == "not":
        return not holds(bound, value)
    return type(value) in (int, float) and _BOUNDS[word](value, bound)


class Condition(msgspec.Struct, frozen=True):
    r"""One `--where key=glob` or `key!=glob`. The pattern may be several globs, such as `greek,hindi`.

    It is split and read as the values of jobs are (`split_values`, `read_value`): commas within brackets or quotes do
    not separate, `lr=1e-3` matches the number, `layers=[2,4]` that list, `note="a, b"` that text, `x=null` what is null
    or missing. `[[]`, `[{]`, `[(]`, `["]` and `[']` are the letters themselves, for text that begins with one.
    """

    key: str
    pattern: str
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.key}{'!=' if self.negated else '='}{self.pattern}"

    def holds(self, value: object) -> bool:
        """Whether the value as text matches one of the globs, or is one of the values.

        A missing value, or null (None), matches only the empty glob, and null.
        """
        globs, match, literals = _globs(self.pattern)
        if value is None:
            matches = "" in globs or None in literals
        else:
            matches = match(text_of(value)) is not None or identity(value) in literals
        return matches is not self.negated


class Where(msgspec.Struct, frozen=True):
    """Several `--where` options, combined with AND.

    The value is a glob over the value as text (`lang=es*`, `seed=42`), or several (`lang=greek,hindi` matches either);
    `key!=value` negates it.
    """

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, options: Iterable[str]) -> Where:
        """Parse the options of a command line.

        UsageError for one that is not `key=value`, and for a value that begins with a bracket, a brace or a quote
        without its other end.
        """
        return cls(tuple(_parse_option(option) for option in options))

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def of_users(self, users: Iterable[str]) -> Where:
        """The same with only jobs of these users (names or globs); all jobs where there are none."""
        patterns = ",".join(users)
        return Where((*self.conditions, _parse_option(f"{OWNER}={patterns}"))) if patterns else self

    def users(self) -> list[str]:
        """The users whose jobs are asked for by name."""
        asked = [one.pattern for one in self.conditions if one.key == OWNER and not one.negated]
        names = [name.strip() for pattern in asked for name in split_values(pattern)]
        return [name for name in names if name and not _SPECIAL.search(name)]

    def first_miss(self, value_of: Callable[[str], object]) -> Condition | None:
        """The first condition that does not hold, or None; `value_of` returns a key's value, None when it has none."""
        return next((one for one in self.conditions if not one.holds(value_of(one.key))), None)

    def holds(self, value_of: Callable[[str], object]) -> bool:
        return self.first_miss(value_of) is None


def literal(value: str) -> str:
    """The pattern that only `value` matches."""
    pattern = _SPECIAL.sub(r"[\1]", value).replace(",", "\\,")
    if pattern[:1].isspace() or pattern.startswith(("{", "(", '"', "'")):
        pattern = f"[{pattern[0]}]{pattern[1:]}"
    return f"{pattern[:-1]}[{pattern[-1]}]" if pattern[-1:].isspace() else pattern


def last_glob(pattern: str) -> str:
    """The last glob of a pattern, as it is written."""
    return last_value(pattern)


@functools.lru_cache(maxsize=256)
def _globs(pattern: str) -> tuple[list[str], Callable[[str], object], frozenset[Hashable]]:
    """The globs of `pattern`, what matches any of them, and the values that its parts are."""
    parts = split_values(pattern)
    globs = list(map(str.strip, parts))
    literals = frozenset(identity(read_value(part)) for part in parts if part.strip())
    return globs, re.compile("|".join(map(fnmatch.translate, globs))).match, literals


def _parse_option(option: str) -> Condition:
    key, equals, pattern = option.partition("=")
    negated = key.endswith("!")
    key = key.removesuffix("!").strip()
    if not equals or not key:
        raise UsageError(f"--where {option}: expected key=value, as in --where lang=spanish or --where 'seed!=4*'")
    for part in map(str.strip, split_values(pattern)):
        if (end := missing_end(part)) and not _ONE_LETTER.match(part):
            first = part[0]
            problem = f"{part} begins with {first} and lacks {end}"
            advice = f"add it, or write [{first}]{part[1:]} for text that begins with {first}"
            raise UsageError(f"--where {option}: {problem}: {advice}")
    return Condition(key, pattern, negated)
