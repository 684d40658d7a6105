"""What the stand-in knows of the cluster: the latest objects by kind and name, the pods of each Job."""

from __future__ import annotations

from collections import defaultdict

from api import Object
from informers import Change
from objects import Key, key, owner_uid, revision


class Cluster:
    """Kept by one thread: from the watches' changes, and from the answers to what it wrote itself."""

    def __init__(self) -> None:
        self._items: defaultdict[str, dict[Key, Object]] = defaultdict(dict)
        self._pods_of: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        # Uids of pods that were deleted and may still be told of in an earlier state.
        self._forgotten: set[str] = set()

    def all(self, kind: str) -> list[Object]:
        return list(self._items[kind].values())

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._items[kind].get((namespace, name))

    def pods_of(self, job: Object) -> dict[str, Object]:
        """Its pods that are there and not being deleted, by name."""
        return self._pods_of[job["metadata"]["uid"]]

    def put(self, kind: str, item: Object) -> None:
        """Remember an object, unless a later state of it is known."""
        known = self._items[kind].get(key(item))
        is_same = known is not None and known["metadata"]["uid"] == item["metadata"]["uid"]
        if not is_same or revision(item) > revision(known):
            self._items[kind][key(item)] = item

    def apply(self, change: Change) -> None:
        if change.new is not None:
            self.put(change.kind, change.new)
        elif (gone := change.old) is not None:
            self.drop(change.kind, gone)

    def drop(self, kind: str, gone: Object) -> None:
        known = self._items[kind].get(key(gone))
        if known is not None and known["metadata"]["uid"] == gone["metadata"]["uid"]:
            del self._items[kind][key(gone)]

    def add_pod(self, pod: Object) -> None:
        """A pod of a Job: Volcano forgets it as soon as its deletion has begun, not when it has ended."""
        if pod["metadata"]["uid"] not in self._forgotten:
            self._pods_of[owner_uid(pod)][pod["metadata"]["name"]] = pod

    def forget_pod(self, pod: Object) -> None:
        self._forgotten.add(pod["metadata"]["uid"])
        pods = self._pods_of[owner_uid(pod)]
        known = pods.get(pod["metadata"]["name"])
        if known is not None and known["metadata"]["uid"] == pod["metadata"]["uid"]:
            del pods[pod["metadata"]["name"]]
