"""A workspace with real dispatchers in it, for tests: started as a person starts them, watched through their files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import commands
from commands import COMMAND, MAIN

from dispatcher.run_state import journal
from dispatcher.run_state.journal import Line
from dispatcher.run_state.liveness import is_held
from dispatcher.run_state.states import Record
from dispatcher.run_state.store import Store
from dispatcher.workspace import AttemptPaths, Layout

# Long enough for a machine that does much else; nothing waits so long unless something is wrong.
PATIENCE_S = 60.0
# Every process of a fleet has this in its environment, however far it has run from its parent.
MARK = "FLEET_OF_A_TEST"
# A dispatcher that ends only when it has recorded what all its attempts ran from, however busy the machine is.
RECORDING = [*COMMAND[:-1], f"from dispatcher.pod.participants import claims; claims._LAST_RECORDS_S = 60.0; {MAIN}"]


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """The condition's value as soon as it is true."""
    end_s = time.monotonic() + timeout_s
    pause_s = 0.01
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end_s, f"{what}: not within {timeout_s:g} s"
        # Looking costs as much as what is waited for may need.
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.1)


class Dispatcher:
    """One dispatcher process, and what it says."""

    def __init__(self, pod: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pod = pod
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def is_running(self) -> bool:
        return self.process.poll() is None

    def says(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait until it has said `text`."""
        end_s = time.monotonic() + timeout_s
        while text not in self.said:
            assert self.is_running() or text in self.said, f"{self.pod} has ended without {text!r}:\n{self.said}"
            assert time.monotonic() < end_s, f"{self.pod} did not say {text!r} within {timeout_s:g} s:\n{self.said}"
            time.sleep(0.02)
        return self.said

    def ready(self) -> Dispatcher:
        """Wait until it is in its loop."""
        self.says("; poll interval ")
        return self

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power failure would."""
        self.process.kill()
        self.process.wait()

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until it has ended by itself; its exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.pod} has not ended within {timeout_s:g} s:\n{self.said}") from None

    def stop(self) -> int:
        """Drain it."""
        if self.is_running():
            self.send(signal.SIGTERM)
        return self.end()


def processes_with(name: str, value: str) -> dict[int, str]:
    """Every process whose environment began with this variable, with its command line."""
    mark = f"{name}={value}".encode()
    found = {}
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(pid)] = words.decode(errors="replace")
    return found


def kill_all_with(name: str, value: str) -> None:
    """Kill every such process, and those that it starts in the meantime."""
    while left := processes_with(name, value):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def printed(log: Path) -> str:
    """What the job itself has printed: its log without the line that names the scheduler's job."""
    lines = log.read_text(encoding="utf-8", errors="surrogateescape").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("dispatcher: note: job "))


