"""Real servers on loopback that take notices: an HTTP server and a mail server, whose answers a test chooses."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import SMTP as POLICY
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword


class Hook:
    """An HTTP server. `answers` are used up one by one, the last one stays; `stall` does not answer at all."""

    def __init__(self, *answers: int | str) -> None:
        self.answers: list[int | str] = list(answers) or [200]
        self.got: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.released = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.take(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/s3cret-path"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.headers.append(dict(handler.headers))
        self.got.append(json.loads(body))
        if answer == "stall":
            self.released.wait(60)
            return
        with contextlib.suppress(OSError):
            handler.send_response(int(answer))
            if int(answer) in (301, 302):
                handler.send_header("Location", f"http://127.0.0.1:{self.port}/elsewhere")
            handler.send_header("Content-Length", "0")
            handler.end_headers()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class _BoundController(Controller):
    """Listens on a socket that is bound already, so that nobody else can take its port."""

    bound: socket.socket

    def _create_server(self) -> Any:
        return self.loop.create_server(self._factory_invoker, sock=self.bound, ssl=self.ssl_context)


class MailServer:
    """An SMTP server. `answer` is what it says to the content of a message; it may take `delay_s` for that.

    With a `context` it has TLS, from the first byte or after STARTTLS, before which it takes nothing. `logins`: how
    often it was sent a password.
    """

    def __init__(
        self, answer: str = "250 OK", *, password: str = "", delay_s: float = 0.0, tls: str = "none",
        context: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self.answer = answer
        self.delay_s = delay_s
        self.logins = 0
        self.got: list[EmailMessage] = []
        self.raw: list[bytes] = []
        self.recipients: list[str] = []
        self.refused: set[str] = set()
        self._password = password
        options: dict[str, Any] = {}
        if password:
            # A server that has no STARTTLS takes passwords without.
            options |= {"authenticator": self._check, "auth_required": True, "auth_require_tls": tls == "starttls"}
        if tls == "starttls":
            options |= {"tls_context": context, "require_starttls": True}
        elif tls == "tls":
            options |= {"ssl_context": context}
        bound = socket.create_server(("127.0.0.1", 0))
        self.port = bound.getsockname()[1]
        self._controller = _BoundController(self, hostname="127.0.0.1", port=self.port, **options)
        self._controller.bound = bound
        self._controller.start()

    def _check(self, *words: Any) -> AuthResult:
        self.logins += 1
        data = words[-1]
        known = isinstance(data, LoginPassword) and data.password == self._password.encode()
        return AuthResult(success=known, handled=False)

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Envelope, address: str, _options: Any) -> str:
        if address in self.refused:
            return "550 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Envelope) -> str:
        time.sleep(self.delay_s)
        self.raw.append(bytes(envelope.original_content or b""))
        self.got.append(BytesParser(policy=POLICY).parsebytes(self.raw[-1]))  # type: ignore[arg-type]
        self.recipients += envelope.rcpt_tos
        return self.answer

    def close(self) -> None:
        self._controller.stop()


@contextlib.contextmanager
def hook(*answers: int | str) -> Iterator[Hook]:
    server = Hook(*answers)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def mail_server(answer: str = "250 OK", **options: Any) -> Iterator[MailServer]:
    server = MailServer(answer, **options)
    try:
        yield server
    finally:
        server.close()
