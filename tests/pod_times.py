"""The journal of pods and attempts at given times, as pods would have written it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.base.times import Clock, days_between
from dispatcher.matrix.entry import Entry, read_entry
from dispatcher.outlets.base import Request
from dispatcher.query.snapshot import PodStatus
from dispatcher.query.usage.history import History
from dispatcher.query.usage.ledger import Ledger, Usage
from dispatcher.query.usage.pools import Eligibility, stays_of
from dispatcher.query.usage.sweep import Window
from dispatcher.run_state.events import Event, Note, PodEnded, PodStarted
from dispatcher.run_state.generations import encode_generation
from dispatcher.run_state.journal import Line, new_header, now_text
from dispatcher.run_state.liveness import PodInfo
from dispatcher.workspace import Layout

NOON = 1_789_992_000.0
HOUR = 3600.0


def at(hours: float) -> str:
    return now_text(NOON + hours * HOUR)


class Journal:
    """Lines as pods write them; times are hours since noon."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.entries: dict[str, Entry] = {}
        # When the pods that have not ended began.
        self.running: dict[str, float] = {}

    def add(self, hours: float, by: str, event: Event, job: str | None, **fields: Any) -> None:
        data = fields.pop("data", None)
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
        self.lines.append(
            Line(seq=len(self.lines) + 1, at=at(hours), by=by, event=event, job=job, set=values, data=data)
        )

    def note(self, hours: float, by: str, note: Note) -> None:
        line = Line(seq=len(self.lines) + 1, at=at(hours), by=by, event=note.event, data=note.as_json())
        self.lines.append(line)

    def pod(self, hours: float, pod: str, *, host: str = "", user: str = "ada", **rest: Any) -> None:
        slots = {key: rest.pop(key) for key in ("gpus", "cpu_slots", "jobs_per_gpu") if key in rest}
        slots |= rest.pop("local", {})
        host = host or f"host-of-{pod}"
        started = PodStarted(pod=pod, started_at=at(hours), host=host, user=user, outlets={"local": slots}, **rest)
        self.running[pod] = hours
        self.note(hours, pod, started)

    def end_pod(self, hours: float, pod: str, begun: float, **rest: Any) -> None:
        self.running.pop(pod, None)
        self.note(hours, pod, PodEnded(pod=pod, started_at=at(begun), ended_at=at(hours), **rest))

    def queue(self, hours: float, job: str, **entry: Any) -> None:
        self.entries[job] = self.entries.get(job) or entry_of(job, **entry)
        self.add(hours, "pod", Event.QUEUED, job, state="queued")

    def claim(self, hours: float, pod: str, job: str, gpu: Any = None, number: int = 1, **rest: Any) -> None:
        self.entries.setdefault(job, entry_of(job))
        fields = {"state": "running", "outlet": "local", "host": f"host-of-{pod}", **rest}
        self.add(hours, pod, Event.CLAIMED, job, pod=pod, gpu=gpu, started_at=at(hours), attempt=number, **fields)

    def done(self, hours: float, pod: str, job: str, **rest: Any) -> None:
        self.add(hours, pod, Event.DONE, job, **{"state": "done", "finished_at": at(hours), "exit_code": 0, **rest})

    def write(self, layout: Layout) -> None:
        """As the first generation of a workspace."""
        header = new_header(1, base_seq=0, records=0, lock="flock", seconds=NOON)
        layout.journal_dir.mkdir(parents=True)
        layout.journal(1).write_bytes(encode_generation(header, self.lines))

    def account(
        self, since: float, until: float, by: Sequence[str] = (), where: Any = None, values: Mapping[str, Any] = {}
    ) -> Usage:
        history = History({job: tuple(one.needs) for job, one in self.entries.items() if one.needs})
        history.read(self.lines)
        history.finish()
        stays = stays_of(history, [alive(pod, at(begun)) for pod, begun in self.running.items()], NOON + until * HOUR)
        eligibility = Eligibility(stays, self.entries.get, asked, lambda _: None)
        since_s, until_s = NOON + since * HOUR, NOON + until * HOUR
        days = days_between(since_s, until_s, Clock(until_s, utc=True)) if "day" in by else ()
        ledger = Ledger(Window(since_s, until_s, tuple(days)), by, lambda one, key: values[one.job], where)
        return ledger.usage(history, stays, eligibility, {})


def asked(entry: Entry) -> Request:
    return Request(gpus=entry.gpus, gpu_memory_mib=entry.gpu_memory_mib)


def alive(pod: str, started_at: str) -> PodStatus:
    info = PodInfo(
        pod=pod, host=f"host-of-{pod}", boot_id="", pid_namespace=0, pid=1, start_ticks=1, user="ada",
        started_at=started_at, heartbeat=1, heartbeat_s=1, lock="flock",
    )  # fmt: skip
    return PodStatus(info, is_alive=True)


def entry_of(job: str, **fields: Any) -> Entry:
    entry, faults = read_entry({"job_id": job, "method": "m", **fields}, 0)
    assert entry is not None, faults
    return entry
