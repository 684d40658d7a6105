"""Queued resources of the TPU bed: a request for a node that is granted when there is one, soon or late or never."""

from __future__ import annotations

import datetime
import re
from typing import Any

from . import tpu_checks as checks
from .tpu_checks import Refusal
from .tpu_cloud import Cloud, now

# Without nodes, and nothing under way.
AT_REST = ("ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED", "SUSPENDED")


class Queue:
    """`wait_s` is how long a request waits, None: until `grant` is called or `wait_s` is set before it is made."""

    def __init__(self, cloud: Cloud) -> None:
        self.wait_s: float | None = 0.1
        self.requests: dict[str, dict[str, Any]] = {}
        self._cloud = cloud
        cloud.on_loss = self._node_lost

    def create(self, location: str, ident: str, body: dict[str, Any], version: str) -> dict[str, Any]:
        _, project, _, zone = location.split("/")
        checks.check_name(ident, "queued_resource_id")
        checks.check_queued(body, project, zone, version)
        name = f"{location}/queuedResources/{ident}"
        if name in self.requests:
            raise Refusal("ALREADY_EXISTS", f"Resource '{name}' already exists")
        (spec,) = body["tpu"]["nodeSpec"]
        for node in _node_names(spec, ident):
            if node in self._cloud.nodes:
                raise Refusal("ALREADY_EXISTS", f"Resource '{node}' already exists")
        request = self.requests[name] = {**body, "name": name, "createTime": now()}
        _become(request, "ACCEPTED", "USER")
        operation = self._cloud.begin(name, "create", version)

        def accepted() -> None:
            operation.response = request
            self._cloud.finish(operation)
            if self._is_in(name, request, "ACCEPTED"):
                _become(request, "WAITING_FOR_RESOURCES", "SERVICE")
                if self.wait_s is not None:
                    self._cloud.timetable.after(self.wait_s, lambda: self._grant(name, request))

        self._cloud.timetable.after(self._cloud.update_s, accepted)
        if (limit_s := _valid_for_s(body.get("queueingPolicy", {}))) is not None:
            self._cloud.timetable.after(limit_s, lambda: self._expire(name, request))
        return operation.view()

    def get(self, name: str) -> dict[str, Any]:
        if name not in self.requests:
            raise Refusal("NOT_FOUND", f"Resource '{name}' was not found")
        return self.requests[name]

    def delete(self, name: str, version: str, *, force: bool) -> dict[str, Any]:
        request = self.get(name)
        state = request["state"]["state"]
        nodes = [node for node, body in self._cloud.nodes.items() if body.get("queuedResource") == name]
        if not force and (nodes or state not in AT_REST):
            text = f"Queued resource '{name}' is in state {state} and has nodes; delete them first or use force"
            raise Refusal("FAILED_PRECONDITION", text)
        _become(request, "DELETING", "USER")
        operation = self._cloud.begin(name, "delete", version)
        for node in nodes:
            self._cloud.remove_node(node, lambda: None)

        def finish() -> None:
            if self.requests.get(name) is request:
                del self.requests[name]
            self._cloud.finish(operation)

        self._cloud.timetable.after(self._cloud.delete_s, finish)
        return operation.view()

    def grant(self, name: str) -> None:
        """What it asks for is there now."""
        self._grant(name, self.get(name))

    def _grant(self, name: str, request: dict[str, Any]) -> None:
        if not self._is_in(name, request, "WAITING_FOR_RESOURCES"):
            return
        if error := self._cloud.refusal_of_capacity(name):
            _become(request, "FAILED", "SERVICE", failedData={"error": error})
            return
        _become(request, "PROVISIONING", "SERVICE")
        (spec,) = request["tpu"]["nodeSpec"]
        names = _node_names(spec, name.rpartition("/")[2])
        for node in names:
            self._cloud.add_node(node, {**spec["node"], "queuedResource": name})
            scheduling = self._cloud.nodes[node].setdefault("schedulingConfig", {})
            scheduling["spot"] = "spot" in request

        def ready() -> None:
            if self._is_in(name, request, "PROVISIONING"):
                for node in names:
                    self._cloud.make_ready(node)
                _become(request, "ACTIVE", "SERVICE")

        self._cloud.timetable.after(self._cloud.create_s, ready)

    def _expire(self, name: str, request: dict[str, Any]) -> None:
        if any(self._is_in(name, request, state) for state in ("ACCEPTED", "WAITING_FOR_RESOURCES")):
            ending = 4, "The valid-until time of the queued resource is over"
            _become(request, "FAILED", "SERVICE", failedData={"error": checks.error_of(ending, "")})

    def _is_in(self, name: str, request: dict[str, Any], state: str) -> bool:
        return self.requests.get(name) is request and request["state"]["state"] == state

    def _node_lost(self, node: str) -> None:
        """A request whose node was preempted or deleted is suspended, and stays so until it is deleted."""
        for name, request in self.requests.items():
            (spec,) = request["tpu"]["nodeSpec"]
            is_its_node = node in _node_names(spec, name.rpartition("/")[2])
            if is_its_node and request["state"]["state"] in ("ACTIVE", "PROVISIONING"):
                _become(request, "SUSPENDING", "SERVICE")
                self._suspend_later(name, request)

    def _suspend_later(self, name: str, request: dict[str, Any]) -> None:
        def suspended() -> None:
            if self._is_in(name, request, "SUSPENDING"):
                _become(request, "SUSPENDED", "SERVICE")

        self._cloud.timetable.after(self._cloud.update_s, suspended)


def _become(request: dict[str, Any], state: str, initiator: str, **data: Any) -> None:
    words = state.lower().split("_")
    key = "".join([words[0], *map(str.title, words[1:]), "Data"])
    # WAITING_FOR_RESOURCES has no data of its own in the API's messages.
    own = {} if state == "WAITING_FOR_RESOURCES" else {key: {}}
    request["state"] = {"state": state, "stateInitiator": initiator, **own, **data}


def _node_names(spec: dict[str, Any], ident: str) -> list[str]:
    many = spec.get("multisliceParams")
    if not many:
        return [f"{spec['parent']}/nodes/{spec['nodeId']}"]
    prefix = many.get("nodeIdPrefix", ident)
    return [f"{spec['parent']}/nodes/{prefix}-{index}" for index in range(many["nodeCount"])]


def _valid_for_s(policy: dict[str, Any]) -> float | None:
    if found := re.fullmatch(r"([0-9.]+)s", policy.get("validUntilDuration", "")):
        return float(found[1])
    end = policy.get("validUntilTime") or policy.get("validInterval", {}).get("endTime")
    if not end:
        return None
    until = datetime.datetime.fromisoformat(end)
    return (until - datetime.datetime.now(datetime.UTC)).total_seconds()
