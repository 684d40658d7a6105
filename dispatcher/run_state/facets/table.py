"""The table of facets; see the page of this package."""

from __future__ import annotations

from typing import Final

from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.facet import Facet
from dispatcher.run_state.facets.gpu_idle import IdleGpus
from dispatcher.run_state.facets.notices import Notices
from dispatcher.run_state.facets.pauses import Pauses
from dispatcher.run_state.facets.refusals import Refusals
from dispatcher.run_state.facets.studies import Studies


class Facets:
    """One facet of each kind, in the order in which a new generation repeats them."""

    def __init__(self) -> None:
        self.pauses = Pauses()
        self.refusals = Refusals()
        self.gpu_idle = IdleGpus()
        self.studies = Studies()
        # The last one: what the lines of the others repeat is no news.
        self.notices = Notices()

    def facet(self, name: str) -> Facet:
        found: Facet = getattr(self, name)
        return found


_NONE: Final = Facets()
NAMES: Final = tuple(vars(_NONE))
# Which facets take in a line; none of those that change a record and nothing else, the bulk of every journal.
BY_EVENT: Final = {
    event: names for event in Event if (names := tuple(name for name in NAMES if event in _NONE.facet(name).events))
}
