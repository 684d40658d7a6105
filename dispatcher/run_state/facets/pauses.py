"""Pauses: what claiming is stopped for, which jobs that holds up, and the failures that may pause more. Pure.

A scope names a pause, and `dispatcher unpause SCOPE` ends it:

    fft                     a method
    fft:lr=1.0,opt=sgd      the jobs of a method with these values; `opt=` are those without that key
    gpu:node1:3             a GPU of a host
    host:node1              a host
    host:node1:fft          a method on a host
"""

from __future__ import annotations

import json
import shlex
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from dispatcher.base.values import text_of
from dispatcher.base.yaml_text import split_values
from dispatcher.matrix.entry import Entry
from dispatcher.run_state.events import Blame, Event, Note
from dispatcher.run_state.facets.facet import ByName, News, Repeated
from dispatcher.run_state.journal import Line
from dispatcher.run_state.records import Records
from dispatcher.topics import Topic

_HOST: Final = "host:"
# Keys that do not change what a job computes, or that no two jobs have in common.
_ASIDE: Final = frozenset({"job_id", "method", "needs", "priority", "retries", "retry_on", "queue_limit"})
# A longer value is cut in the name of a scope.
_LONGEST_VALUE: Final = 40
# How many failed jobs of a method, a GPU or a host are remembered, for the circuit breaker.
_MOST_REMEMBERED: Final = 1_000


class Paused(Note, frozen=True, kw_only=True, omit_defaults=True):
    """Claiming within `scope` is paused because of `why`. See Pause."""

    event = Event.PAUSED
    scope: str
    why: str = ""
    values: Mapping[str, str | None] = {}
    until_success: bool = False


class Unpaused(Note, frozen=True, kw_only=True, omit_defaults=True):
    """Claiming within `scope` continues; `why`, where no person has asked for it."""

    event = Event.UNPAUSED
    scope: str
    why: str = ""


class Streak(msgspec.Struct, frozen=True):
    """Jobs that have failed within a scope, oldest first, each once, and the method of each.

    Of a method: those since it was last unpaused; on a GPU or a host: those in a row. `reason` and `error` are those of
    the last failure, word for word.
    """

    jobs: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    reason: str = ""
    error: str | None = None


class StreakSoFar(Note, frozen=True, kw_only=True, omit_defaults=True):
    event = Event.STREAK
    scope: str
    streak: Streak


class Pause(msgspec.Struct, frozen=True):
    """Claiming within `scope` is paused. `values`: only for jobs with these; None: without that key.

    `until_success`: a job within the scope that succeeds ends the pause.
    """

    scope: str
    why: str
    at: str
    values: Mapping[str, str | None] = {}
    until_success: bool = False

    def covers(self, entry: Entry) -> bool:
        """Whether the pause is one of the entry's method, and for its values."""
        if self.scope.partition(":")[0] != entry.method or _is_of_place(self.scope, self.values):
            return False
        return all(value_text(entry, key) == text for key, text in self.values.items())


class Pauses(ByName[Pause]):
    """By scope. `streaks` are the failures that may pause a scope, also by scope."""

    events: ClassVar = frozenset(
        {
            Event.PAUSED, Event.UNPAUSED, Event.STREAK,
            # Ends of attempts that count for or against their method, GPU or host.
            Event.DONE, Event.FAILED, Event.RETRIED, Event.AUTO_REQUEUED,
        }
    )  # fmt: skip
    form: ClassVar = tuple[dict[str, Pause], dict[str, Streak]]

    def __init__(self, pauses: Mapping[str, Pause] = {}, streaks: Mapping[str, Streak] = {}) -> None:
        super().__init__(pauses)
        self.streaks = dict(streaks)

    def apply(self, line: Line) -> Pauses:
        if line.event is Event.PAUSED:
            paused = line.read(Paused)
            self[paused.scope] = begun(paused, line.at)
        elif line.event is Event.UNPAUSED:
            self._end(line.read(Unpaused))
        elif line.event is Event.STREAK:
            before = line.read(StreakSoFar)
            self.streaks[before.scope] = before.streak
        elif line.data:
            self._count(line, line.read(Blame))
        return self

    def copy(self) -> Pauses:
        return Pauses(self, self.streaks)

    def lines(self, records: Records) -> Iterator[Repeated]:
        for one in self.values():
            paused = Paused(scope=one.scope, why=one.why, values=one.values, until_success=one.until_success)
            yield Repeated(paused, at=one.at)
        for scope, streak in self.streaks.items():
            yield Repeated(StreakSoFar(scope=scope, streak=streak))

    def dump(self) -> Any:
        return dict(self), self.streaks

    @classmethod
    def load(cls, dumped: Any) -> Pauses:
        return cls(*dumped)

    def _end(self, unpaused: Unpaused) -> None:
        ended = self.pop(unpaused.scope, None)
        if not unpaused.why:
            # What had failed before a person asked for it is no reason to pause it again.
            self.streaks.pop(evidence_scope(unpaused.scope, {} if ended is None else ended.values), None)

    def _count(self, line: Line, blame: Blame) -> None:
        """Count the end of an attempt for its method, its GPU and its host, as far as it says something about them."""
        if blame.method and line.event is Event.FAILED:
            self._add_failure(blame.method, line, blame)
        if blame.gpu and line.event is Event.FAILED:
            self._add_failure(blame.gpu, line, blame)
        elif blame.gpu and line.event is Event.DONE:
            self.streaks.pop(blame.gpu, None)
        if blame.host and blame.suspect:
            self._add_failure(blame.host, line, blame)
        elif blame.host:
            self.streaks.pop(blame.host, None)

    def _add_failure(self, scope: str, line: Line, blame: Blame) -> None:
        old, job = self.streaks.get(scope, Streak()), str(line.job)
        before = [pair for pair in zip(old.jobs, old.methods, strict=True) if pair[0] != job]
        jobs, methods = zip(*before[1 - _MOST_REMEMBERED :], (job, blame.method or ""), strict=True)
        self.streaks[scope] = Streak(jobs, methods, str(line.set.get("reason")), line.set.get("error"))


