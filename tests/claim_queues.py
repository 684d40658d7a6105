"""Entries, records and claim queues for the tests of the order of claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Capacity, Request
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.pod.claim import Choice, ClaimQueue, alone
from dispatcher.pod.in_flight import InFlight
from dispatcher.pod.offers import Offer, offers_of
from dispatcher.pod.outcome import longest_pause_s
from dispatcher.pod.waiting import Facts
from dispatcher.run_state.facets.pauses import Pause
from dispatcher.run_state.states import Record, State

EARLY, NOW, LATE = "2026-06-17T22:00:00.000Z", "2026-06-17T23:00:00.000Z", "2026-06-18T00:00:00.000Z"
BACKOFF_S = 30.0
QUEUED, DONE, RUNNING = Record(state=State.QUEUED), Record(state=State.DONE), Record(state=State.RUNNING)


def request_of(entry: Entry) -> Request:
    return Request(entry.gpus)


def made(*entries: Entry) -> dict[str, Entry]:
    return {entry.job_id: entry for entry in entries}


def entry(job: str, order: int = 0, **rest: object) -> Entry:
    return Entry(job_id=job, method=str(rest.pop("method", "m")), order=order, **rest)  # type: ignore[arg-type]


def offer(capacities: Mapping[str, Capacity]) -> Offer:
    return Offer(pod="pod", outlets=offers_of(capacities))


def facts(
    entries: Mapping[str, Entry],
    records: Mapping[str, Record],
    capacities: Mapping[str, Capacity],
    in_flight: InFlight | None = None,
) -> Facts:
    return Facts(
        records=records,
        entries=entries,
        now="",
        request_of=request_of,
        offers=(offer(capacities),),
        longest_pause_s=lambda _, record: longest_pause_s(record, BACKOFF_S),
        in_flight=in_flight or InFlight(),
    )


def paused(methods: Iterable[str]) -> dict[str, Pause]:
    return {method: Pause(method, "it fails", NOW) for method in methods}


def queue_of(
    entries: Mapping[str, Entry],
    room: LocalCapacity | Mapping[str, Capacity],
    in_flight: InFlight | None = None,
    pack_of: Callable[[Entry], int] = alone,
) -> ClaimQueue:
    """A queue in which all entries are queued, for a pod with the local outlet or with these."""
    capacities = {"local": room} if isinstance(room, LocalCapacity) else room
    records = dict.fromkeys(entries, QUEUED)
    queue = ClaimQueue(facts(entries, records, capacities, in_flight), capacities, pack_of)
    for job in entries:
        queue.update(job)
    return queue


def change(queue: ClaimQueue, job: str, record: Record) -> None:
    assert isinstance(queue.records, dict)
    queue.records[job] = record
    queue.update(job)


def placed(choices: list[Choice]) -> dict[str, str]:
    return {choice.entry.job_id: choice.outlet for choice in choices}


def names(choices: list[Choice]) -> list[str]:
    return [choice.entry.job_id for choice in choices]