class Fleet:
    """A workspace at `root`, and everything that a test starts in it."""

    def __init__(self, root: Path, said: Path | None = None) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.layout = Layout(root)
        self.dispatchers: list[Dispatcher] = []
        # What starts a dispatcher, for a test that needs one with other constants.
        self.command = COMMAND
        # Of every process that a test starts here.
        self.variables: Mapping[str, str] = {}
        self._logs = said or root / "said"
        self._logs.mkdir(exist_ok=True)

    # What users write.

    def write_manifest(self, entries: list[dict[str, Any]], name: str = "matrix.json") -> Path:
        self.layout.matrix_dir.mkdir(exist_ok=True)
        path = self.layout.matrix_dir / name
        temporary = path.with_name(f".{name}.tmp")
        temporary.write_text(json.dumps([{"method": "m", **entry} for entry in entries]), encoding="utf-8")
        temporary.replace(path)
        return path

    def write_config(self, text: str) -> None:
        self.layout.config_file.write_text(text, encoding="utf-8")

    # Processes.

    def environment(self, **more: str) -> dict[str, str]:
        known = {name: value for name, value in os.environ.items() if not name.startswith(("DISPATCHER_", "CUDA_"))}
        return {**known, MARK: str(self.root), "PYTHONUNBUFFERED": "1", **self.variables, **more}

    def start(self, pod: str = "pod", *words: str, poll: str = "30", **environment: str) -> Dispatcher:
        """Start a dispatcher; with one CPU slot unless `words` say which slots."""
        slots = () if {"--slots", "--gpus"} & set(words) else ("--slots", "1")
        return self.start_command(pod, "--pod", pod, "--poll-interval", poll, *slots, *words, **environment)

    def start_command(self, name: str, *words: str, **environment: str) -> Dispatcher:
        """Start any command, which goes on."""
        command = [*self.command, *words]
        log = self._logs / f"{len(self.dispatchers):04d}-{name}.txt"
        with open(log, "wb") as file:
            process = commands.Popen(
                command, cwd=self.root, env=self.environment(**environment), stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.dispatchers.append(Dispatcher(name, process, log))
        return self.dispatchers[-1]

    def run(self, *words: str, **environment: str) -> str:
        """One command that must succeed; what it printed."""
        done = self.try_(*words, **environment)
        assert done.returncode == 0, f"dispatcher {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def try_(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One command, however it ends."""
        return commands.run(
            [*COMMAND, *words], cwd=self.root, env=self.environment(**environment), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def run_all(self, *words: str, pod: str = "pod", **environment: str) -> Dispatcher:
        """Run a dispatcher until nothing is left to do."""
        dispatcher = self.start(pod, "--until-empty", *words, **environment)
        dispatcher.end()
        return dispatcher

    def pids(self) -> dict[int, str]:
        """Every process of this fleet that lives, with its command line."""
        return processes_with(MARK, str(self.root))

    def close(self) -> None:
        """Kill whatever is left."""
        for dispatcher in self.dispatchers:
            if dispatcher.is_running():
                dispatcher.kill()
        kill_all_with(MARK, str(self.root))

    # What happened.

    def status(self) -> dict[str, dict[str, Any]]:
        """The status file, as other tools read it: without a lock."""
        return dict(json.loads(self.layout.status_file.read_bytes()))

    def records(self) -> dict[str, Record]:
        """The records as the journal has them."""
        store = Store(self.layout, by="test")
        if self.layout.journal_dir.is_dir():
            store.refresh(to_the_end=True)
        return dict(store.records)

    def states(self) -> dict[str, str]:
        return {job: str(record.state) for job, record in self.records().items()}

    def record(self, job: str) -> Record:
        return self.records()[job]

    def history(self, job: str | None = None) -> list[Line]:
        return list(journal.history(self.layout, job))

    def events(self, job: str) -> list[str]:
        return [line.event for line in self.history(job)]

    def claimed(self) -> list[str]:
        """Job ids in the order in which they were claimed."""
        return [str(line.job) for line in self.history() if line.event == "claimed"]

    def attempt(self, job: str, number: int = 1) -> AttemptPaths:
        return self.layout.attempt(job, number)

    def output(self, job: str, number: int = 1) -> str:
        """What the job itself has printed."""
        return printed(self.attempt(job, number).log)

    def exit_file(self, job: str, number: int = 1) -> dict[str, Any]:
        return dict(json.loads(self.attempt(job, number).exit.read_text()))

    # Waiting.

    def wait_for(self, job: str, *states: str, attempt: int | None = None, timeout_s: float = PATIENCE_S) -> Record:
        """Wait until the job is in one of these states (and at that attempt)."""

        def reached() -> Record | None:
            record = self.records().get(job)
            there = record is not None and record.state in states and attempt in (None, record.attempt)
            return record if there else None

        return wait_until(reached, f"{job} {' or '.join(states)}, now {self.records().get(job)}", timeout_s)

    def wait_running(self, job: str, number: int = 1) -> int:
        """Wait until the job's own command has begun to write its log, and its pid is recorded; the wrapper's pid."""

        def begun() -> int:
            with contextlib.suppress(FileNotFoundError):
                record = self.records().get(job)
                if record is not None and record.attempt == number and record.pid and self.output(job, number):
                    return record.pid
            return 0

        return wait_until(begun, f"attempt {number} of {job} is running, its record is {self.records().get(job)}")

    def wait_gone(self, job: str, number: int = 1) -> None:
        """Wait until nothing of the attempt holds its liveness lock."""
        alive = self.attempt(job, number).alive
        wait_until(lambda: is_held(alive) is False, f"nothing of attempt {number} of {job} lives")


def shell(job: str, script: str, **rest: Any) -> dict[str, Any]:
    """An entry that runs a few words of shell."""
    return {"job_id": job, "command": ["bash", "-c", script], **rest}


@contextlib.contextmanager
def fleet_at(root: Path, said: Path | None = None) -> Iterator[Fleet]:
    """A fleet, of which nothing may be left at the end once its dispatchers have been stopped.

    `said` is a folder for what the dispatchers print, if not in the workspace.
    """
    fleet = Fleet(root, said)
    try:
        yield fleet
        # The second signal stops what still runs. It is another one, because of equal ones the kernel may keep but one.
        for number in (signal.SIGTERM, signal.SIGINT):
            for dispatcher in fleet.dispatchers:
                if dispatcher.is_running():
                    dispatcher.send(number)
        for dispatcher in fleet.dispatchers:
            dispatcher.end()
        left = fleet.pids()
        assert not left, f"left over: {left}"
    except BaseException:
        for dispatcher in fleet.dispatchers:
            print(f"--- {dispatcher.log.name}\n{dispatcher.said}", file=sys.stderr)
        raise
    finally:
        fleet.close()
