"""What of the manifest in force can be started, as far as templates, commands and environments tell; and saying so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from dispatcher.config import Config
from dispatcher.matrix.entry import Entry
from dispatcher.templates.check import check_entries
from dispatcher.templates.readiness import Readiness

_SHOWN = 3


class Startable:
    """Entries that cannot be started are not claimed: failing one after the other would help nobody."""

    def __init__(self, config: Config, say: Callable[[str], None]) -> None:
        self._config = config
        self._say = say
        self._readiness = Readiness(config)
        self._said: list[str] = []
        self.unusable_methods: Mapping[str, str] = {}
        # Parameters that look misspelt, in one line; empty when there are none.
        self.note = ""

    def fault(self, entry: Entry) -> str:
        """Why no pod could start the entry; empty when it can be started."""
        return self._readiness.fault(entry)

    def templates(self) -> Collection[Path]:
        """The templates that entries need; people mend them while the pod runs."""
        return self._readiness.templates()

    def has_changed(self) -> bool:
        """Whether something that matters is otherwise than `check` found it."""
        return self._readiness.has_changed()

    def check(self, entries: Iterable[Entry]) -> None:
        """Look at everything anew, and say what was not said before."""
        findings = check_entries(self._config, entries, readiness=self._readiness)
        self.unusable_methods = self._readiness.unusable
        self.note = _summary("parameters that nothing reads", findings.misspelt)
        said = [line for line in (_summary("not claimed", findings.faults), self.note) if line]
        for line in said:
            if line not in self._said:
                self._say(f"warning: {line}")
        self._said = said


def _summary(what: str, lines: Sequence[str]) -> str:
    shown = "; ".join(lines[:_SHOWN])
    more = f"; and {len(lines) - _SHOWN} more, see `dispatcher matrix check`" if len(lines) > _SHOWN else ""
    return f"{what}: {shown}{more}" if lines else ""
