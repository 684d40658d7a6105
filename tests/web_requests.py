"""A running `dispatcher web`, and requests as a browser or somebody else would send them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import commands

TOKEN = re.compile(r"http://127\.0\.0\.1:(\d+)/login\?token=([\w-]{43})\n")


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


class Web:
    """`dispatcher web` in a process of its own."""

    def __init__(self, root: Path, *options: str, port: int = 0) -> None:
        self.root = root
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")}
        self.process = commands.Popen(
            [*commands.COMMAND, "web", "--root", str(root), "--port", str(port), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**environment, "LOGNAME": "ada"}, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.link = self.process.stdout.readline()
        found = TOKEN.fullmatch(self.link)
        assert found, f"no link: {self.link!r} {self.end()!r}"
        self.port, self.token = int(found[1]), found[2]
        self.host = f"127.0.0.1:{self.port}"
        self.cookie = ""

    def raw(self, data: bytes) -> Answer:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall(data)
            received = b""
            while block := connection.recv(65536):
                received += block
        return Answer(received)

    def send(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> Answer:
        """Exactly these headers, and a Host if there is none among them."""
        given = {"Host": self.host, "Connection": "close", **(headers or {})}
        if body:
            given["Content-Length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        return self.raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def log_in(self) -> str:
        """The cookie, as a browser gets it."""
        answer = self.send("GET", f"/login?token={self.token}")
        assert answer.status == 303, answer.body
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return self.cookie

    def get(self, path: str, **headers: str) -> Answer:
        """What the page asks for."""
        own = {"Cookie": self.cookie or self.log_in(), "Sec-Fetch-Site": "same-origin"}
        while (answer := self.send("GET", path, {**own, **headers})).status == 503 and answer.json.get("loading"):
            # As the page does, while the workspace is read for the first time.
            time.sleep(0.1)
        return answer

    def post(self, path: str, value: Any, without: tuple[str, ...] = (), **headers: str) -> Answer:
        """A change as the page sends it, without some of its headers or with others."""
        own = {
            "Cookie": self.cookie or self.log_in(),
            "Origin": f"http://{self.host}",
            "Sec-Fetch-Site": "same-origin",
            "X-Dispatcher-Request": "1",
            "Content-Type": "application/json",
        }
        given = {name: value for name, value in {**own, **headers}.items() if name not in without}
        return self.send("POST", path, given, json.dumps(value).encode())

    def wait_for(self, path: str, is_so: Callable[[Any], bool], what: str) -> Any:
        end_s = time.monotonic() + 60
        while True:
            answer = self.get(path)
            if answer.status == 200 and is_so(answer.json):
                return answer.json
            assert time.monotonic() < end_s, f"{what}: {answer.status} {answer.body[:2000]!r}"
            time.sleep(0.1)

    def end(self) -> str:
        """Stop it as Ctrl-C does; what it has written to stderr."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        _, told = self.process.communicate(timeout=30)
        return told
