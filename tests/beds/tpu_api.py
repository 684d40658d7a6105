"""The HTTP side of the TPU bed: Cloud TPU API v2 and v2alpha1, and what `gcloud` asks of Compute for ssh.

Every request is kept, and faults come between it and the cloud.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import tpu_checks as checks
from .tpu_checks import Refusal
from .tpu_cloud import Cloud
from .tpu_queue import Queue

METADATA = "/computeMetadata/v1/instance/"
# Of the service account of the VMs.
VM_TOKEN = "ya29.vm"
COMPUTE = re.compile(r"/compute/v1/projects/([^/]+)")
TPU = re.compile(
    r"/(v2|v2alpha1)/(projects/([^/]+)/locations/([^/:]+))/"
    r"(nodes|queuedResources|operations|acceleratorTypes|runtimeVersions)(?:/([^/:]+))?(?::(\w+))?"
)
VERBS = {"GET": "get", "DELETE": "delete", "PATCH": "patch"}


@dataclass(frozen=True)
class Request:
    """`kind` is `nodes.create`, `nodes.patch` ... as the API's methods are called; `name` the resource's own name."""

    kind: str
    name: str
    query: dict[str, str]
    body: dict[str, Any]
    version: str


@dataclass
class Fault:
    """What happens to the next `times` requests whose kind matches the pattern."""

    pattern: str
    times: int
    refusal: Refusal | None = None
    is_answer_lost: bool = False
    delay_s: float = 0.0


class Api:
    """`vm_may_delete`: whether the service account of the VMs has the permission to delete them."""

    def __init__(self, cloud: Cloud, queue: Queue, token: str) -> None:
        self.cloud, self.queue, self.token = cloud, queue, token
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        # Of VMs: what they ask for themselves.
        self.vm_requests: list[Request] = []
        self.vm_may_delete = True
        self._server: ThreadingHTTPServer | None = None

    def serve(self, listener: socket.socket) -> None:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Else the body waits until the client has acknowledged the head, which it does 40 ms later.
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None:
                """Requests are kept in `Api.requests`."""

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def do_GET(self) -> None:
                if self.path.startswith(METADATA):
                    self.tell(*api.metadata(self.client_address[0], self.path.removeprefix(METADATA)))
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = api.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
                if answer is None:
                    self.close_connection = True
                    return
                status, message = answer
                self.tell(status, json.dumps(message))

            def tell(self, status: int, text: str) -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json; charset=UTF-8")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PATCH = do_DELETE = do_GET

        self._server = ThreadingHTTPServer(listener.getsockname(), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, Any] | None:
        """Status and message; None where the answer is lost."""
        fault = None
        try:
            call, request = self._parse(method, path, body)
            if authorization == f"Bearer {VM_TOKEN}":
                return self._answer_vm(call, request)
            with self.cloud.lock:
                self.requests.append(request)
                fault = self._next_fault(request.kind)
            if fault is not None:
                time.sleep(fault.delay_s)
                if fault.refusal is not None:
                    raise fault.refusal
            if authorization != f"Bearer {self.token}":
                raise Refusal("UNAUTHENTICATED", "Request had invalid authentication credentials.")
            with self.cloud.lock:
                if failure := self.cloud.timetable.failure:
                    # Of a status that gcloud does not try again, and shows.
                    raise Refusal("FAILED_PRECONDITION", f"the bed itself has failed: {failure}")
                answer = 200, json.loads(json.dumps(call()))
        except Refusal as refusal:
            error = {"code": refusal.code, "message": refusal.message, "status": refusal.status}
            answer = refusal.code, {"error": error}
        return None if fault is not None and fault.is_answer_lost else answer

    def metadata(self, address: str, path: str) -> tuple[int, str]:
        """What the metadata server tells a machine with this address."""
        if path == "service-accounts/default/token":
            return 200, json.dumps({"access_token": VM_TOKEN, "expires_in": 3599, "token_type": "Bearer"})
        try:
            with self.cloud.lock:
                return 200, self.cloud.metadata(address, path)
        except Refusal as refusal:
            return refusal.code, refusal.message

    def _answer_vm(self, call: Callable[[], Any], request: Request) -> tuple[int, Any]:
        with self.cloud.lock:
            self.vm_requests.append(request)
            if request.kind.endswith(".delete") and not self.vm_may_delete:
                # What there is, Google tells only whoever may do it.
                kind = request.kind
                raise Refusal("PERMISSION_DENIED", f"Permission 'tpu.{kind}' denied on resource (or it may not exist).")
            return 200, json.loads(json.dumps(call()))

    def _next_fault(self, kind: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fnmatch.fnmatchcase(kind, fault.pattern):
                fault.times -= 1
                return fault
        return None

    def _parse(self, method: str, path: str, body: bytes) -> tuple[Callable[[], Any], Request]:
        url = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(url.query))
        message = json.loads(body) if body else {}
        if found := COMPUTE.fullmatch(url.path):
            project = found[1]
            return lambda: self._project(project), Request("projects.get", project, query, message, "v1")
        found = TPU.fullmatch(url.path)
        if not found:
            raise Refusal("NOT_FOUND", f"The requested URL {url.path} was not found on this server.")
        version, location, project, zone, collection, ident, verb = found.groups()
        verb = verb or self._verb(method, ident)
        name = ident or query.get("nodeId") or query.get("queuedResourceId") or ""
        request = Request(f"{collection}.{verb}", name, query, message, version)
        call = getattr(self, f"_{collection}_{verb}", None)
        if call is None:
            raise Refusal("UNIMPLEMENTED", f"{method} {url.path} is not in this stand-in")

        def checked() -> Any:
            checks.check_place(project, zone)
            return call(location, f"{location}/{collection}/{name}", request)

        return checked, request

    @staticmethod
    def _verb(method: str, ident: str | None) -> str:
        if ident is None:
            return {"GET": "list", "POST": "create"}.get(method, method)
        return VERBS.get(method, method)

    def _project(self, project: str) -> dict[str, Any]:
        checks.check_place(project, "-")
        items = [{"key": key, "value": value} for key, value in self.cloud.project_metadata.items()]
        metadata = {"kind": "compute#metadata", "fingerprint": "YmVk", "items": items}
        return {"kind": "compute#project", "name": project, "id": "1", "commonInstanceMetadata": metadata}

    # Collections and verbs: (the location's name, the resource's full name, the request).

    def _nodes_create(self, location: str, name: str, request: Request) -> Any:
        return self.cloud.create_node(location, request.name, request.body, request.version)

    def _nodes_get(self, location: str, name: str, request: Request) -> Any:
        return self.cloud.node(name)

    def _nodes_list(self, location: str, name: str, request: Request) -> Any:
        return {"nodes": _in_location(self.cloud.nodes, location)}

    def _nodes_delete(self, location: str, name: str, request: Request) -> Any:
        return self.cloud.delete_node(name, request.version)

    def _nodes_patch(self, location: str, name: str, request: Request) -> Any:
        return self.cloud.update_node(name, request.body, request.query.get("updateMask", ""), request.version)

    def _nodes_stop(self, location: str, name: str, request: Request) -> Any:
        return self.cloud.stop_node(name, request.version)

    def _nodes_start(self, location: str, name: str, request: Request) -> Any:
        return self.cloud.start_node(name, request.version)

    def _nodes_getGuestAttributes(self, location: str, name: str, request: Request) -> Any:
        self.cloud.node(name)
        vm = self.cloud.vms.get(name)
        workers = vm.workers if vm else []
        asked = [int(word) for word in request.body.get("workerIds", []) if word]
        return {
            "guestAttributes": [
                {"queryPath": "", "queryValue": {"items": [
                    {"namespace": "hostkeys", "key": "ssh-ed25519", "value": worker.public_key().partition(" ")[2]},
                    {"namespace": "hostkeys", "key": "hostname", "value": worker.name},
                ]}}
                for index, worker in enumerate(workers) if not asked or index in asked
            ]
        }  # fmt: skip

    def _operations_get(self, location: str, name: str, request: Request) -> Any:
        return self.cloud.operation(name)

    def _queuedResources_create(self, location: str, name: str, request: Request) -> Any:
        return self.queue.create(location, request.name, request.body, request.version)

    def _queuedResources_get(self, location: str, name: str, request: Request) -> Any:
        return self.queue.get(name)

    def _queuedResources_list(self, location: str, name: str, request: Request) -> Any:
        return {"queuedResources": _in_location(self.queue.requests, location)}

    def _queuedResources_delete(self, location: str, name: str, request: Request) -> Any:
        return self.queue.delete(name, request.version, force=request.query.get("force") in ("true", "True"))

    def _acceleratorTypes_list(self, location: str, name: str, request: Request) -> Any:
        types = [f"{generation}-{size}" for generation in checks.GENERATIONS for size in checks.SIZES]
        known = [kind for kind in types if checks.workers_of(kind)]
        return {"acceleratorTypes": [{"name": f"{location}/acceleratorTypes/{kind}", "type": kind} for kind in known]}

    def _acceleratorTypes_get(self, location: str, name: str, request: Request) -> Any:
        if checks.workers_of(request.name) is None:
            raise Refusal("NOT_FOUND", f"Resource '{name}' was not found")
        return {"name": name, "type": request.name}

    def _runtimeVersions_list(self, location: str, name: str, request: Request) -> Any:
        found = [{"name": f"{location}/runtimeVersions/{each}", "version": each} for each in checks.VERSIONS]
        return {"runtimeVersions": found}


def _in_location(found: dict[str, Any], location: str) -> list[Any]:
    project, _, zone = location.partition("/locations/")
    prefix = f"{project}/" if zone == "-" else f"{location}/"
    return [value for name, value in found.items() if name.startswith(prefix)]
