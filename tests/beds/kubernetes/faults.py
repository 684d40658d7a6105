"""What goes wrong between `kubectl` and the API server, request by request.

    with k8s.answering(429, headers={"Retry-After": "1"}, times=1): ...
    with k8s.losing_answers(method="POST", path="/jobs"): ...           # the request has worked, nobody learns it

While there is such a fault, requests pass through a proxy that speaks TLS with the API server's own certificate.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

REASONS = {
    400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 422: "Invalid",
    429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout",
}  # fmt: skip
BUFFER = 1 << 16


@dataclass
class Fault:
    """`path` is a regular expression that is searched in the path and the query; status 0: the answer is lost."""

    status: int
    message: str = ""
    method: str = ""
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    # How often it happens, at most; None is always.
    times: int | None = None
    # How often it has happened.
    happened: int = 0

    def meets(self, method: str, target: str) -> bool:
        if self.times is not None and self.happened >= self.times:
            return False
        return self.method in ("", method) and re.search(self.path, target) is not None

    def answer(self) -> bytes:
        """As the API server would say it."""
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message or f"the bed answers {self.status}",
            "reason": REASONS.get(self.status, ""),
            "code": self.status,
        }
        body = json.dumps(status).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": len(body),
            "Connection": "close",
            **self.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Error')}\r\n{lines}\r\n".encode() + body


class Faults:
    """`dial` makes connections to the API server; the files are its certificate and key."""

    def __init__(self, dial: Callable[[], socket.socket], certificate: str, key: str) -> None:
        self._dial = dial
        self._certificate = certificate
        self._key = key
        self._faults: list[Fault] = []
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def during(self, fault: Fault) -> Iterator[Fault]:
        """It may happen until the end of the block."""
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)

    def connect(self) -> socket.socket:
        """A connection to the API server, through the proxy where there are faults."""
        if not self._faults:
            return self._dial()
        near, far = socket.socketpair()
        threading.Thread(target=self._serve, args=[far], daemon=True).start()
        return near

    def _serve(self, raw: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate, self._key)
        with contextlib.suppress(OSError), raw, context.wrap_socket(raw, server_side=True) as client:
            head = _read_head(client)
            if head is None:
                return
            method, target = head.text.split(" ")[:2]
            fault = self._happening(method, target)
            if fault is None:
                self._pass(client, head)
            elif fault.status:
                head.read_body(client)
                client.sendall(fault.answer())
            else:
                self._lose(client, head)

    def _happening(self, method: str, target: str) -> Fault | None:
        with self._turn:
            for fault in self._faults:
                if fault.meets(method, target):
                    fault.happened += 1
                    return fault
        return None

    def _upstream(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self._certificate)
        return context.wrap_socket(self._dial(), server_hostname="127.0.0.1")

    def _pass(self, client: ssl.SSLSocket, head: _Head) -> None:
        with self._upstream() as server:
            server.sendall(head.for_one_request())
            _pump(client, server)

    def _lose(self, client: ssl.SSLSocket, head: _Head) -> None:
        """The request arrives and is answered; the client sees the connection break."""
        with self._upstream() as server:
            head.read_body(client)
            server.sendall(head.for_one_request())
            while server.recv(BUFFER):
                pass


@dataclass
class _Head:
    """The first lines of a request, and what came with them of its body."""

    text: str
    body: bytes

    def for_one_request(self) -> bytes:
        """The connection ends with its answer, unless it becomes a stream."""
        text = self.text
        if not re.search(r"\r\nConnection: *upgrade", text, re.IGNORECASE):
            text = text.replace("\r\n", "\r\nConnection: close\r\n", 1)
        return text.encode() + self.body

    def read_body(self, client: socket.socket) -> None:
        """The rest of it."""
        found = re.search(r"\r\nContent-Length: *(\d+)", self.text, re.IGNORECASE)
        while found and len(self.body) < int(found[1]):
            if not (data := client.recv(BUFFER)):
                return
            self.body += data


def _read_head(client: socket.socket) -> _Head | None:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := client.recv(BUFFER)):
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    return _Head(head.decode() + "\r\n\r\n", body)


def _pump(client: ssl.SSLSocket, server: ssl.SSLSocket) -> None:
    """Both ways, until one side has ended."""
    ends = {client: server, server: client}
    while True:
        ready = [end for end in ends if end.pending()] or select.select(list(ends), [], [])[0]
        for source in ready:
            data = source.recv(BUFFER)
            if not data:
                return
            ends[source].sendall(data)
