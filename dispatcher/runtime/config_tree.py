"""A configuration with attribute access: `config.training.lr = 1e-4` is checked on assignment."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from dispatcher.base.schema.faults import lines_of
from dispatcher.base.schema.reading import convert
from dispatcher.base.schema.types import plain
from dispatcher.base.values import BadValueError, shown
from dispatcher.errors import ConfigError
from dispatcher.runtime.places import REQUIRED, Place, nearest_path


class Config:
    """A nested configuration, or a group of one, with access by attribute and by key.

    With `places`, assigning an unknown path, a value of a wrong type or a whole group is a ConfigError; without them
    every assignment is allowed. Groups are views of the whole. There are no public methods, so that every name can be a
    key; `to_dict` and `merge` take a Config.
    """

    __slots__ = ("_assigned", "_document", "_path", "_places")

    def __init__(self, document: Mapping[str, Any], places: Mapping[str, Place] | None = None) -> None:
        _fill(self, copy.deepcopy(dict(document)), places, (), {})

    def __getitem__(self, key: str) -> Any:
        path = (*self._path, key)
        dotted = ".".join(path)
        if key not in self._document:
            raise KeyError(f"{dotted}: no such key{nearest_path(dotted, _known(self))}")
        value = self._document[key]
        if isinstance(value, dict) and (self._places is None or dotted not in self._places):
            group = Config.__new__(Config)
            _fill(group, value, self._places, path, self._assigned)
            return group
        if isinstance(value, str) and value == REQUIRED:
            raise KeyError(f"{dotted}: required, but not set")
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        dotted = ".".join((*self._path, key))
        value = plain(to_dict(value) if isinstance(value, Config) else value)
        if self._places is not None:
            _check_assignment(self._places, dotted, value)
        self._document[key] = copy.deepcopy(value)
        self._assigned[(*self._path, key)] = copy.deepcopy(value)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            # copy and pickle look these up before the document is set.
            raise AttributeError(key)
        try:
            return self[key]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def __setattr__(self, key: str, value: Any) -> None:
        self[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self._document

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)

    def __eq__(self, other: object) -> bool:
        return to_dict(self) == (to_dict(other) if isinstance(other, Config) else other)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __dir__(self) -> list[str]:
        return [key for key in self._document if isinstance(key, str)]

    def __repr__(self) -> str:
        from dispatcher.base import yaml_text

        return yaml_text.dump(self._document).rstrip("\n")

    def __deepcopy__(self, memo: dict[int, Any]) -> Config:
        twin = Config.__new__(Config)
        _fill(twin, copy.deepcopy(self._document), self._places, self._path, copy.deepcopy(self._assigned))
        return twin


def to_dict(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the whole configuration as nested dicts."""
    document = config._document if isinstance(config, Config) else config
    return copy.deepcopy(dict(document))


def live_document(config: Config) -> Mapping[str, Any]:
    """The document itself, not a copy: for immediate reading only."""
    document: Mapping[str, Any] = config._document
    return document


def assigned(config: Config) -> dict[str, Any]:
    """The values that were assigned since the Config was made, as nested dicts."""
    document: dict[str, Any] = {}
    for path, value in config._assigned.items():
        here = document
        for key in path[:-1]:
            here = here.setdefault(key, {})
        here[path[-1]] = copy.deepcopy(value)
    return document


def _fill(config: Config, document: Any, places: Any, path: tuple[str, ...], assigned: Any) -> None:
    """Set the slots of a Config; a group shares the document and the assignments of the whole."""
    for slot, value in (("_document", document), ("_places", places), ("_path", path), ("_assigned", assigned)):
        object.__setattr__(config, slot, value)


def _known(config: Config) -> list[str]:
    if config._places is not None:
        return list(config._places)
    return [".".join((*config._path, key)) for key in config._document]


def _check_assignment(places: Mapping[str, Place], dotted: str, value: Any) -> None:
    place = places.get(dotted)
    if place is None:
        inside = [path for path in places if path.startswith(f"{dotted}.")]
        if inside:
            raise ConfigError(f"{dotted} is a group: set its values one by one, such as {inside[0]}")
        raise ConfigError(f"{dotted} = {shown(value)}: unknown key{nearest_path(dotted, places)}")
    for kind in place.kinds:
        try:
            convert(kind, value)
        except BadValueError as error:
            raise ConfigError("\n".join(lines_of(error, value, dotted))) from None
