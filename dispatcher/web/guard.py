"""Who may ask for what. Every request passes here before anything else looks at it.

What each check is against:

- The Host must be a loopback name. A site that lets its own name point to 127.0.0.1 (DNS rebinding) has its own name
  there. Any port will do: through `ssh -L 9000:localhost:8642` the browser says localhost:9000.
- A session, which only the printed link opens: other accounts of the host can connect to the port, too.
- What a page of another origin makes the browser ask is refused, by Sec-Fetch-Site where it is sent, else by Origin.
  Another port of localhost is the same *site* for a browser, so SameSite cookies are sent from there; it is not the
  same origin.
- Changes also need the page's own Origin and a header that forms cannot send, and are POST only.

A cookie is sent to every port of its host name. So a server of another account on another port, if one opens it in the
same browser, is shown the cookie: see docs/web.md.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from dispatcher.web.answers import RefusedError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_TOKEN_BYTES: Final = 32
_REQUEST_HEADER: Final = "x-dispatcher-request"
LOGIN: Final = "/login"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_PORT: Final = re.compile(r"\d{1,5}")
# Sessions of one server; the oldest one ends when there are more.
_MOST_SESSIONS: Final = 100
_READING: Final = frozenset({"GET", "HEAD"})
# How a request comes about that no other page has made: from this page, or typed or clicked outside of the browser.
_OWN: Final = frozenset({"same-origin", "none"})

HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Sessions:
    """The token of one start of the server, and the sessions that it has opened; none outlives the server."""

    def __init__(self, port: int, place: str) -> None:
        """`place`: what tells this workspace from others that one browser may show, through tunnels too."""
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        digest = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        self.cookie = f"dispatcher_{port}_{digest}"
        self._open: dict[bytes, None] = {}

    def open(self, token: str) -> str | None:
        """A new session's value for the token; None when it is another token."""
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.token.encode()):
            return None
        value = secrets.token_urlsafe(_TOKEN_BYTES)
        while len(self._open) >= _MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        self._open[_digest(value)] = None
        return value

    def has(self, value: str) -> bool:
        """Whether that is an open session. Digests are compared, so the time tells nothing of the value."""
        return _digest(value) in self._open


class Guard:
    """Lets requests through that may be answered, and gives every answer its headers."""

    def __init__(
        self,
        app: App,
        sessions: Sessions,
        refuse: Callable[[RefusedError], App],
        let_in: Callable[[tuple[str, int]], object],
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._refuse = refuse
        self._let_in = let_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RefusedError as error:
            await self._refuse(error)(scope, receive, _with_headers(send))
            return
        await self._app(scope, receive, _with_headers(send))

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope["headers"])
        host = check_host(headers)
        method, path = scope["method"], scope["path"]
        _check_site(headers, host, method, path)
        if path == LOGIN:
            return
        if not self._has_session(headers):
            raise RefusedError(
                401, "not logged in here: open the link that `dispatcher web` has printed (each start has a new one)"
            )
        self._let_in(tuple(scope["client"]))
        if method not in _READING:
            _check_change(headers, host)

    def _has_session(self, headers: Headers) -> bool:
        # Not by http.cookies, which reads none when another server of this host name has set one with a quote in it.
        pairs = (pair.strip().partition("=") for line in headers.all("cookie") for pair in line.split(";"))
        return any(name == self._sessions.cookie and self._sessions.has(value) for name, _, value in pairs)


class Headers:
    """The headers of a request by their names in small letters."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in raw:
            self._values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def one(self, name: str) -> str | None:
        """The value; None when there is none. One that is there twice is refused."""
        values = self.all(name)
        if len(values) > 1:
            raise RefusedError(400, f"{len(values)} headers {name}: expected one")
        return values[0] if values else None


def check_host(headers: Headers) -> str:
    """The Host, which must be a loopback name with any port."""
    host = headers.one("host") or ""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not colon:
        name = host
    if name.lower() not in _LOOPBACK or (colon and not _PORT.fullmatch(port)):
        raise RefusedError(
            403,
            f"Host {host[:100]!r}: this page is shown at localhost or 127.0.0.1 only. From another machine, "
            "forward the port (ssh -L PORT:localhost:PORT HOST) and open http://localhost:PORT",
        )
    return host.lower()


def _check_site(headers: Headers, host: str, method: str, path: str) -> None:
    """Refuse what a page of another origin has asked for."""
    site = headers.one("sec-fetch-site")
    if site is not None and site not in _OWN:
        # A link somewhere to the page itself may be followed; nothing is shown there without a session.
        is_followed = headers.one("sec-fetch-mode") == "navigate" and headers.one("sec-fetch-dest") == "document"
        if not (is_followed and method == "GET" and not path.startswith("/api/")):
            raise RefusedError(403, f"Sec-Fetch-Site {site[:30]!r}: another page asked for this, which is refused")
    origin = headers.one("origin")
    if origin is not None and not _is_own(origin, host):
        raise RefusedError(403, f"Origin {origin[:100]!r}: another page asked for this, which is refused")


def _check_change(headers: Headers, host: str) -> None:
    origin = headers.one("origin")
    if origin is None or not _is_own(origin, host):
        raise RefusedError(403, f"Origin {origin!r}: changes are taken from the page at http://{host} only")
    if headers.one(_REQUEST_HEADER) != "1":
        raise RefusedError(403, "changes need the header X-Dispatcher-Request: 1, which only the page's script sends")


def _is_own(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    # The port that a browser leaves out is 80.
    return parts.scheme == "http" and parts.netloc.lower().removesuffix(":80") == host.removesuffix(":80")


def _with_headers(send: Send) -> Send:
    async def send_them(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(one for one in HEADERS if one[0] not in given)]
            if b"cache-control" not in given:
                message["headers"].append((b"cache-control", b"no-store"))
        await send(message)

    return send_them


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()
