"""Events as the real components record them: the same words about the same object are one event with a count."""

from __future__ import annotations

import os

from api import Api, ApiError, Object
from objects import now, seconds_since

MESSAGE_LIMIT = 1024
# The same again within this time is not counted: the real components hold it back too.
PAUSE_S = 2


class Recorder:
    def __init__(self, api: Api, component: str) -> None:
        self._api, self._component = api, component
        self._recorded: dict[tuple[str, str, str], Object] = {}

    def normal(self, about: Object, reason: str, message: str) -> None:
        self._record(about, "Normal", reason, message)

    def warning(self, about: Object, reason: str, message: str) -> None:
        self._record(about, "Warning", reason, message)

    def _record(self, about: Object, kind: str, reason: str, message: str) -> None:
        message = message[:MESSAGE_LIMIT]
        same = about["metadata"]["uid"], reason, message
        try:
            if (event := self._recorded.get(same)) is not None:
                if seconds_since(event["lastTimestamp"]) < PAUSE_S:
                    return
                more = {"count": event["count"] + 1, "lastTimestamp": now()}
                meta = event["metadata"]
                self._recorded[same] = self._api.patch("events", meta["namespace"], meta["name"], more)
            else:
                self._recorded[same] = self._api.create("events", *self._event(about, kind, reason, message))
        except ApiError:
            # A namespace that is going takes no events, and an event may have expired: nobody waits for it.
            self._recorded.pop(same, None)

    def _event(self, about: Object, kind: str, reason: str, message: str) -> tuple[str, Object]:
        meta = about["metadata"]
        # What belongs to no namespace has its events in the default one.
        namespace = meta.get("namespace") or "default"
        involved = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta}
        event = {
            "metadata": {"name": f"{meta['name'][:200]}.{os.urandom(8).hex()}", "namespace": namespace},
            "involvedObject": {"kind": about["kind"], "apiVersion": about["apiVersion"], **involved},
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        return namespace, event
