"""Events as the real components record them: the same words about the same object are one event with a count."""

from __future__ import annotations

import os
import queue
import sys
import threading

from api import FAILURES, Api, Object
from objects import now, seconds_since

MESSAGE_LIMIT = 1024
# The same again within this time is not counted: the real components hold it back too.
PAUSE_S = 10
# Those of Kubernetes try oftener.
TRIES = 3


class Recorder:
    """A thread of its own writes them, in order: nobody waits for an event."""

    def __init__(self, api: Api, component: str) -> None:
        self._api, self._component = api.another(), component
        self._recorded: dict[tuple[str, str, str], Object] = {}
        self._waiting: queue.SimpleQueue[tuple[str, Object]] = queue.SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()

    def normal(self, about: Object, reason: str, message: str) -> None:
        self._waiting.put(self._event(about, "Normal", reason, message))

    def warning(self, about: Object, reason: str, message: str) -> None:
        self._waiting.put(self._event(about, "Warning", reason, message))

    def _write(self) -> None:
        while True:
            namespace, event = self._waiting.get()
            same = event["involvedObject"]["uid"], event["reason"], event["message"]
            for _ in range(TRIES):
                try:
                    self._recorded[same] = self._count(namespace, event, self._recorded.get(same))
                    break
                except FAILURES as error:
                    # The server is busy, an event has expired; or a namespace that is going takes none.
                    print(f"event {event['reason']}: {error}", file=sys.stderr, flush=True)
                    self._recorded.pop(same, None)

    def _count(self, namespace: str, event: Object, known: Object | None) -> Object:
        if known is None:
            return self._api.create("events", namespace, event)
        if seconds_since(known["lastTimestamp"]) < PAUSE_S:
            return known
        more = {"count": known["count"] + 1, "lastTimestamp": now()}
        return self._api.patch("events", namespace, known["metadata"]["name"], more)

    def _event(self, about: Object, kind: str, reason: str, message: str) -> tuple[str, Object]:
        meta = about["metadata"]
        # What belongs to no namespace has its events in the default one.
        namespace = meta.get("namespace") or "default"
        involved = {name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in meta}
        event = {
            "metadata": {"name": f"{meta['name'][:200]}.{os.urandom(8).hex()}", "namespace": namespace},
            "involvedObject": {
                "kind": about.get("kind", "Pod"),
                "apiVersion": about.get("apiVersion", "v1"),
                **involved,
            },
            "type": kind,
            "reason": reason,
            "message": message[:MESSAGE_LIMIT],
            "source": {"component": self._component},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        return namespace, event
