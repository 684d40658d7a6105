"""Pods: slots, GPUs over the last hour, who else uses them, outlets."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.query.pods import gpu_hours, last_heartbeat, pod_row, slot_rows
from dispatcher.query.snapshot import PodStatus, Snapshot
from dispatcher.web.answers import encode
from dispatcher.workspace import Layout

_MOST_PODS: Final = 200
_MOST_SLOTS: Final = 256
# The hours of so many GPUs are in an answer.
_MOST_HOURS: Final = 256
_PODS_BYTES: Final = 900_000


def pods(layout: Layout, snapshot: Snapshot) -> dict[str, Any]:
    """Every pod; those that ended come last, the latest first."""
    order = sorted(snapshot.pods, key=lambda pod: (pod.state == "ended", pod.state == "dead", pod.info.pod))
    shown, hours, size = [], 0, 0
    for pod in order[:_MOST_PODS]:
        row = _pod(pod, layout, snapshot, shows_hours=hours < _MOST_HOURS)
        hours += sum("hour" in slot for slot in row["slots"])
        if size + len(encode(row)) > _PODS_BYTES:
            row |= {"slots": [], "slots_left_out": len(row["slots"])}
        size += len(encode(row))
        shown.append(row)
    return {"pods": shown, "total": len(order)}


def _pod(pod: PodStatus, layout: Layout, snapshot: Snapshot, *, shows_hours: bool) -> dict[str, Any]:
    row = pod_row(pod, snapshot.now_s)
    # Durations would change with every look; the page has the time of the heartbeat.
    del row["up_s"], row["silent_s"]
    has_slots = pod.state != "ended"
    hours = gpu_hours(layout, pod, snapshot.now_s) if has_slots and shows_hours else {}
    slots: list[dict[str, Any]] = []
    seen: set[str] = set()
    for slot in slot_rows(pod, snapshot, hours)[:_MOST_SLOTS] if has_slots else ():
        del slot["elapsed_s"]
        name, _, attempt = (slot["job"] or "").rpartition("/")
        job = name if name in snapshot.records else None
        found = {**slot, "job": job, "attempt": int(attempt) if attempt.isdigit() else None}
        # Of a GPU with several jobs, once.
        if slot["slot"] in hours and slot["slot"] not in seen:
            hour = hours[slot["slot"]]
            found["hour"] = {"percent": hour.percent, "memory_mib": hour.memory_mib}
        seen.add(slot["slot"])
        slots.append(found)
    return {
        **row,
        "heartbeat_at": last_heartbeat(pod),
        "stopped": pod.info.stopped or None,
        "outlets": [{"outlet": name, **offer} for name, offer in pod.info.outlets.items()],
        "slots": slots,
    }
