"""A job's configuration: one nested document, from which the typed dataclasses of jobs and models are built.

A document (nested dicts, as in YAML) is made by `defaults`, `merge` and `parse_overrides`. `check` validates it against
all dataclasses of a job, and `configure` builds one dataclass from the configuration in force:

    with configuration({"training": {"lr": 1e-4, "steps": 100}}):
        training = configure(Training)

Every ConfigError lists all faults at once, each with its path, the value and what was expected.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING
from typing import Any, TypeVar

from dispatcher.base import yaml_text
from dispatcher.base.schema.faults import lines_of
from dispatcher.base.schema.reading import convert
from dispatcher.base.values import BadValueError, shown
from dispatcher.errors import ConfigError
from dispatcher.runtime.config_tree import Config, assigned, live_document, to_dict
from dispatcher.runtime.places import REQUIRED, Place, field, is_group, layout, nearest_path, places_of

__all__ = [
    "REQUIRED",
    "Config",
    "assigned",
    "check",
    "checked",
    "configuration",
    "configure",
    "current_config",
    "defaults",
    "field",
    "merge",
    "parse_overrides",
    "to_dict",
    "unknown_values",
    "with_new_names",
]

T = TypeVar("T")
Document = Mapping[str, Any]

_current: ContextVar[Config | None] = ContextVar("configuration", default=None)


@contextmanager
def configuration(config: Config | Document) -> Iterator[Config]:
    """Put `config` in force for `configure` and `current_config` inside the block; later assignments apply too."""
    tree = config if isinstance(config, Config) else Config(config)
    token = _current.set(tree)
    try:
        yield tree
    finally:
        _current.reset(token)


def current_config() -> Config | None:
    """The configuration in force; None outside a `configuration` block."""
    return _current.get()


def configure(cls: type[T], config: Config | Document | None = None) -> T:
    """An instance of the dataclass `cls` from `config`, or from the configuration in force.

    Keys of other dataclasses are ignored. ConfigError lists every value that is missing or has a wrong type.
    """
    source = config if config is not None else _current.get()
    if source is None:
        raise ConfigError(f"no configuration in force for {cls.__qualname__}: use `with configuration(...):`")
    faults: list[str] = []
    made = _build(cls, live_document(source) if isinstance(source, Config) else source, (), faults)
    if faults:
        raise ConfigError.of(cls.__qualname__, faults)
    assert made is not None
    return made


def defaults(*classes: type) -> dict[str, Any]:
    """A document with every key of `classes` and its default; `...` marks required values."""
    document: dict[str, Any] = {}
    for place in layout(*classes).values():
        *groups, key = place.path.split(".")
        here = document
        for group in groups:
            here = here.setdefault(group, {})
        here[key] = copy.deepcopy(place.default)
    return document


def check(
    document: Config | Document,
    *classes: type,
    where: str = "configuration",
    complete: bool = True,
    known: Config | Document | None = None,
) -> None:
    """Raise a ConfigError, headed by `where`, that lists unknown keys, wrong types and missing values.

    Unless `complete`, required values may be missing. The keys of `known` (a checkpoint's configuration, say) are
    accepted as well, with any values.
    """
    places = layout(*classes)
    faults: list[str] = []
    values = dict(_leaves(to_dict(document), places, (), faults))
    also = dict(_leaves(to_dict(known), places, (), [])) if known is not None else {}
    for path, value in values.items():
        if path in places:
            faults += _value_faults(places[path], value)
        elif path not in also:
            faults.append(f"{path} = {shown(value)}: unknown key{nearest_path(path, [*places, *also])}")
    for path, place in places.items():
        if complete and place.required and path not in values:
            faults.append(f"{path}: required, but not set: expected {place.expected}")
    if faults:
        raise ConfigError.of(where, faults)


def checked(
    classes: Iterable[type], *layers: Config | Document, where: str = "configuration", complete: bool = True
) -> Config:
    """The defaults of `classes` with `layers` merged over them, later ones last, and checked as `check` does."""
    kinds = tuple(classes)
    document: Document = defaults(*kinds)
    for layer in layers:
        document = merge(document, with_new_names(layer, *kinds))
    check(document, *kinds, where=where, complete=complete)
    return Config(document, layout(*kinds))


def merge(base: Config | Document, over: Config | Document) -> dict[str, Any]:
    """A new document: the values of `over` replace those of `base`; groups are merged by key, lists are replaced."""
    merged = to_dict(base)
    _merge_into(merged, to_dict(over))
    return merged


def with_new_names(document: Config | Document, *classes: type) -> dict[str, Any]:
    """A copy of `document` in which values at the former places of fields of `classes` (`renamed_from`) have moved.

    ConfigError when there is a value at both the old and the new place.
    """
    moved = to_dict(document)
    faults = []
    for place in layout(*classes).values():
        for old in place.renamed_from:
            value = _lookup(moved, tuple(old.split(".")))
            if value is MISSING:
                continue
            if _lookup(moved, tuple(place.path.split("."))) is not MISSING:
                faults.append(f"{old} = {shown(value)}: was renamed to {place.path}, which is set as well")
                continue
            moved = _merge_at(_without(moved, old.split(".")), place.path.split("."), value)
    if faults:
        raise ConfigError.of("configuration", faults)
    return moved


def unknown_values(document: Config | Document, *classes: type) -> dict[str, Any]:
    """The values of `document` that no field of `classes` reads, by dotted path."""
    places = layout(*classes)
    return {path: value for path, value in _leaves(to_dict(document), places, (), []) if path not in places}


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """The document of overrides such as `training.lr=1e-4 model.layers=[1, 2]`; values are YAML.

    ConfigError lists every word that is not an override, and every key that is set twice.
    """
    document: dict[str, Any] = {}
    faults: list[str] = []
    for word in words:
        path, equals, text = word.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            faults.append(f"{word!r}: expected a key and a value such as training.lr=1e-4")
            continue
        try:
            value = yaml_text.load_scalar(text)
        except ValueError as error:
            faults.append(f"{path} = {text!r}: cannot be read as YAML: {error}")
            continue
        if not place_value(document, keys, value):
            faults.append(f"{word!r}: conflicts with another override of {path}")
    if faults:
        raise ConfigError.of("overrides", faults)
    return document


def place_value(document: dict[str, Any], keys: list[str], value: Any) -> bool:
    """Set `value` at the path `keys` of `document`; False if there is a value already."""
    here = document
    for key in keys[:-1]:
        here = here.setdefault(key, {})
        if not isinstance(here, dict):
            return False
    if keys[-1] in here:
        return False
    here[keys[-1]] = value
    return True


def _merge_at(document: dict[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    inner: Any = value
    for key in reversed(keys):
        inner = {key: inner}
    return merge(document, inner)


def _without(document: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    """`document` without the value at a path, and without groups that become empty."""
    key, *below = keys
    rest = {name: value for name, value in document.items() if name != key}
    if below and (group := _without(document[key], below)):
        return {name: group if name == key else rest[name] for name in document}
    return rest


def _merge_into(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        here = base.get(key)
        if isinstance(here, dict) and isinstance(value, Mapping):
            _merge_into(here, value)
        elif not (key in base and isinstance(value, str) and value == REQUIRED):
            base[key] = value


def _leaves(
    document: Mapping[Any, Any], places: Mapping[str, Place], above: tuple[str, ...], faults: list[str]
) -> Iterator[tuple[str, Any]]:
    """The values of `document` by path; below known places a value is not split, and placeholders are left out."""
    for key, value in document.items():
        path = ".".join((*above, str(key)))
        if not isinstance(key, str):
            faults.append(f"{path}: the key {shown(key)} is not text: put it in quotes")
        elif path in places:
            if not (isinstance(value, str) and value == REQUIRED):
                yield path, value
        elif isinstance(value, Mapping) and value:
            yield from _leaves(value, places, (*above, key), faults)
        elif inside := [other for other in places if other.startswith(f"{path}.")]:
            # `training:` with all its keys commented out is an empty group.
            if value is not None and value != {}:
                faults.append(f"{path} = {shown(value)}: expected a group of keys such as {inside[0]}")
        else:
            yield path, value


def _value_faults(place: Place, value: Any) -> list[str]:
    for kind in place.kinds:
        try:
            convert(kind, value)
        except BadValueError as error:
            return lines_of(error, value, place.path)
    return []


def _build(cls: type[T], document: Document, above: tuple[str, ...], faults: list[str]) -> T | None:
    """An instance of `cls`; None if it cannot be made, with the reasons added to `faults`."""
    before = len(faults)
    values: dict[str, Any] = {}
    for member, place, kind in places_of(cls):
        path = above + (place or ())
        if is_group(kind):
            values[member.name] = _build(kind, document, path, faults)
        elif place is not None:
            found = _lookup(document, path)
            if found is MISSING:
                if member.default is MISSING and member.default_factory is MISSING:
                    faults.append(f"{'.'.join(path)}: required, but not set")
                continue
            try:
                values[member.name] = convert(kind, copy.deepcopy(found))
            except BadValueError as error:
                faults += lines_of(error, found, ".".join(path))
    return cls(**values) if len(faults) == before else None


def _lookup(document: Document, path: tuple[str, ...]) -> Any:
    here: Any = document
    for key in path:
        if not isinstance(here, Mapping) or key not in here:
            return MISSING
        here = here[key]
    return MISSING if isinstance(here, str) and here == REQUIRED else here
