"""The faults of a sweep file or a study, collected so that all of them are listed at once; values that are respelt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dispatcher.base.values import shown, text_of
from dispatcher.base.yaml_text import lost_forms
from dispatcher.errors import nearest
from dispatcher.matrix.entry import RESERVED

# Keys that the expansion of a sweep sets.
_MADE: Final = frozenset({"job_id", "draw"})


class Faults(list[str]):
    """The faults found so far; each begins with its place in the sweep file."""

    def mapping(self, document: Mapping[Any, Any], key: str, place: str) -> dict[str, Any]:
        """The mapping under `key`; empty when it is missing or is not a mapping."""
        value = document.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            self.append(
                f"{place}{key} = {shown(value)}: expected names and their values (quote names that are numbers)"
            )
            return {}
        return dict(value)

    def keys(self, document: Mapping[Any, Any], known: tuple[str, ...], place: str) -> None:
        for key in document:
            if key not in known:
                self.append(f"{place}{key}: unknown key{nearest(str(key), known)}")

    def made_names(self, keys: Iterable[str], place: str, made: frozenset[str] = _MADE) -> None:
        """Refuse keys that the expansion sets itself: they would be overwritten or lost."""
        self.extend(f"{place}{key}: is set by the expansion: choose another name" for key in keys if key in made)


def respelt(document: bytes) -> Iterator[str]:
    """A line for each parameter of a valid sweep file or study with values that jobs get in another spelling."""
    forms: dict[str, dict[tuple[str, str], int]] = {}
    for lost in lost_forms(document.decode("utf-8-sig")):
        key = _parameter(lost.path)
        if key and key not in RESERVED:
            forms.setdefault(key, {}).setdefault((lost.written, text_of(lost.value)), lost.line)
    for key, lines in forms.items():
        ((written, text), line), *others = lines.items()
        more = f" (and {len(others)} more)" if others else ""
        advice = f'write "{written}" to keep its spelling, or {text}'
        yield f"{key}: {written} in line {line} is read as {text}{more}: {advice}"


def _parameter(path: tuple[str | int, ...]) -> str:
    """The parameter that a value of a sweep file or a study belongs to; empty for bounds, conditions and the like."""
    words = [word for word in path if isinstance(word, str)]
    for place, word in enumerate(words):
        if word in ("defaults", "grid", "zip"):
            return words[place + 1] if place + 1 < len(words) else ""
        if word == "choice" and place:
            return words[place - 1]
    return ""
