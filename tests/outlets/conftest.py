"""Attempts without a dispatcher: the wrapper as it is rendered, started as the local outlet starts it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import wait_until

from dispatcher.config import Config, Method
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Attempt, Ended, Slot
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.outlet import LocalOutlet
from dispatcher.pod.launch import prepare
from dispatcher.run_state import liveness
from dispatcher.workspace import Layout


class Trial:
    """One attempt of a small bash script: prepared, and started as the test wants it."""

    def __init__(
        self,
        root: Path,
        script: str,
        grace_s: float = 15.0,
        lost_after_s: float = 600.0,
        setup: str = "",
        python: Path | None = None,
        **entry: Any,
    ) -> None:
        root.mkdir(exist_ok=True)
        layout = Layout(root)
        self.paths = layout.attempt("job", 1)
        self.paths.directory.mkdir(parents=True)
        method = Method(name="m", template=root / "none.py", setup=setup, python=python)
        config = Config(
            layout=layout,
            matrix=root / "m.json",
            methods={"m": method},
            kill_grace_s=grace_s,
            lost_after_s=lost_after_s,
        )
        command = entry.pop("command", ("bash", "-c", script))
        made = Entry(job_id="job", method="m", command=command, **entry)
        self.attempt: Attempt = prepare(config, "pod", made, 1, Slot(), self.paths)
        self.outlet = LocalOutlet()
        self.handle = ""

    def start(self) -> Trial:
        fd = liveness.take(self.paths.alive)
        assert fd is not None
        self.handle = self.outlet.submit(self.attempt, fd)
        os.close(fd)
        return self

    @property
    def pid(self) -> int:
        """The wrapper's."""
        return int(self.handle.partition(":")[0])

    @property
    def output(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.paths.log.read_text(encoding="utf-8", errors="surrogateescape")
        return ""

    @property
    def exit(self) -> dict[str, Any]:
        return dict(json.loads(self.paths.exit.read_text()))

    def says(self, text: str) -> Trial:
        """Wait until the job has said it."""
        wait_until(lambda: text in self.output, f"the job says {text!r}")
        return self

    def end(self) -> Ended:
        """Wait until nothing of it is left; how it ended."""
        found = wait_until(self._ended, f"{self.tree()} have ended")
        assert isinstance(found, Ended)
        assert self.tree() == []
        assert liveness.is_held(self.paths.alive) is False
        return found

    def _ended(self) -> Ended | None:
        outcome = self.outlet.poll([self.handle])[self.handle]
        return outcome if isinstance(outcome, Ended) else None

    def tree(self) -> list[int]:
        """Every process that is the attempt's."""
        return processes.of_attempt(self.paths.directory)

    def running(self, program: str) -> int:
        """How many processes of the attempt run this program."""
        found = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                found += Path(f"/proc/{pid}/comm").read_text().strip() == program
        return found

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def by_hand(self) -> subprocess.CompletedProcess[str]:
        words = ["bash", os.fspath(self.paths.wrapper)]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    def close(self) -> None:
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.handle:
            wait_until(self._ended, "what was killed is gone")


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    """Makes attempts in a workspace whose name shells choke on. What loses its parent becomes this process's child."""
    made: list[Trial] = []

    def make(script: str, root: Path = tmp_path / "a'; echo foo", **rest: Any) -> Trial:
        made.append(Trial(root, script, **rest))
        return made[-1]

    processes.adopt_orphans()
    try:
        yield make
        for one in made:
            one.close()
    finally:
        no_subreaper = ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
        assert no_subreaper == 0
