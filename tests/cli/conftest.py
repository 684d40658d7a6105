"""A small lab whose folder bears a name that shells and careless code choke on."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from fleet import Fleet

from dispatcher.api import Workspace
from dispatcher.cli.main import main
from dispatcher.pod.options import PodOptions
from dispatcher.run_state.change import Change, split
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.workspace import Layout

ENTRIES = [
    {"job_id": "base", "method": "pretrain"},
    *(
        {"job_id": f"{method}_{lang}_s{seed}", "method": method, "lang": lang, "seed": seed, "needs": ["base"]}
        for method in ("fft", "lora")
        for lang in ("german", "spanish")
        for seed in (1, 2)
    ),
]


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Lab:
    """One workspace, commands run in it, and records put where a test wants them."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys
        self.workspace = Workspace(root, by="test")
        self.layout = Layout(root)

    def write_manifest(self, entries: list[dict[str, Any]], name: str = "matrix.json") -> None:
        self.layout.matrix_dir.mkdir(exist_ok=True)
        (self.layout.matrix_dir / name).write_text(json.dumps(entries))

    def run(self, *args: str) -> Outcome:
        """One command, in this process."""
        self._capsys.readouterr()
        code = main(["--root", str(self.root), *args])
        captured = self._capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """One command, in a process of its own."""
        command = [*commands.COMMAND, *args]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DISPATCHER_")}
        environment.update(options.pop("env", {}), DISPATCHER_ROOT=str(self.root))
        return commands.Popen(command, env=environment, **options)

    def put(self, job: str, state: str, **fields: Any) -> None:
        """Bring a job into a state by way of possible ones."""
        with self.workspace.transaction() as tx:
            record = tx.record(job)
            if record is None:
                tx.change(job, Event.QUEUED, Change(state=State.QUEUED))
            if state in ("done", "failed", "running"):
                claimed = Change(state=State.RUNNING, pod="pod-0", attempt=(record.attempt if record else 0) + 1)
                given, extra = split(fields if state == "running" else {})
                tx.change(job, Event.CLAIMED, claimed | given, extra=extra)
            given, extra = split({**fields, "state": state})
            if state not in ("running", "queued"):
                tx.change(job, Event(state), given, extra=extra)
            elif state == "queued" and fields:
                tx.change(job, Event.QUEUED, given, extra=extra)

    def attempt(self, job: str, number: int = 1, **files: str) -> Path:
        """An attempt's directory with files such as `log="..."`, `result='{...}'`."""
        paths = self.layout.attempt(job, number)
        paths.directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            getattr(paths, name).write_text(text)
        return paths.directory

    def state(self, job: str) -> str:
        """What the status file says, as other tools read it."""
        return str(json.loads(self.layout.status_file.read_text())[job]["state"])

    def snapshot(self) -> dict[str, tuple[int, int]]:
        """Every path with the time of its last change: what a command that only looks must leave as it is."""
        return {
            str(path.relative_to(self.root)): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
            for path in [self.root, *self.root.rglob("*")]
        }


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[PodOptions]:
    """The options of every pod that would have run."""
    import dispatcher.pod.run

    found: list[PodOptions] = []

    def run_pod(_layout: Any, _config: Any, options: PodOptions, log: Any) -> int:
        found.append(options)
        log("a line")
        return 7

    monkeypatch.setattr(dispatcher.pod.run, "run_pod", run_pod)
    return found


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {timeout_s} s"
        time.sleep(0.02)


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lab:
    for name in [name for name in os.environ if name.startswith("DISPATCHER_")]:
        monkeypatch.delenv(name)
    root = tmp_path / "a'; echo foo"
    root.mkdir()
    made = Lab(root, capsys)
    made.write_manifest(ENTRIES)
    made.layout.templates_dir.mkdir()
    for method in ("pretrain", "fft", "lora"):
        made.layout.training_template(method).write_text("PARAMS = {'lang': None, 'seed': 0}\n")
    return made


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def empty(fleet: Fleet) -> Fleet:
    """A workspace without a manifest."""
    fleet.write_config("")
    return fleet
