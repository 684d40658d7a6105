"""Notes on stderr about why the jobs that a command waits for do not run yet; each once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from dispatcher.base.messages import first_names
from dispatcher.cli.printing import note
from dispatcher.run_state.states import WAITING

if TYPE_CHECKING:
    from dispatcher.api import Workspace

START_A_POD: Final = "start one with `dispatcher --pod NAME --gpus all` or `--slots N`"


class WaitNotes:
    """Remembers what was printed about each job. `hint` is what to do where no pod is running."""

    def __init__(self, workspace: Workspace, hint: str = "") -> None:
        self._workspace = workspace
        self._hint = hint
        self._told: dict[str, str] = {}

    def forget(self, job: str) -> None:
        """The job has begun: that it waits again will be news."""
        self._told.pop(job, None)

    def tell(self, jobs: Collection[str], *, expected: str = "") -> None:
        """Say why those of the jobs wait that are not running, but for the reason `expected`, which is no news."""
        from dispatcher.pod.waiting import NO_POD
        from dispatcher.query.waiting import reasons

        snapshot = self._workspace.snapshot().for_people()
        why = reasons(snapshot)
        found = {
            job: why.why(job).text
            for job in jobs
            if (record := snapshot.records.get(job)) is not None and record.state in WAITING
        }
        groups: dict[str, list[str]] = {}
        for job, text in found.items():
            if self._told.get(job) != text and text != expected:
                groups.setdefault(text, []).append(job)
        for text, of_text in groups.items():
            hint = f": {self._hint}" if self._hint and text == NO_POD else ""
            note(f"{_waiting_text(of_text, text)}{hint}")
        # A reason that is expected now may be news later.
        self._told |= {job: text for job, text in found.items() if text != expected}


def _waiting_text(jobs: Sequence[str], why: str) -> str:
    """`a waits for a free slot`, `a waits: no pod is running`, `2 jobs wait (a, b) for a free slot`."""
    rest = why.removeprefix("waits ")
    # Some reasons are sentences about the job already.
    link = ": " if rest == why else " "
    if len(jobs) == 1:
        return f"{jobs[0]} waits{link}{rest}"
    return f"{len(jobs)} jobs wait ({first_names(jobs)}){link}{rest}"
