"""A model behind HTTP on this machine that fails and stalls as a test wants it to, and remembers what it was asked."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """A request as the server got it; `acknowledged` once another one has come over the same connection after it."""

    text: str
    path: str
    headers: Mapping[str, str]
    body: Any
    at_s: float = field(default_factory=time.monotonic)
    answered: bool = False
    acknowledged: bool = False


# What the server does with a request: it returns an answer (status, headers, body), or sends something itself and
# returns None, and the connection ends.
Behaviour = Callable[["Handler", Asked], "tuple[int, Mapping[str, str], Any] | None"]


def completion(text: str) -> dict[str, Any]:
    """A chat completion, as the API of OpenAI has it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"object": "chat.completion", "choices": [choice], "usage": {"total_tokens": len(text)}}


def answer(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any]:
    """The last message, backwards."""
    return 200, {}, completion(asked.text[::-1])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    # The request before over the same connection.
    before: Asked | None = None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.before is not None:
            self.before.acknowledged = self.before.answered
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(body["messages"][-1]["content"], self.path, headers, body)
        self.before = asked
        self.server.asked.append(asked)
        reply = self.server.behaviour(self, asked)
        if reply is None:
            self.close_connection = True
            return
        status, more, content = reply
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), "Content-Type": "application/json", **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        asked.answered = status == 200 and not isinstance(content, bytes)

    def reset(self) -> None:
        """End the connection with a reset, without an answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.connection.close()

    def break_off(self) -> None:
        """Send half of an answer."""
        self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": [')

    def stall(self) -> None:
        """Send nothing, until the server ends."""
        self.server.ended.wait()

    def trickle(self) -> None:
        """Send a byte now and then, for ever."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        with contextlib.suppress(OSError):
            while not self.server.ended.wait(0.05):
                self.wfile.write(b" ")

    def flood(self) -> None:
        """Send chunks without an end."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            while not self.server.ended.is_set():
                self.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")

    def log_message(self, *words: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Listens on a free port of this host."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behaviour: Behaviour = answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.asked: list[Asked] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def times(self) -> Counter[str]:
        """How often each text was asked."""
        return Counter(asked.text for asked in self.asked)

    def handle_error(self, request: Any, address: Any) -> None:
        """Clients are killed while they are answered."""


@contextlib.contextmanager
def serving(behaviour: Behaviour = answer) -> Iterator[Server]:
    server = Server(behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def troubled(seed: int, share: float) -> Behaviour:
    """Answers after some milliseconds, but fails this share of the requests in one way or another."""
    chance = random.Random(seed)

    def behave(handler: Handler, asked: Asked) -> tuple[int, Mapping[str, str], Any] | None:
        time.sleep(chance.uniform(0, 0.02))
        if chance.random() >= share:
            return answer(handler, asked)
        failures: list[Callable[[], Any]] = [
            lambda: (500, {}, {"error": "overloaded"}),
            lambda: (429, {"Retry-After": "0"}, {"error": "slow down"}),
            lambda: (200, {"Content-Type": "text/html"}, b"<html>a proxy"),
            handler.reset,
            handler.break_off,
            handler.stall,
        ]
        found: tuple[int, Mapping[str, str], Any] | None = chance.choice(failures)()
        return found

    return behave
