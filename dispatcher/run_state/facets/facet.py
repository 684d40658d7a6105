"""What a facet of the fold does; see the page of this package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, Self, TypeVar

import msgspec

from dispatcher.run_state.events import Event, Note
from dispatcher.run_state.journal import Line
from dispatcher.run_state.records import Records
from dispatcher.topics import Topic

_V = TypeVar("_V")


class Repeated(msgspec.Struct, frozen=True):
    """A line that repeats a part of a facet in a new generation; by default written now, by who begins it."""

    note: Note
    job: str | None = None
    at: str = ""
    by: str = ""


class News(msgspec.Struct, frozen=True):
    """What people are told of a line: those who want `topic` read `text`; one `cause` is one notice."""

    topic: Topic
    cause: str
    text: str


class Facet(Protocol):
    """What the journal says of one concern. The same lines give equal facets.

    `events` are those whose lines it takes in. `form` is the type of `dump()`, from which `load` makes the same again.
    """

    events: ClassVar[frozenset[Event]]
    form: ClassVar[Any]

    def apply(self, line: Line) -> Self:
        """The facet after a line of one of `events`: itself, changed, or another one."""
        ...

    def copy(self) -> Self:
        """What undoes all later lines when it takes the place of this one."""
        ...

    def lines(self, records: Records) -> Iterator[Repeated]:
        """Lines from which a new generation of the journal gets the same facet."""
        ...

    def dump(self) -> Any: ...

    @classmethod
    def load(cls, dumped: Any) -> Self: ...


class ByName(dict[str, _V]):
    """A facet that is something for each name: of a job, a study."""

    def copy(self) -> Self:
        return type(self)(self)

    def dump(self) -> Any:
        return dict(self)

    @classmethod
    def load(cls, dumped: Any) -> Self:
        return cls(dumped)
