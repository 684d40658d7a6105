"""A TPU VM of two workers, and attempts there."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from beds.tpu import TpuBed
from beds.tpu_network import Worker
from fleet import wait_until
from outlets.remote.calls import ask

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.connection import Connection, Lane, Pace
from dispatcher.outlets.remote.operations import (
    AttemptFiles,
    AttemptRead,
    Check,
    Checked,
    Deliver,
    Delivered,
    Hello,
    Launch,
    Launched,
    Operation,
    Read,
)
from dispatcher.outlets.tpu.workers import EXCLUSIVE, WorkersTransport

# All of it.
LOG = {"output.log": (0, 0)}

# Without `take`, which the real wrapper has: this one tells what it was given, and ends when the file `go` says how.
WRAPPER = b"""\
cd "$DISPATCHER_ATTEMPT_DIR"
set -o noclobber
{ echo "$(hostname) $$" >taken; } || exit 1
env >environment
echo "$(hostname) has begun" >output.log
trap 'echo "{\\"exit_code\\": 143, \\"ended_at\\": \\"$(date +%T.%N)\\"}" >exit.json; exit 143' TERM
until [ -s go ]; do sleep 0.02; done
echo "{\\"exit_code\\": $(cat go), \\"ended_at\\": \\"$(date +%T.%N)\\"}" >exit.json
"""


# gcloud takes its time, and much more on a machine that does much else.
PATIENCE_S = 240.0


class Pod:
    """A VM of two workers, and attempts there."""

    def __init__(self, bed: TpuBed) -> None:
        self.bed = bed
        self.workers = bed.create("pod", "v4-16")
        self.connection = self.connect()
        greeting = ask(self.connection, Hello(directories={"home": "~"}), patience_s=PATIENCE_S)
        self.base = f"{greeting.directories['home']}/it's; $(x)"

    def host(self, accelerator_type: str = "v4-16") -> TpuHost:
        return TpuHost(name="pod", cluster="pod", zone=self.bed.zone, accelerator_type=accelerator_type)

    def connect(self, accelerator_type: str = "v4-16", **limits: float) -> Connection:
        return Connection("pod", WorkersTransport(self.host(accelerator_type), **limits), Pace(calls_per_minute=600))

    def ask(self, *operations: Operation, lane: Lane = Lane.CONTROL) -> Any:
        wait_until(lambda: self.connection.free_in_s(lane) == 0.0, "a call is allowed after one without an answer")
        return ask(self.connection, *operations, timeout_s=120, lane=lane, patience_s=PATIENCE_S)

    def name(self, attempt: str) -> str:
        """Its directory below the user's home, whose name shells choke on."""
        return f"it's; $(x)/{attempt}"

    def break_connections(self, worker: Worker) -> None:
        """All that ssh has open there, but not its listening process."""
        sessions = [pid for pid in worker.processes("sshd") if b"@" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert sessions
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def directory(self, name: str) -> str:
        return f"{self.base}/{name}"

    def deliver(self, name: str, script: bytes = WRAPPER) -> Deliver:
        return Deliver(directory=self.directory(name), files={"job.sh": script}, executable=["job.sh"])

    def launch(self, name: str) -> Launch:
        return Launch(directory=self.directory(name), root="/", environment={"SECRET": "x y"}, exclusive=EXCLUSIVE)

    def begin(self, name: str) -> Launched:
        delivered, launched = self.ask(self.deliver(name), self.launch(name))
        assert delivered == Delivered()
        assert isinstance(launched, Launched), launched
        assert launched.outcome == "started", launched
        for worker in self.workers:
            wait_until(lambda worker=worker: self.file(worker, name, "output.log"), "it has begun")
        return launched

    def file(self, worker: Worker, name: str, file: str) -> str:
        path = worker.path(f"{self.name(name)}/{file}")
        return path.read_text() if path.exists() else ""

    def end(self, worker: Worker, name: str, code: int) -> None:
        worker.path(f"{self.name(name)}/go").write_text(f"{code}\n")

    def check(self, name: str) -> Checked:
        (found,) = self.ask(Check(directories=[self.directory(name)])).attempts
        return found

    def look(self, name: str) -> AttemptFiles:
        names = ["taken", "exit.json", "progress.json"]
        (seen,) = self.ask(Read(looks=[AttemptRead(directory=self.directory(name), growing=LOG)], names=names)).seen
        return seen
