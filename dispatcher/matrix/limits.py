"""Which limits of dispatcher.yaml an entry counts in. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dispatcher.base.running_limits import RunningLimit
from dispatcher.base.values import text_of
from dispatcher.config import Config
from dispatcher.errors import ConfigError, UsageError, nearest
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import OWNER, Entry

_METHOD: Final = "method"


class Group(NamedTuple):
    """Jobs of which at most `most` attempts may be in flight at once. `name` is what messages call them."""

    name: str
    most: int


class Limits:
    """The limits of a workspace. Raises ConfigError for a condition that cannot be read."""

    def __init__(self, limits: Iterable[RunningLimit] = (), of_methods: Mapping[str, int] | None = None) -> None:
        self._of_methods = {method: (Group(method, most),) for method, most in (of_methods or {}).items()}
        self._limits = [(limit, _conditions(limit)) for limit in limits]

    @classmethod
    def of(cls, config: Config) -> Limits:
        methods = config.methods.values()
        of_methods = {method.name: method.max_running for method in methods if method.max_running is not None}
        return cls(config.limits, of_methods)

    def __bool__(self) -> bool:
        return bool(self._limits or self._of_methods)

    def groups(self, entry: Entry) -> tuple[Group, ...]:
        """The groups that the attempts of an entry count in."""
        found = self._of_methods.get(entry.method, ())
        for limit, where in self._limits:
            value = entry.value(limit.per) if limit.per else None
            if (value is not None or not limit.per) and where.holds(entry.value):
                found = (*found, Group(_name(limit, value), limit.max_running))
        return found

    @property
    def by_values(self) -> bool:
        """Whether values of entries decide, and not their method alone."""
        return any(limit.per != _METHOD or limit.where for limit, _ in self._limits)

    def unknown(self, entries: Iterable[Entry]) -> list[str]:
        """What is wrong with limits on keys that no entry has."""
        keys = dict.fromkeys(key for limit, _ in self._limits for key in _keys_of(limit))
        if not keys:
            return []
        missing, known = set(keys), {_METHOD, OWNER}
        has_entries = False
        for entry in entries:
            missing = {key for key in missing if not entry.has(key)}
            if not missing:
                return []
            known.update(entry.params)
            has_entries = True
        return [
            f"limits of dispatcher.yaml: no job has a value for {key!r}{nearest(key, sorted(known))}"
            for key in keys
            if key in missing and has_entries
        ]


def _conditions(limit: RunningLimit) -> Where:
    try:
        return Where.parse(limit.where)
    except UsageError as error:
        raise ConfigError(f"dispatcher.yaml: limits: {str(error).removeprefix('--')}") from None


def _keys_of(limit: RunningLimit) -> list[str]:
    return [*filter(None, [limit.per]), *(condition.key for condition in _conditions(limit).conditions)]


def _name(limit: RunningLimit, value: object) -> str:
    named = f"{limit.per}={text_of(value)}" if limit.per else ""
    conditions = " and ".join(limit.where)
    return f"{named} ({conditions})" if named and conditions else named or conditions
