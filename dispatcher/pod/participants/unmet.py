"""Options that choose jobs and match none: a pod with these idles, and a misspelt word is the usual cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dispatcher.base.values import text_of
from dispatcher.errors import nearest
from dispatcher.matrix.condition import Condition
from dispatcher.matrix.entry import Entry
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.participant import Participant, Shared

# Of more different values than these none is suggested.
_MOST_VALUES: Final = 1_000


class UnmetOptions(Participant):
    """`warnings` are about --methods and --where, as far as they match no job of the manifest that was read last."""

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self.warnings: list[str] = []
        self._methods = shared.options.methods
        self._where = shared.options.where
        self._log = shared.log
        self._backlog = backlog
        self._has_opened = False

    def opening_lines(self) -> list[str]:
        return self.warnings

    def follow_entries(self, *, is_new: bool) -> None:
        """The first line of a pod comes before its warnings, which are among its `opening_lines`."""
        manifest = self._backlog.manifest
        news = self.check(manifest.name, manifest.entries) if is_new else []
        for warning in news if self._has_opened else ():
            self._log(warning)
        self._has_opened = True

    def check(self, manifest: str, entries: Mapping[str, Entry]) -> list[str]:
        """Look at the entries of a new manifest of this name; returns the warnings that the one before did not get."""
        before = self.warnings
        self.warnings = [f"warning: {text}" for text in self._find(manifest, entries)]
        return [text for text in self.warnings if text not in before]

    def _find(self, manifest: str, entries: Mapping[str, Entry]) -> list[str]:
        found = self._unknown_methods(manifest, entries)
        for condition in self._where.conditions:
            found += _unmet(condition, manifest, entries.values())
        has_several = len(self._where.conditions) + bool(self._methods) > 1
        if not found and has_several and entries and not any(map(self._chooses, entries.values())):
            found = [f"no job of {manifest} matches all of {self._options()}"]
        return found

    def _chooses(self, entry: Entry) -> bool:
        return (not self._methods or entry.method in self._methods) and self._where.holds(entry.value)

    def _unknown_methods(self, manifest: str, entries: Mapping[str, Entry]) -> list[str]:
        known = {entry.method for entry in entries.values()} if self._methods else set[str]()
        unknown = ", ".join(f"{method!r}{nearest(method, known)}" for method in self._methods if method not in known)
        return [f"--methods: {manifest} has no jobs of {unknown}"] if unknown else []

    def _options(self) -> str:
        methods = [f"--methods {','.join(self._methods)}"] if self._methods else []
        return " and ".join([*methods, *(f"--where {one}" for one in self._where.conditions)])


def _unmet(condition: Condition, manifest: str, entries: Iterable[Entry]) -> list[str]:
    """What is wrong with a condition that no entry meets, or whose key no entry has; nothing for any other."""
    key, values, keys = condition.key, set[str](), set[str]()
    is_met = False
    for entry in entries:
        value = entry.value(key)
        if condition.holds(value):
            if value is not None:
                return []
            is_met = True
        if value is None:
            keys.update(entry.params)
        elif len(values) <= _MOST_VALUES:
            values.add(text_of(value))
    if not values:
        return [f"--where: no job of {manifest} has a value for {key!r}{nearest(key, keys)}"]
    if is_met:
        return []
    meant = "" if condition.negated or len(values) > _MOST_VALUES else nearest(condition.pattern, sorted(values))
    return [f"--where {condition}: no job of {manifest} matches{meant}"]
