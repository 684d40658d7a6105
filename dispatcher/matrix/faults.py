"""The faults of a sweep file or a study, collected so that all of them are listed at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dispatcher.base.values import shown
from dispatcher.errors import nearest

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
