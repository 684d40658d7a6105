"""Rows about pods and their slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dispatcher.base.times import parse_time
from dispatcher.query.snapshot import PodStatus, Snapshot
from dispatcher.run_state.gpu_hour import GpuHour, read_gpus
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.workspace import Layout


def pod_row(pod: PodStatus, now_s: float) -> dict[str, Any]:
    """One pod as plain data; `up_s` and `heartbeat_at` are None when unknown, `silent_s` while it shows life."""
    info = pod.info
    begun = parse_time(info.started_at)
    return {
        "pod": info.pod,
        "state": pod.state,
        "alive": pod.is_alive,
        "silent_s": pod.silent_s,
        "host": info.host,
        "pid": info.pid,
        "user": info.user,
        "started_at": info.started_at,
        "up_s": None if begun is None or not pod.is_alive else max(0.0, now_s + pod.clock_ahead_s - begun),
        "heartbeat": info.heartbeat,
        "heartbeat_at": None if pod.beat_at_s is None else now_text(pod.beat_at_s),
        "busy": sum(min(len(slot.jobs), slot.room) for slot in info.slots),
        "size": sum(slot.room for slot in info.slots),
        "matrix": info.matrix,
        "methods": info.methods,
        "lock": info.lock,
        "notes": info.notes,
    }


def gpu_hours(layout: Layout, pod: PodStatus, now_s: float) -> Mapping[str, GpuHour]:
    """The last hour of a pod's GPUs, by the names of their slots; of one that is not alive, its own last hour."""
    if not any(slot.gpu_name or slot.memory_total_mib for slot in pod.info.slots):
        return {}
    found = read_gpus(layout, pod.info.pod)
    if found is None:
        return {}
    return found.ending(max(found.minute, int(now_s // 60)) if pod.is_alive else found.minute)


def slot_rows(pod: PodStatus, snapshot: Snapshot, hours: Mapping[str, GpuHour] = {}) -> list[dict[str, Any]]:
    """One row per slot and job on it; a free slot has one row with job None. Memory in MiB, times in seconds.

    With `hours`, GPUs have their mean utilisation in the last hour, and who else is on them.
    """
    rows = []
    for slot in pod.info.slots:
        hour = hours.get(slot.name)
        for name in slot.jobs or [""]:
            job, _, attempt = name.rpartition("/")
            record = snapshot.records.get(job)
            is_this = record is not None and str(record.attempt) == attempt
            rows.append(
                {
                    "pod": pod.info.pod,
                    "outlet": slot.outlet,
                    "slot": slot.name,
                    "job": name or None,
                    "elapsed_s": snapshot.elapsed_s(record) if record is not None and is_this else None,
                    "gpu_name": slot.gpu_name,
                    "memory_used_mib": slot.memory_used_mib,
                    "memory_total_mib": slot.memory_total_mib,
                    "gpu_percent": slot.busy_percent if pod.is_alive else None,
                    "gpu_percent_hour": _mean(hour),
                    "others": None if hour is None else hour.users,
                    "others_unnamed": 0 if hour is None else hour.unnamed,
                    "gpu_idle_s": snapshot.gpu_idle.get(job) if is_this else None,
                    "note": slot.note,
                }
            )
    return rows


def _mean(hour: GpuHour | None) -> int | None:
    known = [percent for percent in hour.percent if percent is not None] if hour is not None else []
    return round(sum(known) / len(known)) if known else None


def last_heartbeat(pod: PodStatus) -> str | None:
    """When a pod was last heard of: by its own clock, which a copy of the workspace keeps."""
    return pod.info.heartbeat_at or (None if pod.beat_at_s is None else now_text(pod.beat_at_s))


class GpuUse(NamedTuple):
    """The GPUs of an attempt together: memory in MiB, the mean of their utilisations. None: not known."""

    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    gpu_percent: int | None = None


def gpu_uses(pods: Sequence[PodStatus]) -> dict[str, GpuUse]:
    """By `job_id/attempt`."""
    slots: dict[str, list[SlotInfo]] = {}
    for pod in pods:
        for slot in pod.info.slots if pod.is_alive else ():
            for name in slot.jobs if slot.gpu_name or slot.memory_total_mib else ():
                slots.setdefault(name, []).append(slot)
    return {
        name: GpuUse(
            _sum(slot.memory_used_mib for slot in on),
            _sum(slot.memory_total_mib for slot in on),
            None if (total := _sum(slot.busy_percent for slot in on)) is None else round(total / len(on)),
        )
        for name, on in slots.items()
    }


def _sum(values: Iterable[int | None]) -> int | None:
    """None when one is not known."""
    found = 0
    for value in values:
        if value is None:
            return None
        found += value
    return found
