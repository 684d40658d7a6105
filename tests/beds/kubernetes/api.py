"""Requests to the bed's API server, past everything that a test has put between it and `kubectl`."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class _Connection(http.client.HTTPSConnection):
    """HTTPS over a connection that somebody else makes."""

    def __init__(self, dial: Callable[[], socket.socket], context: ssl.SSLContext) -> None:
        super().__init__("127.0.0.1", context=context, timeout=30)
        self._dial = dial
        self._tls = context

    def connect(self) -> None:
        self.sock = self._tls.wrap_socket(self._dial(), server_hostname="127.0.0.1")
        self.sock.settimeout(30)


class Api:
    """`dial` makes a connection to the API server, which is kept; `authority` is the PEM file that vouches for it."""

    def __init__(self, dial: Callable[[], socket.socket], authority: str, token: str) -> None:
        self._dial = dial
        self._authority = authority
        self._token = token
        self._turn = threading.Lock()
        self._kept: _Connection | None = None

    def get(self, path: str) -> Object:
        return self._ask("GET", path)

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        return self._ask("POST", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """A merge patch."""
        return self._ask("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Object:
        return self._ask("DELETE", path, body)

    def watch(self, path: str) -> Iterator[Object]:
        """Its events, until the API server ends the connection."""
        connection = self._connect()
        try:
            answer = self._send(connection, "GET", path, None, "application/json")
            connection.sock.settimeout(None)
            while line := answer.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def is_ready(self) -> bool:
        try:
            self._ask("GET", "/readyz?verbose=no", parse=False)
        except (ApiError, OSError, http.client.HTTPException):
            return False
        return True

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, kind: str = "application/json",
        parse: bool = True,
    ) -> Object:  # fmt: skip
        with self._turn:
            try:
                data = self._over_the_kept(method, path, body, kind)
            except ApiError:
                raise
            except BaseException:
                self._drop()
                raise
        return json.loads(data) if parse else {}

    def _over_the_kept(self, method: str, path: str, body: Mapping[str, Any] | None, kind: str) -> bytes:
        if self._kept is not None:
            # The server may have ended meanwhile, or have closed what was idle.
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self._send(self._kept, method, path, body, kind).read()
            self._drop()
        self._kept = self._connect()
        return self._send(self._kept, method, path, body, kind).read()

    def _drop(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _connect(self) -> _Connection:
        return _Connection(self._dial, ssl.create_default_context(cafile=self._authority))

    def _send(
        self, connection: _Connection, method: str, path: str, body: Mapping[str, Any] | None, kind: str
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        if answer.status >= 300:
            raise ApiError(answer.status, f"{method} {path}: {answer.read().decode(errors='replace')[:500]}")
        return answer