def news(line: Line) -> News | None:
    """None where a person has paused something: that one knows."""
    if "@" in line.by:
        return None
    paused = line.read(Paused)
    return News(Topic.METHOD_PAUSED, paused.scope, f"{paused.scope} is paused: {paused.why}")


def begun(paused: Paused, at: str) -> Pause:
    """The pause that a line of the journal begins."""
    return Pause(paused.scope, paused.why, at, paused.values, paused.until_success)


def _is_of_place(scope: str, values: Mapping[str, str | None]) -> bool:
    """Whether the scope is a host or a GPU, and not a method."""
    return ":" in scope and not values


def host_scope(host: str, method: str = "") -> str:
    """The scope of all claims on a host, or of those of one method."""
    return f"{_HOST}{host}:{method}" if method else f"{_HOST}{host}"


def gpu_scope(host: str, index: int | str) -> str:
    """The scope in which claims on one GPU of a host are paused."""
    return f"gpu:{host}:{index}"


def method_scope(method: str, values: Mapping[str, str | None]) -> str:
    """The scope of the jobs of a method with these values; of all where there are none."""
    return f"{method}:{','.join(f'{key}={_name(text)}' for key, text in values.items())}" if values else method


def parse_values(scope: str) -> dict[str, str | None]:
    """The values of a scope such as `fft:lr=1.0,opt=sgd`; none where a part is not `key=value`."""
    parts = [part.partition("=") for part in split_values(scope.partition(":")[2])]
    if not all(key and equals for key, equals, _ in parts):
        return {}
    return {key: text.replace("\\,", ",") or None for key, _, text in parts}


def evidence_scope(scope: str, values: Mapping[str, str | None]) -> str:
    """Under which scope the failures are counted that may pause `scope`."""
    if not _is_of_place(scope, values):
        return scope.partition(":")[0]
    return ":".join(scope.split(":")[:2]) if scope.startswith(_HOST) else scope


def pause_of_method(pauses: Mapping[str, Pause], entry: Entry) -> Pause | None:
    """The pause that holds the entry up wherever it would run."""
    whole = pauses.get(entry.method)
    return whole or next((pause for pause in pauses.values() if pause.values and pause.covers(entry)), None)


def pause_of_host(pauses: Mapping[str, Pause], host: str, method: str) -> Pause | None:
    """The pause that holds up entries of a method on a host."""
    return pauses.get(host_scope(host)) or pauses.get(host_scope(host, method))


def unpause_command(scope: str) -> str:
    """The command that ends a pause."""
    return f"dispatcher unpause {shlex.quote(scope)}"


def values_of(entry: Entry) -> dict[str, str]:
    """What distinguishes the entry from others of its method, as text; of nested values each by itself (`a.b`)."""
    return dict(_flat("", {key: value for key, value in entry.document().items() if key not in _ASIDE}))


def keys_of(entry: Entry) -> Iterator[str]:
    """The keys of the entry whose values are among `values_of`, also those of nested values."""
    return (key for key, value in entry.document().items() if key not in _ASIDE and value is not None)


def value_text(entry: Entry, key: str) -> str | None:
    """One of `values_of`; None when the entry does not have it."""
    value = _at(entry.value(key), entry.value, key)
    return None if value is None else _text(value)


def _at(value: Any, value_of: Any, key: str) -> Any:
    """`value`, or what is below the first part of a key with a dot."""
    first, dot, rest = key.partition(".")
    if value is not None or not dot:
        return value
    inner = value_of(first)
    return _at(inner.get(rest), inner.get, rest) if isinstance(inner, Mapping) else None


def _flat(place: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(f"{place}{key}.", value)
        elif value is not None:
            yield f"{place}{key}", _text(value)


def _text(value: object) -> str:
    """As `text_of`, which takes several times as long for numbers: thousands of entries are compared."""
    return repr(value) if type(value) in (int, float) else text_of(value)


def _name(text: str | None) -> str:
    """A value as the name of a scope has it: in one line, and short."""
    if text is None:
        return ""
    if not text.isprintable():
        text = json.dumps(text)[1:-1]
    if len(text) > _LONGEST_VALUE:
        text = f"{text[: _LONGEST_VALUE - 9]}~{zlib.crc32(text.encode(errors='surrogatepass')):08x}"
    return text if text[:1] in ("[", "{") else text.replace(",", "\\,")
