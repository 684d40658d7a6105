"""The first generation of a journal: empty, or with the records of a status file that is there already."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from dispatcher.base import files
from dispatcher.errors import StatusFileError
from dispatcher.run_state import journal
from dispatcher.run_state.adoption import keep_adopted, refuse_unadopted
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.edits.adopting import first_lines
from dispatcher.run_state.edits.status_file import FirstFile
from dispatcher.run_state.events import Event
from dispatcher.run_state.generations import encode_generation, publish
from dispatcher.workspace import STATUS_FILE, Layout


class FirstJournal:
    """Creates the journal of a workspace that has none.

    `adopt_from` is another status file than the workspace's own to take the records from. `began_with` is the file
    with which this process began the journal. `manifests` are those beside which a lab's own status file may be, and
    `manifest_jobs` gives the jobs of all manifests.
    """

    def __init__(
        self,
        layout: Layout,
        by: str,
        wall_clock: Callable[[], float],
        manifests: Iterable[Path],
        manifest_jobs: Callable[[], Container[str]] | None,
    ) -> None:
        self.adopt_from: Path | None = None
        self.began_with: Path | None = None
        self._layout = layout
        self._by = by
        self._wall_clock = wall_clock
        self._manifests = tuple(manifests)
        self._manifest_jobs = manifest_jobs

    def check(self) -> None:
        """Raise StateError when a lab's own status file waits to be adopted: its jobs would be queued again."""
        if self.adopt_from is None:
            refuse_unadopted(self._layout, self._manifests)

    def create(self, generation: int, lock_kind: str) -> None:
        """Under the lock: write the first generation, unless another process does so at the same time."""
        layout, by = self._layout, self._by
        path = layout.journal(generation)
        name = str(self.adopt_from or layout.status_file)
        with files.storing("reading", name):
            data = files.read_fresh(name)
        is_foreign = self.adopt_from not in (None, layout.status_file)
        found = FirstFile({})
        if data is not None and data.strip():
            found = status_file.parse_first(data, name, is_foreign=is_foreign)
        self.refuse_unrelated(found.jobs, name)
        now_s = self._wall_clock()
        at = journal.now_text(now_s)
        first = first_lines(found, at=at, by=by, is_foreign=is_foreign)
        header = journal.new_header(
            generation, base_seq=first.base_seq, records=len(first.known), lock=lock_kind, seconds=now_s
        )
        with files.storing("creating the journal", path):
            # Never the workspace itself: where it was unmounted, a new one would begin on the disk below.
            with contextlib.suppress(FileExistsError):
                os.mkdir(layout.journal_dir)
            if data is not None and is_foreign:
                keep_adopted(layout, Path(name), data)
            if publish(path, encode_generation(header, first.known + first.new)):
                self.began_with = Path(name)
            if data is not None and any(line.event is Event.REFUSED for line in first.new):
                os.makedirs(layout.rejected_dir, exist_ok=True)
                files.write_unique(layout.rejected_dir / f"{at.replace(':', '')}-{STATUS_FILE}", data)

    def refuse_unrelated(self, lines: Mapping[str, Mapping[str, Any]], name: str) -> None:
        """Raise StatusFileError when a status file without numbers of ours has no job of any manifest.

        Its keys are then no job ids (`{"jobs": {...}}`), and a journal that begins with it would queue finished work.
        """
        if not lines or self._manifest_jobs is None or any("rev" in line for line in lines.values()):
            return
        known = self._manifest_jobs()
        if not known or any(job in known for job in lines):
            return
        raise StatusFileError(
            f"{name} has no job of any manifest: its first key is {next(iter(lines))!r}; expected "
            '{"JOB_ID": {"state": "done", ...}, ...} with the ids of the manifest. All jobs would be queued again. '
            "Write it so; if it is of other jobs only, move it away. Nothing was changed"
        )
