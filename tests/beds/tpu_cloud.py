"""The cloud behind the API of the TPU bed: nodes, their machines, and operations that take their time.

All of it lives in this process; `Cloud` is its state behind one lock, which a thread moves on when something is due.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import tpu_checks as checks
from .tpu_checks import Refusal
from .tpu_network import Vm

TYPE = "type.googleapis.com/google.cloud.tpu.{version}.{name}"
GONE = ("PREEMPTED", "TERMINATED")


@dataclass
class Operation:
    """`error` and `response` are what it shows when it is done."""

    name: str
    metadata: dict[str, Any]
    is_done: bool = False
    error: dict[str, Any] | None = None
    response: dict[str, Any] | None = None

    def view(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"name": self.name, "metadata": self.metadata, "done": self.is_done}
        if self.is_done:
            shown |= {"error": self.error} if self.error else {"response": self.response or {"@type": EMPTY}}
        return shown


EMPTY = "type.googleapis.com/google.protobuf.Empty"


class Timetable:
    """Calls what is due, one after the other and under `lock`, in a thread of its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._is_open = True
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        with self.lock:
            self._due.append((time.monotonic() + delay_s, next(self._order), call))
            self._changed.notify()

    def close(self) -> None:
        with self.lock:
            self._is_open = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        with self.lock:
            while self._is_open:
                self._due.sort()
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                _, _, call = self._due.pop(0)
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - told to the test by the bed, when it ends
                    self.failure = error


