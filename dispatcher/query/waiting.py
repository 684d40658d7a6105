"""Why queued and held jobs wait."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from functools import partial

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.pod.in_flight import InFlight, count_all
from dispatcher.pod.waiting import Facts, Waiting
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import WAITING, State


class WaitReason(msgspec.Struct, frozen=True):
    """A reason and the queued or held jobs that wait because of it.

    `needs_person`: that changes only when a person does something. `is_refused`: no live pod takes them as things are.
    """

    why: str
    jobs: tuple[str, ...]
    needs_person: bool = False
    is_refused: bool = False


def reasons(snapshot: Snapshot, counted: InFlight | None = None) -> Waiting:
    """Why the jobs of a snapshot wait, by what the live pods publish: the answer that a dispatcher gives.

    `counted`: what `in_flight` returns for the snapshot.
    """
    return Waiting(
        Facts(
            records=snapshot.records,
            entries=snapshot.entries,
            now=now_text(snapshot.now_s),
            request_of=snapshot.request_of,
            fault_of=snapshot.fault_of,
            on_move=snapshot.on_move,
            longest_pause_s=snapshot.longest_pause_s,
            wants_copy=snapshot.wants_copy,
            offers=snapshot.offers,
            last=snapshot.last_offer,
            pauses=snapshot.pauses,
            unknown_job=snapshot.unknown_job,
            clock=snapshot.clock,
            obstacle=snapshot.obstacle,
            in_flight=counted or in_flight(snapshot),
        )
    )


def queue(snapshot: Snapshot) -> list[tuple[str, str]]:
    """The queued jobs in the order in which they are claimed, each with the reason why it waits."""
    order = {job: number for number, job in enumerate(snapshot.entries)}
    queued = sorted(
        snapshot.jobs_in(State.QUEUED), key=lambda job: (-snapshot.priority(job), order.get(job, len(order)), job)
    )
    waiting = reasons(snapshot)
    return [(job, waiting.why(job).text) for job in queued]


def in_flight(snapshot: Snapshot) -> InFlight:
    """The attempts that count in limits."""
    limits = snapshot.limits
    return count_all(limits, snapshot.records, snapshot.in_flight() if limits else (), partial(_runs_with, snapshot))


def _runs_with(snapshot: Snapshot, job: str) -> Entry | None:
    """What the attempt of a job runs with; that of the manifest where nothing is known of it."""
    return snapshot.last_ran(job) or (snapshot.entries.get(job) if snapshot.records[job].ran_with is None else None)


def waits(snapshot: Snapshot, unfiltered: Snapshot | None = None) -> list[WaitReason]:
    """The queued and held jobs of the snapshot by the reason why they wait.

    Reasons that need a person come first, and of these and of the others the most frequent ones. Those that differ only
    in jobs or times count as one.
    """
    everything = unfiltered or snapshot
    counted = in_flight(everything)
    waiting = reasons(everything, counted)
    by_values = (everything.limits.by_values and counted.any_full()) or any(
        pause.values for pause in everything.pauses.values()
    )
    found: dict[tuple[str, bool, bool], list[str]] = {}
    alike: dict[int, list[str]] = {}
    for job, kind in _with_kinds(snapshot, everything, by_values=by_values):
        jobs = alike.get(kind)
        if jobs is None:
            reason = waiting.why(job)
            # What no manifest lists is never claimed.
            needs_person = reason.needs_person or job not in snapshot.entries
            jobs = found.setdefault((reason.kind or reason.text, needs_person, reason.is_refused), [])
            if kind:
                alike[kind] = jobs
        jobs.append(job)
    ordered = sorted(found.items(), key=lambda item: (not item[0][1], -len(item[1])))
    return [
        WaitReason(_in_common(waiting, jobs), tuple(jobs), needs_person, is_refused)
        for (_, needs_person, is_refused), jobs in ordered
    ]


def _with_kinds(snapshot: Snapshot, everything: Snapshot, *, by_values: bool) -> Iterator[tuple[str, int]]:
    """The queued and held jobs, each with a number that it has in common with others that wait for the same reason.

    0 where the job itself must be asked for: something is set in its record, it needs others, a pod could not claim it.
    """
    jobs = snapshot.jobs_in(*WAITING)
    if by_values or any(offer.where.conditions or offer.lists is not None for offer in everything.offers):
        # Then the values and the ids of entries decide, too.
        return zip(jobs, itertools.repeat(0), strict=False)
    kinds = map(operator.mul, snapshot.kinds_in(*WAITING), snapshot.by_state.unchanged(WAITING))
    blocked = set().union(*(offer.blocked for offer in everything.offers))
    if not blocked:
        return zip(jobs, kinds, strict=True)
    return ((job, 0 if job in blocked else kind) for job, kind in zip(jobs, kinds, strict=True))


def _in_common(waiting: Waiting, jobs: list[str]) -> str:
    """A text for the reasons of jobs that wait for reasons of one kind."""
    first = waiting.why(jobs[0])
    if not first.kind:
        return first.text
    others = {waiting.why(job).detail for job in jobs} - {first.detail}
    return f"{first.kind} ({first.detail}, and {len(others)} more)" if others else first.text
