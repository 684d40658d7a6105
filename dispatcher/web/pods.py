"""Pods: slots, GPUs over the last hour, who else uses them, outlets."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from dispatcher.report.pods import pod_row, slot_rows
from dispatcher.report.snapshot import PodStatus, Snapshot
from dispatcher.web.overview import last_heartbeat

_HOUR_S: Final = 3600.0
# So many samples of a GPU are in an answer, and one is kept for each of these seconds.
_EVERY_S: Final = 15.0
_MOST_PODS: Final = 200


class GpuHistory:
    """What pods have published of the memory of their GPUs, for as long as somebody looked, an hour at most."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def note(self, snapshot: Snapshot) -> None:
        for pod in snapshot.pods:
            for slot in pod.info.slots if pod.is_alive else ():
                if slot.memory_used_mib is not None:
                    samples = self._samples.setdefault((pod.info.pod, slot.name), deque())
                    if not samples or snapshot.now_s - samples[-1][0] >= _EVERY_S:
                        samples.append((snapshot.now_s, slot.memory_used_mib))
                    while samples[0][0] < snapshot.now_s - _HOUR_S:
                        samples.popleft()

    def of(self, pod: str, slot: str) -> list[tuple[float, int]]:
        """Moments (seconds since 1970) and used memory (MiB)."""
        return list(self._samples.get((pod, slot), ()))


def pods(snapshot: Snapshot, history: GpuHistory) -> dict[str, Any]:
    """Every pod; those that ended come last, the latest first."""
    order = sorted(snapshot.pods, key=lambda pod: (pod.state == "ended", pod.state == "dead", pod.info.pod))
    return {"pods": [_pod(pod, snapshot, history) for pod in order[:_MOST_PODS]], "total": len(order)}


def _pod(pod: PodStatus, snapshot: Snapshot, history: GpuHistory) -> dict[str, Any]:
    row = pod_row(pod, snapshot.now_s)
    del row["up_s"]
    slots = []
    for slot in slot_rows(pod, snapshot)[:256]:
        del slot["elapsed_s"]
        name, _, attempt = (slot["job"] or "").rpartition("/")
        job = name if name in snapshot.records else None
        slots.append({**slot, "job": job, "attempt": int(attempt) if attempt.isdigit() else None})
    for slot in slots:
        # Of a GPU with several jobs, once.
        if slot["memory_used_mib"] is not None:
            slot["memory"] = history.of(pod.info.pod, slot["slot"])
    return {
        **row,
        "heartbeat_at": last_heartbeat(pod),
        "stopped": pod.info.stopped or None,
        "outlets": [{"outlet": name, **offer} for name, offer in pod.info.outlets.items()],
        "slots": slots if pod.state != "ended" else [],
    }
