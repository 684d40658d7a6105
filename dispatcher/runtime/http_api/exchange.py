"""One request and its response, over a connection that is kept alive."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from dispatcher.errors import RequestError
from dispatcher.runtime.http_api.route import open_route, routed

_CONNECT_TIMEOUT_S: Final = 30.0
# A server that does not end its response must not fill the memory.
MOST_BYTES: Final = 128 * 2**20


@dataclass(frozen=True)
class HttpRequest:
    """A POST of `body` as JSON. `headers` hold no secret."""

    url: str
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> str:
        """The path and query of the URL."""
        parts = urlsplit(self.url)
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def digest(self) -> str:
        """The SHA-256 of path and body; keys are sorted, so that their order does not count."""
        content = json.dumps([self.target, self.body], sort_keys=True, allow_nan=False, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class HttpResponse:
    """A response that was received completely; the names in `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class IncompleteExchangeError(Exception):
    """No complete response: the server could not be reached, broke off, or took too long."""


class Connection:
    """Sends requests one after the other, for one thread. `expire` and `abort` are called by another one."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._http: http.client.HTTPConnection | None = None
        self._server: tuple[str, str] | None = None
        # Guards the fields below, which `expire` reads.
        self._lock = threading.Lock()
        # http.client forgets the socket before it reads the body of a connection that will be closed.
        self._sock: socket.socket | None = None
        self._deadline_s: float | None = None
        self._expired = False
        self._aborted = False

    def post(self, request: HttpRequest, headers: Mapping[str, str]) -> HttpResponse:
        """The response to `request`, sent with `headers` in addition; IncompleteExchangeError when there is none."""
        body = json.dumps(request.body, allow_nan=False).encode()
        given = {"Content-Type": "application/json", "Accept": "application/json", **request.headers, **headers}
        with self._lock:
            self._expired, self._deadline_s = False, time.monotonic() + self._timeout_s
        try:
            connection = self._connected(urlsplit(request.url))
            target, more = routed(request.url, request.target)
            connection.request("POST", target, body, {**given, **more})
            response = connection.getresponse()
            received = _body(response)
            names = {name.lower(): value for name, value in response.getheaders()}
            return HttpResponse(response.status, names, received)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise RequestError(
                f"{request.url}: the server's certificate is not trusted: {error.verify_message}. Correct api.url, or "
                "name the authority's file in the environment variable SSL_CERT_FILE"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise IncompleteExchangeError(self._reason(error)) from None
        except BaseException:
            self.close()
            raise
        finally:
            with self._lock:
                self._deadline_s = self._sock = None

    def expire(self, now_s: float) -> None:
        """Break off an exchange that is past its deadline."""
        with self._lock:
            if self._deadline_s is not None and now_s >= self._deadline_s:
                self._expired = True
                self._shut_down()

    def abort(self) -> None:
        """Break off the exchange in progress, if there is one; nothing is sent any more."""
        with self._lock:
            self._aborted = True
            self._shut_down()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._http is not None:
            self._http.close()

    def _connected(self, url: SplitResult) -> http.client.HTTPConnection:
        server = (url.scheme, url.netloc)
        if self._http is None or self._server != server:
            self.close()
            self._http = open_route(url, min(_CONNECT_TIMEOUT_S, self._timeout_s))
            self._server = server
        if self._http.sock is not None and _is_dropped(self._http.sock):
            self._http.close()
        if self._http.sock is None:
            self._http.connect()
        with self._lock:
            if self._aborted:
                raise ConnectionAbortedError("the job has ended")
            self._sock = self._http.sock
        # Each wait for data; `expire` bounds their sum.
        self._sock.settimeout(self._timeout_s)
        return self._http

    def _shut_down(self) -> None:
        if self._sock is not None:
            # Not the method of an SSLSocket, which would take the TLS state away from the thread that reads.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def _reason(self, error: Exception) -> str:
        with self._lock:
            if self._expired or isinstance(error, TimeoutError):
                return f"no complete response within {self._timeout_s:g} s"
        if isinstance(error, http.client.IncompleteRead):
            return "the server broke off in the middle of its response"
        if isinstance(error, http.client.RemoteDisconnected):
            return "the server closed the connection without a response"
        return " ".join(f"{type(error).__name__}: {error}".split())


def _body(response: http.client.HTTPResponse) -> bytes:
    """The complete body; HTTPException when it is too long."""
    if response.length is None:
        received = response.read(MOST_BYTES + 1)
        if len(received) <= MOST_BYTES:
            return received
    elif response.length <= MOST_BYTES:
        # Not with a limit: then `read` does not notice that the server broke off.
        return response.read()
    raise http.client.HTTPException(f"a response of more than {MOST_BYTES >> 20} MB")


def _is_dropped(sock: socket.socket) -> bool:
    """Whether the server has closed a connection that is idle: then there is something to read, its end."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))
