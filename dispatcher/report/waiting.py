"""Why queued and held jobs wait."""

from __future__ import annotations

import msgspec

from dispatcher.pod.waiting import Facts, Waiting
from dispatcher.report.snapshot import Snapshot
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import State


class Wait(msgspec.Struct, frozen=True):
    """A reason and the queued or held jobs that wait because of it."""

    why: str
    jobs: tuple[str, ...]


def reasons(snapshot: Snapshot) -> Waiting:
    """Why the jobs of a snapshot wait, by what the live pods publish: the answer that a dispatcher gives."""
    return Waiting(
        Facts(
            records=snapshot.records,
            entries=snapshot.entries,
            now=now_text(snapshot.now_s),
            request_of=snapshot.request_of,
            fault_of=snapshot.fault_of,
            on_move=snapshot.on_move,
            offers=snapshot.offers,
            pauses=snapshot.pauses,
            unknown_job=snapshot.unknown_job,
            clock=snapshot.clock,
        )
    )


def waits(snapshot: Snapshot, unfiltered: Snapshot | None = None) -> list[Wait]:
    """The queued and held jobs of the snapshot by the reason why they wait, the most frequent first."""
    waiting = reasons(unfiltered or snapshot)
    found: dict[str, list[str]] = {}
    for job in snapshot.jobs_in(State.QUEUED, State.HELD):
        found.setdefault(waiting.why(job).text, []).append(job)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    return [Wait(why, tuple(jobs)) for why, jobs in ordered]
