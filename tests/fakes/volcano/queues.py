"""Volcano's queue controller: what a Queue's status says, and opening and closing it."""

from __future__ import annotations

from collections import Counter

from api import Api, ApiError, Object
from cluster import Cluster
from dialects import Dialect
from gangs import gangs
from informers import Change
from objects import PODGROUP_API, key
from quantities import total, written

COUNTED = ("pending", "inqueue", "running", "unknown")


class Queues:
    def __init__(self, api: Api, cluster: Cluster, dialect: Dialect) -> None:
        self._api, self._cluster, self._dialect = api, cluster, dialect
        self._asked: dict[str, str] = {}

    def make_default(self) -> None:
        """What the scheduler makes when it begins."""
        default = {"apiVersion": PODGROUP_API, "kind": "Queue", "metadata": {"name": "default"}}
        self._api.create_once("queues", None, {**default, "spec": {"weight": 1, "reclaimable": True}})

    def is_default_open(self) -> bool:
        queue = self._cluster.get("queues", "", "default")
        return queue is not None and queue.get("status", {}).get("state") == "Open"

    def changed(self, change: Change) -> None:
        """A Command to open or close a Queue (`vcctl queue operate`)."""
        command = change.new
        if change.kind != "commands" or command is None or change.old is not None:
            return
        if command.get("target", {}).get("kind") == "Queue" and self._api.delete("commands", *key(command)):
            self._asked[command["target"]["name"]] = command["action"]

    def work(self) -> None:
        """Bring each Queue's status up to date."""
        found = gangs(self._cluster, {})
        for queue in self._cluster.all("queues"):
            name = queue["metadata"]["name"]
            mine = [gang for gang in found if gang.queue == name]
            counts = Counter(gang.phase.lower() for gang in mine)
            status = {**queue.get("status", {}), **{count: counts[count] for count in COUNTED}}
            status["state"] = self._state(name, status.get("state", ""), bool(mine))
            if self._dialect.reports_allocated:
                status["allocated"] = written(total(gang.allocated for gang in mine))
            if status != queue.get("status"):
                self._save(queue, status)

    def _state(self, name: str, state: str, is_used: bool) -> str:
        asked = self._asked.get(name, "CloseQueue" if state in ("Closed", "Closing") else "OpenQueue")
        if asked == "OpenQueue":
            return "Open"
        return "Closing" if is_used else "Closed"

    def _save(self, queue: Object, status: Object) -> None:
        try:
            self._cluster.put("queues", self._api.replace("queues", {**queue, "status": status}, "status"))
        except ApiError as error:
            # Somebody else was faster: the next look sees it.
            if error.code not in (404, 409):
                raise
