"""What the cluster has, kept up to date by watches, and every change in the order in which the server told it."""

from __future__ import annotations

import queue
import sys
import threading
import time
from dataclasses import dataclass, field

from api import FAILURES, Api, Object

PAUSE_S = 0.1


@dataclass(frozen=True)
class Change:
    """`old` is None for a new object, `new` for one that is gone (`old` is then its last state)."""

    kind: str
    old: Object | None
    new: Object | None


@dataclass
class Informers:
    """`changes` has what happened since `start`; objects that are there from the beginning come first, as new ones."""

    api: Api
    kinds: tuple[str, ...]
    changes: queue.SimpleQueue[Change] = field(default_factory=queue.SimpleQueue)

    def start(self) -> None:
        for kind in self.kinds:
            threading.Thread(target=self._follow, args=(kind, self.api.another()), daemon=True).start()

    def _follow(self, kind: str, api: Api) -> None:
        known: dict[str, Object] = {}
        while True:
            try:
                self._list_and_watch(kind, api, known)
            except (*FAILURES, ValueError) as error:
                # As when the server restarts, or does not know the kind yet.
                print(f"{kind}: {error}", file=sys.stderr, flush=True)
                time.sleep(PAUSE_S)
            finally:
                api.close()

    def _list_and_watch(self, kind: str, api: Api, known: dict[str, Object]) -> None:
        listed = api.list(kind)
        found = {item["metadata"]["uid"]: item for item in listed["items"]}
        for uid in [uid for uid in known if uid not in found]:
            self.changes.put(Change(kind, known.pop(uid), None))
        for item in found.values():
            self._changed(kind, known, item)
        version = listed["metadata"]["resourceVersion"]
        while True:
            for what, item in api.watch(kind, version):
                version = item["metadata"]["resourceVersion"]
                if what == "DELETED":
                    known.pop(item["metadata"]["uid"], None)
                    self.changes.put(Change(kind, item, None))
                else:
                    self._changed(kind, known, item)
            api.close()

    def _changed(self, kind: str, known: dict[str, Object], item: Object) -> None:
        uid = item["metadata"]["uid"]
        old = known.get(uid)
        if old is None or old["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            known[uid] = item
            self.changes.put(Change(kind, old, item))
