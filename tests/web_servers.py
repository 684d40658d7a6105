"""`dispatcher web` of a fleet's workspace, started as a person starts it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator

import commands
import pytest
from fleet import COMMAND, Fleet, wait_until


class Served:
    """`dispatcher web` of a workspace."""

    def __init__(self, fleet: Fleet, words: tuple[str, ...], port: int = 0) -> None:
        self.said = fleet.root / "web.txt"
        with open(self.said, "wb") as file:
            self.process = commands.Popen(
                [*COMMAND, "web", "--port", str(port), *words], cwd=fleet.root, env=fleet.environment(),
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.link = wait_until(self._link, f"the link of dispatcher web, it said {self.said.read_text()!r}")
        self.base = self.link.partition("/login")[0]
        self.port = int(self.base.rpartition(":")[2])

    def _link(self) -> str | None:
        lines = self.said.read_text().splitlines()
        assert self.process.poll() is None, f"dispatcher web has ended: {lines}"
        return next((line for line in lines if line.startswith("http://")), None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            assert self.process.wait(10) in (0, 130, -signal.SIGINT), self.said.read_text()


@contextlib.contextmanager
def serving(fleet: Fleet) -> Iterator[Callable[..., Served]]:
    """Starts servers of a workspace: `serve("--allow-changes")`."""
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: scripts/install web")
    started: list[Served] = []

    def start(*words: str, port: int = 0) -> Served:
        started.append(Served(fleet, words, port))
        return started[-1]

    try:
        yield start
    finally:
        for served in started:
            served.stop()
