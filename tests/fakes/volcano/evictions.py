"""Volcano's way to evict a pod: events, a condition, and a deletion with the pod's own grace."""

from __future__ import annotations

from api import Api, ApiError, Object
from objects import now
from recorder import Recorder


def evict(api: Api, recorder: Recorder, pod: Object, group: Object | None, reason: str) -> None:
    meta, message = pod["metadata"], f"Pod is evicted, because of {reason}"
    recorder.warning(pod, "Evict", message)
    if group is not None:
        recorder.normal(group, "Evict", reason)
    condition = {"type": "Ready", "status": "False", "reason": "Evict", "message": message, "lastTransitionTime": now()}
    try:
        api.patch("pods", meta["namespace"], meta["name"], {"status": {"conditions": [condition]}}, "status")
    except ApiError as error:
        if error.code != 404:
            raise
    api.delete("pods", meta["namespace"], meta["name"])
