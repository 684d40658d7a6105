"""Which jobs of the manifest can be started, judged by templates, commands and environments; reports the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from dispatcher.base.messages import first_texts
from dispatcher.config import Config
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.kinds import DEFAULT
from dispatcher.templates.check import check_entries
from dispatcher.templates.readiness import Readiness

_SHOWN = 3


class Startable:
    """Jobs that cannot be started are not claimed: otherwise they would fail one after the other."""

    def __init__(self, config: Config, log: Callable[[str], None], outlets: Collection[str]) -> None:
        self._log = log
        self._all_run_here = all(name == DEFAULT for name in outlets)
        self.follow(config)
        self._reported: list[str] = []
        # Methods, with and without the classes of jobs.
        self._kinds: set[tuple[str, bool]] = set()
        self.unusable_methods: Mapping[str, str] = {}
        # Parameters that look misspelt, in one line; empty when there are none.
        self.note = ""

    def follow(self, config: Config) -> None:
        """Judge by this configuration from now on."""
        self._config = config
        self._readiness = Readiness(config, all_run_here=self._all_run_here)

    def fault(self, entry: Entry) -> str:
        """Why no pod can start the entry; empty when it can be started."""
        return self._readiness.fault(entry)

    def templates(self) -> Collection[Path]:
        """The templates that jobs need. They may be corrected while the pod runs."""
        return self._readiness.templates()

    def has_changed(self) -> bool:
        """Whether something that `check` has read has changed."""
        return self._readiness.has_changed()

    def check(self, entries: Iterable[Entry]) -> None:
        """Check all entries again, and report findings that were not reported before."""
        self._kinds = set()
        findings = check_entries(self._config, self._noted(entries), readiness=self._readiness)
        self.unusable_methods = self._readiness.unusable
        self.note = _summary("parameters that nothing reads", findings.misspelt)
        findings_text = [line for line in (_summary("not claimed", findings.faults), self.note) if line]
        for line in findings_text:
            if line not in self._reported:
                self._log(f"warning: {line}")
        self._reported = findings_text

    def knows(self, entries: Iterable[Entry]) -> bool:
        """Whether the methods of these entries were checked before, so that `check_more` is enough for them."""
        return {(entry.method, entry.job is None) for entry in entries} <= self._kinds

    def check_more(self, entries: Iterable[Entry]) -> None:
        """Check entries that have come, and report what is wrong with them."""
        faults = [f"{entry.job_id}: {fault}" for entry in entries if (fault := self.fault(entry))]
        if faults:
            self._log(f"warning: {_summary('not claimed', faults)}")

    def _noted(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for entry in entries:
            self._kinds.add((entry.method, entry.job is None))
            yield entry


def _summary(what: str, lines: Sequence[str]) -> str:
    more = ", see `dispatcher matrix check`" if len(lines) > _SHOWN else ""
    return f"{what}: {first_texts(lines, _SHOWN)}{more}" if lines else ""
