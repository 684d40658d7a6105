"""Pauses: what claiming is stopped for, and which jobs that holds up. Pure.

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
from typing import Any, Final

import msgspec

from dispatcher.base.values import text_of
from dispatcher.base.yaml_text import split_values
from dispatcher.matrix.entry import Entry
from dispatcher.run_state.events import Paused

_HOST: Final = "host:"
# Keys that do not change what a job computes, or that no two jobs have in common.
_ASIDE: Final = frozenset({"job_id", "method", "needs", "priority", "retries", "retry_on", "queue_limit"})
# A longer value is cut in the name of a scope.
_LONGEST_VALUE: Final = 40


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
