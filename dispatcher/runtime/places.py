"""The places of dataclass fields in a job's configuration.

    @dataclass(frozen=True)
    class Training:
        lr: float = field("training/lr", default=1e-3)
        steps: int = field("training/steps")            # required
        max_grad_norm: float | None = field("training/max_grad_norm", default=None)

Several dataclasses share one configuration: two fields with the same place share a value, which must have both types.
A field that is itself a dataclass contributes its own places, below its place if it has one.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import lru_cache
from typing import Any, Final

from dispatcher.base.schema.types import expected, plain
from dispatcher.errors import nearest

# Marks a required value in a configuration file, as `...` does in a training template.
REQUIRED: Final = "..."

# Keys of a job file that are not part of the configuration.
RESERVED: Final = ("job", "request")

_KEY: Final = "dispatcher place"
_RENAMED_FROM: Final = "dispatcher former places"
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Place:
    """One value of a configuration: its dotted path, the types that it must have, and its default as in YAML.

    `renamed_from` are its former dotted paths.
    """

    path: str
    kinds: tuple[Any, ...]
    default: Any
    renamed_from: tuple[str, ...] = ()

    @property
    def required(self) -> bool:
        return isinstance(self.default, str) and self.default == REQUIRED

    @property
    def expected(self) -> str:
        # "a path" and "a path or null" together mean a path.
        kinds = [kind for kind in self.kinds if not any(narrow in typing.get_args(kind) for narrow in self.kinds)]
        return " and ".join(dict.fromkeys(map(expected, kinds)))


def field(
    place: str,
    *,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | Any = MISSING,
    renamed_from: str | Sequence[str] = (),
    **options: Any,
) -> Any:
    """A dataclass field with the place `place` (`training/lr`) in the configuration; required without a default.

    `renamed_from` is its former place, or several: older configurations can still be read. `options` are those of
    `dataclasses.field`. The field is keyword-only unless `kw_only=False`.
    """
    # So that required fields may follow those with a default, also in a subclass.
    options.setdefault("kw_only", True)
    earlier = tuple(_words(each) for each in ((renamed_from,) if isinstance(renamed_from, str) else renamed_from))
    metadata = {**options.pop("metadata", {}), _KEY: _words(place), _RENAMED_FROM: earlier}
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata, **options)


@lru_cache(maxsize=256)
def layout(*classes: type) -> Mapping[str, Place]:
    """All places of `classes`, in order; TypeError for dataclasses that cannot share a configuration.

    A place whose fields have different defaults is required.
    """
    found: dict[str, Place] = {}
    for cls in classes:
        for path, kind, default, former in _fields(cls, ()):
            dotted = ".".join(path)
            before = found.get(dotted)
            if path[0] in RESERVED:
                raise TypeError(
                    f"{cls.__qualname__}: {dotted!r} cannot be a place: {path[0]!r} is a reserved key of job files"
                )
            if before is None:
                found[dotted] = Place(dotted, (kind,), default, former)
            else:
                kinds = before.kinds if kind in before.kinds else (*before.kinds, kind)
                same = before.default == default and type(before.default) is type(default)
                earlier = tuple(dict.fromkeys((*before.renamed_from, *former)))
                found[dotted] = Place(dotted, kinds, default if same else REQUIRED, earlier)
    for above in found:
        inside = next((other for other in found if other.startswith(f"{above}.")), None)
        if inside:
            raise TypeError(f"{above!r} is the place of a value, so {inside!r} cannot be below it")
    for place in found.values():
        if taken := [each for each in place.renamed_from if each in found]:
            raise TypeError(f"{place.path!r} is renamed from {taken[0]!r}, which is the place of another field")
    return found


def places_of(cls: type) -> Iterator[tuple[dataclasses.Field[Any], tuple[str, ...] | None, Any]]:
    """The constructor's fields of a dataclass, each with its place (or None) and its type."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"{cls!r} is not a dataclass: config() of a job returns dataclasses, not instances")
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        raise TypeError(f"{cls.__qualname__}: a field's type cannot be found: {error}") from None
    for member in dataclasses.fields(cls):
        if member.init:
            yield member, member.metadata.get(_KEY), hints[member.name]


def is_group(kind: Any) -> bool:
    """Whether a field of this type has places of its own."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def nearest_path(path: str, known: Iterable[str]) -> str:
    """As `errors.nearest`, for dotted paths: a similar key of the same group, else the same key of another group."""
    group, _, key = path.rpartition(".")
    paths = list(known)
    beside = {other.rpartition(".")[2]: other for other in paths if other.rpartition(".")[0] == group}
    like = [beside[word] for word in difflib.get_close_matches(key, beside, n=1, cutoff=0.6)]
    like = like or [other for other in paths if other.rpartition(".")[2] == key]
    if like:
        return f" (did you mean {like[0]!r}?)"
    # All paths of a group resemble each other: list its keys instead.
    return nearest("", beside.values()) if beside else nearest(path, paths)


def _words(place: str) -> tuple[str, ...]:
    words = tuple(place.split("/"))
    for word in words:
        if not _WORD.fullmatch(word):
            raise TypeError(f"field({place!r}): {word!r}: expected letters, digits, '_' and '-', as in 'training/lr'")
    return words


def _fields(cls: type, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any, tuple[str, ...]]]:
    for member, place, kind in places_of(cls):
        if is_group(kind):
            yield from _fields(kind, above + (place or ()))
        elif place is not None:
            try:
                expected(kind)
            except TypeError as error:
                raise TypeError(f"{cls.__qualname__}.{member.name}: {error}") from None
            former = tuple(".".join(above + each) for each in member.metadata[_RENAMED_FROM])
            yield above + place, kind, _default(member), former
        elif member.default is MISSING and member.default_factory is MISSING:
            where = f"field({'/'.join([*above, member.name])!r})"
            raise TypeError(f"{cls.__qualname__}.{member.name} has neither a place nor a default: write {where}")


def _default(member: dataclasses.Field[Any]) -> Any:
    if member.default is not MISSING:
        return plain(member.default)
    if member.default_factory is not MISSING:
        return plain(member.default_factory())
    return REQUIRED