class Cloud:
    """Nodes by their full names, as the API shows them. Times in seconds; `make_vm` gets a name, a count and whether
    the machines have external addresses.

    - `create_s`, `delete_s`, `update_s`: how long operations take.
    - `no_capacity`: code and message that creating ends with from now on, as those in tpu_checks.
    """

    def __init__(self, make_vm: Callable[[str, int, bool], Vm]) -> None:
        self.create_s, self.delete_s, self.update_s = 0.2, 0.1, 0.1
        self.no_capacity: tuple[int, str] | None = None
        self.nodes: dict[str, dict[str, Any]] = {}
        self.vms: dict[str, Vm] = {}
        self.operations: dict[str, Operation] = {}
        self.project_metadata: dict[str, str] = {}
        self.timetable = Timetable()
        self.lock = self.timetable.lock
        self._make_vm = make_vm
        self._numbers = itertools.count(1)
        # Nodes with an operation under way that excludes another one.
        self._busy: set[str] = set()
        # Told of every node that is gone or lost, by its full name: queued resources end with their nodes.
        self.on_loss: Callable[[str], None] = lambda name: None

    def close(self) -> None:
        self.timetable.close()
        for vm in self.vms.values():
            vm.erase()

    # What the API does.

    def create_node(self, location: str, ident: str, body: dict[str, Any], version: str) -> dict[str, Any]:
        zone = location.rpartition("/")[2]
        checks.check_name(ident, "node_id")
        checks.check_node(body, zone, version)
        name = f"{location}/nodes/{ident}"
        if name in self.nodes:
            raise Refusal("ALREADY_EXISTS", f"Resource '{name}' already exists")
        self.add_node(name, body)
        operation = self.begin(name, "create", version)
        self.timetable.after(self.create_s, lambda: self._created(name, operation))
        return operation.view()

    def delete_node(self, name: str, version: str) -> dict[str, Any]:
        self.node(name)
        operation = self.begin(name, "delete", version)
        self.remove_node(name, lambda: self.finish(operation))
        return operation.view()

    def stop_node(self, name: str, version: str) -> dict[str, Any]:
        node = self.node(name)
        self._check_state(node, "stop", "READY")
        if len(node["networkEndpoints"]) > 1:
            raise checks.bad_request("stop is not supported for a node of several workers")
        node["state"] = "STOPPING"
        self.vms[name].power_cut()
        return self._become(name, "STOPPED", self.begin(name, "stop", version))

    def start_node(self, name: str, version: str) -> dict[str, Any]:
        node = self.node(name)
        self._check_state(node, "start", "STOPPED")
        node["state"] = "STARTING"
        self.vms[name].boot(startup_script(node))
        return self._become(name, "READY", self.begin(name, "start", version))

    def update_node(self, name: str, body: dict[str, Any], mask: str, version: str) -> dict[str, Any]:
        """Only one update at a time: a second one is ABORTED (409), as when two clients bring their ssh keys."""
        node = self.node(name)
        known = {"metadata", "labels", "tags", "description"}
        if not mask or not set(mask.split(",")) <= known:
            raise Refusal("INVALID_ARGUMENT", f"Invalid update mask: {mask!r}")
        checks.check_fields(body, checks.node_fields(version), "node")
        self._check_state(node, "update", "CREATING", "READY")
        if name in self._busy:
            raise Refusal("ABORTED", f"there is another operation in progress for {name}")
        self._busy.add(name)
        operation = self.begin(name, "update", version)

        def finish() -> None:
            self._busy.discard(name)
            if self.nodes.get(name) is node:
                node.update({key: body[key] for key in mask.split(",") if key in body})
                self.spread_keys(name)
                operation.response = node
            self.finish(operation)

        self.timetable.after(self.update_s, finish)
        return operation.view()

    def metadata(self, address: str, path: str) -> str:
        """What the metadata server of the machine with this address tells."""
        for name, vm in self.vms.items():
            for index, worker in enumerate(vm.workers):
                if worker.address == address and path == "attributes/tpu-env":
                    _, project, _, zone, _, ident = name.split("/")
                    known = {"CONSUMER_PROJECT_ID": project, "NODE_ID": ident, "WORKER_ID": index, "ZONE": zone}
                    return "".join(f"{key}: '{value}'\n" for key, value in known.items())
        raise Refusal("NOT_FOUND", f"there is no {path} for {address}")

    def node(self, name: str) -> dict[str, Any]:
        if name not in self.nodes:
            raise Refusal("NOT_FOUND", f"Resource '{name}' was not found")
        return self.nodes[name]

    def operation(self, name: str) -> dict[str, Any]:
        if name not in self.operations:
            raise Refusal("NOT_FOUND", f"Resource '{name}' was not found")
        return self.operations[name].view()

    # Parts, also for queued resources.

    def add_node(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """A node that is CREATING: it has neither machines nor addresses yet."""
        number = next(self._numbers)
        node = self.nodes[name] = {
            **body, "name": name, "id": str(10**18 + number), "state": "CREATING", "apiVersion": "V2",
            "createTime": now(), "networkEndpoints": [],
        }  # fmt: skip
        return node

    def make_ready(self, name: str) -> None:
        """The machines boot before the node says READY."""
        node = self.nodes[name]
        is_external = node.get("networkConfig", {}).get("enableExternalIps", False)
        count = checks.workers_of(node.get("acceleratorType", "v2-8")) or 1
        vm = self.vms[name] = self._make_vm(f"t1v-n-{node['id'][-8:]}", count, is_external)
        self.spread_keys(name)
        vm.boot(startup_script(node))
        node["networkEndpoints"] = [
            {"ipAddress": worker.address, "port": 8470,
             **({"accessConfig": {"externalIp": worker.external}} if worker.external else {})}
            for worker in vm.workers
        ]  # fmt: skip
        node.update(state="READY", health="HEALTHY")

    def remove_node(self, name: str, then: Callable[[], None]) -> None:
        node = self.nodes[name]
        node["state"] = "DELETING"
        if name in self.vms:
            self.vms.pop(name).erase()

        def finish() -> None:
            if self.nodes.get(name) is node:
                del self.nodes[name]
                self.on_loss(name)
            then()

        self.timetable.after(self.delete_s, finish)

    def lose_node(self, name: str, state: str) -> None:
        """Its machines vanish at once, with their disks; the node stays in `state` until somebody deletes it."""
        if name in self.vms:
            self.vms.pop(name).erase()
        self.nodes[name]["state"] = state
        if state in GONE:
            self.on_loss(name)

    def spread_keys(self, name: str) -> None:
        """ssh-keys of the metadata to the machines: `user:ssh-rsa AAAA...` on each line."""
        vm = self.vms.get(name)
        if vm is None:
            return
        keys: dict[str, list[str]] = {}
        for metadata in (self.project_metadata, self.nodes[name].get("metadata", {})):
            for line in metadata.get("ssh-keys", "").split("\n"):
                user, separator, key = line.partition(":")
                if separator:
                    keys.setdefault(user, []).append(key)
        for worker in vm.workers:
            worker.accept(keys)

    def begin(self, target: str, verb: str, version: str) -> Operation:
        location = target.rsplit("/", 2)[0]
        name = f"{location}/operations/operation-{next(self._numbers)}"
        metadata = {
            "@type": TYPE.format(version=version, name="OperationMetadata"), "createTime": now(), "target": target,
            "verb": verb, "cancelRequested": False, "apiVersion": version,
        }  # fmt: skip
        operation = self.operations[name] = Operation(name, metadata)
        return operation

    def finish(self, operation: Operation) -> None:
        operation.metadata["endTime"] = now()
        if operation.response is not None:
            kind = "Node" if "/nodes/" in operation.metadata["target"] else "QueuedResource"
            at = TYPE.format(version=operation.metadata["apiVersion"], name=kind)
            operation.response = {"@type": at, **operation.response}
        operation.is_done = True

    def refusal_of_capacity(self, name: str) -> dict[str, Any] | None:
        return checks.error_of(self.no_capacity, name.split("/")[3]) if self.no_capacity else None

    def _created(self, name: str, operation: Operation) -> None:
        node = self.nodes.get(name)
        if node is not None and node["state"] in GONE:
            operation.error = checks.error_of(checks.PREEMPTED, "")
        elif node is None or node["state"] != "CREATING":
            operation.error = {"code": 10, "message": f"{name} was deleted while it was created"}
        elif error := self.refusal_of_capacity(name):
            operation.error = error
            del self.nodes[name]
        else:
            self.make_ready(name)
            operation.response = node
        self.finish(operation)

    @staticmethod
    def _check_state(node: dict[str, Any], verb: str, *states: str) -> None:
        if node["state"] not in states:
            raise checks.bad_request(f"{verb} is not supported while in state {node['state']}")

    def _become(self, name: str, state: str, operation: Operation) -> dict[str, Any]:
        node = self.nodes[name]

        def finish() -> None:
            if self.nodes.get(name) is node:
                node["state"] = state
                operation.response = node
            self.finish(operation)

        self.timetable.after(self.update_s, finish)
        return operation.view()


def startup_script(node: dict[str, Any]) -> str:
    return str(node.get("metadata", {}).get("startup-script", ""))


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
