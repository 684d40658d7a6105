"""Hand edits that could not be used, in the journal, until something settles them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import msgspec

from dispatcher.run_state.events import Event, Note
from dispatcher.run_state.facets.facet import ByName, Repeated
from dispatcher.run_state.journal import Line
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import STATES

# What the journal keeps of a line that was refused.
_LONGEST_LINE: Final = 2_000
# Events that settle a refused edit of the same job: whatever a person does with it.
_SETTLING: Final = frozenset({Event.CLEARED, Event.ADOPTED, Event.EDITED, Event.REQUESTED, Event.DELETED}) | {
    row.event for row in STATES.values() if row.event is not None
}


class Refused(Note, frozen=True, kw_only=True, omit_defaults=True):
    """An edit that could not be used because of `why`; `line` is what was written."""

    event = Event.REFUSED
    why: str = ""
    line: str = ""


class Cleared(Note, frozen=True, kw_only=True, omit_defaults=True):
    event = Event.CLEARED


class Refusal(msgspec.Struct, frozen=True):
    """A hand edit that could not be used. `line` is what was written; `job` is empty for the file as a whole.

    `at` is when that was recorded; empty before.
    """

    job: str
    line: str
    why: str
    at: str = ""


class Refusals(ByName[Refusal]):
    """By job."""

    events: ClassVar = _SETTLING | {Event.REFUSED}
    form: ClassVar = dict[str, Refusal]

    def apply(self, line: Line) -> Refusals:
        job = line.job or ""
        if line.event is Event.REFUSED:
            refused = line.read(Refused)
            self[job] = Refusal(job, refused.line, refused.why, line.at)
        else:
            self.pop(job, None)
        return self

    def lines(self, records: Records) -> Iterator[Repeated]:
        for one in self.values():
            yield Repeated(Refused(why=one.why, line=one.line), one.job or None, at=one.at)

    def unrecorded(self, one: Refusal) -> Refused | None:
        """Its note; None when the journal has it already: the file is read again until it is corrected."""
        known, note = self.get(one.job), Refused(why=one.why, line=one.line[:_LONGEST_LINE])
        return None if known is not None and (known.line, known.why) == (note.line, note.why) else note
