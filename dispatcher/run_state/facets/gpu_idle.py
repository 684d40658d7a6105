"""Attempts that leave their GPUs idle, in the journal. pod/participants/gpu_idle.py writes it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from dispatcher.run_state.events import Event, Note
from dispatcher.run_state.facets.facet import ByName, News, Repeated
from dispatcher.run_state.journal import Line
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import IN_FLIGHT, Record
from dispatcher.topics import Topic


class GpuIdle(Note, frozen=True, kw_only=True, omit_defaults=True):
    """All GPUs of an attempt have been at 0 % since `since`, a journal time; `gpus` is their number.

    Ends with GpuBusy or with the attempt. A new generation of the journal repeats it.
    """

    event = Event.GPU_IDLE
    attempt: int
    since: str
    gpus: int


class GpuBusy(Note, frozen=True, kw_only=True, omit_defaults=True):
    """The attempt uses a GPU again; they were idle since `since`, `gpus` of them."""

    event = Event.GPU_BUSY
    attempt: int
    since: str
    gpus: int


class IdleGpus(ByName[GpuIdle]):
    """By job; those of attempts that have ended do not count: see `of`."""

    events: ClassVar = frozenset({Event.GPU_IDLE, Event.GPU_BUSY})
    form: ClassVar = dict[str, GpuIdle]

    def of(self, job: str, record: Record | None) -> GpuIdle | None:
        """Since when the attempt that runs has left its GPUs idle; None when it has not."""
        found = self.get(job)
        if found is None or record is None or record.state not in IN_FLIGHT or record.attempt != found.attempt:
            return None
        return found

    def apply(self, line: Line) -> IdleGpus:
        job = line.job or ""
        if line.event is Event.GPU_IDLE:
            self[job] = line.read(GpuIdle)
        elif job in self and self[job].attempt <= line.read(GpuBusy).attempt:
            del self[job]
        return self

    def lines(self, records: Records) -> Iterator[Repeated]:
        for job in self:
            idle = self.of(job, records.get(job))
            if idle is not None:
                yield Repeated(idle, job)


def news(line: Line) -> News | None:
    return News(Topic.GPU_IDLE, "", f"running, its GPUs idle since {line.read(GpuIdle).since}")
