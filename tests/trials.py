"""Attempts without a dispatcher: a small bash script each, rendered and run by the local outlet."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
from clocks import UptimeClock
from fleet import wait_until

from dispatcher.base import host
from dispatcher.config import Config, Method
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.assignment import Assignment
from dispatcher.outlets.base import Bundle, Ended, Key, Request, Slot, Status
from dispatcher.outlets.bundle import deliver, render
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.outlet import LocalOutlet
from dispatcher.run_state import liveness
from dispatcher.run_state.observer import Observer
from dispatcher.workspace import Layout

KEY = Key("job", 1)


def local_outlet(config: Config) -> LocalOutlet:
    """The local outlet of a pod with one CPU slot."""
    observer = Observer(config.layout, config.lost_after_s, lambda: True)
    return LocalOutlet(PodContext(pod="pod", config=config, observer=observer, log=print, cpu_slots=1))


class Trial:
    """One attempt of a small bash script: prepared, and started as the test wants it.

    With `clock_s` time passes for its wrapper only when the test says so (`clock`).
    """

    def __init__(
        self,
        root: Path,
        script: str,
        grace_s: float = 15.0,
        lost_after_s: float = 600.0,
        setup: str = "",
        python: Path | None = None,
        slot: Slot = Slot(),  # noqa: B008 - it is frozen
        clock_s: float | None = None,
        **entry: Any,
    ) -> None:
        root.mkdir(exist_ok=True)
        layout = Layout(root)
        if clock_s is not None:
            self.clock = UptimeClock(layout, now_s=clock_s)
        self.paths = layout.attempt("job", 1)
        self.paths.directory.mkdir(parents=True)
        method = Method(name="m", template=root / "none.py", setup=setup, python=python)
        self.config = Config(
            layout=layout,
            matrix=root / "m.json",
            methods={"m": method},
            kill_grace_s=grace_s,
            lost_after_s=lost_after_s,
        )
        command = entry.pop("command", ("bash", "-c", script))
        self.entry = made = Entry(job_id="job", method="m", command=command, **entry)
        self.outlet = local_outlet(self.config)
        self.root = root
        self.paths.claimant.write_text(f"pod\n{host.here()}\n")
        assigned = Assignment(
            entry=made,
            key=KEY,
            pod="pod",
            request=Request(),
            slot=slot,
        )
        self.bundle: Bundle = render(self.config, assigned, self.outlet.site(Slot(), Request(0)))
        deliver(self.bundle, self.config.layout)
        self.is_started = False

    def start(self) -> Trial:
        self.outlet.submit([self.bundle])
        self.is_started = True
        return self

    def status(self) -> Status:
        return self.outlet.poll([KEY])[KEY].status

    @property
    def pid(self) -> int:
        """The wrapper's."""
        placement = self.outlet.poll([KEY])[KEY].placement
        assert placement is not None and placement.pid is not None
        return placement.pid

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
        assert found.ran_s is not None and found.ran_s >= 0
        return msgspec.structs.replace(found, ran_s=None)

    def _ended(self) -> Ended | None:
        status = self.status()
        return status if isinstance(status, Ended) else None

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
        if self.is_started:
            wait_until(self._ended, "what was killed is gone")
