"""Why queued entries wait."""

from __future__ import annotations

import msgspec

from dispatcher.pod.waiting import Facts, Waiting
from dispatcher.report.view import View
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import State

_SHOWN = 3


class Wait(msgspec.Struct, frozen=True):
    """A reason and the queued jobs that it keeps."""

    why: str
    jobs: tuple[str, ...]


def reasons(view: View) -> Waiting:
    """Why the jobs of a view wait: the answer that a dispatcher gives, by what the live pods say of themselves."""
    return Waiting(
        Facts(
            records=view.records,
            entries=view.entries,
            now=now_text(view.now_s),
            gpus_of=view.gpus_of,
            fault_of=view.fault_of,
            offers=view.offers,
            pauses=view.pauses,
            unknown_job=view.unknown_job,
        )
    )


def waits(view: View, whole: View | None = None) -> list[Wait]:
    """The queued jobs of the view by what they wait for, the most frequent reason first."""
    waiting = reasons(whole or view)
    found: dict[str, list[str]] = {}
    for job, record in view.records.items():
        if record.state in (State.QUEUED, State.HELD):
            found.setdefault(waiting.why(job).text, []).append(job)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [Wait(why, tuple(jobs)) for why, jobs in ordered]


def names_text(jobs: tuple[str, ...]) -> str:
    """The first few names."""
    return ", ".join(jobs[:_SHOWN]) + (", ..." if len(jobs) > _SHOWN else "")
