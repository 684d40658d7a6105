"""The batch script: golden files, and what it does with its attempts when no SLURM is there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from beds.bed import wait_for
from beds.slurm import SlurmBed
from golden_texts import check_golden
from slurm_jobs import submission

from dispatcher import contract
from dispatcher.errors import ConfigError, TemplateError
from dispatcher.hosts.types import Hosts, Partition, SlurmHost
from dispatcher.outlets.base import Request
from dispatcher.outlets.batch.scheduler import Submission
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.workspace import Layout

# The one whose differences from the others are least.
BASE = "sbatch_no_gres"
# A workspace that is not there, under a name that a shell, sbatch and its file patterns give a meaning.
ROOT = Path("/nonexistent/a'; echo foo 100%")
NAME = "d-0123456789ab-0123456789abcdef"
ALL_KEYS: dict[str, Any] = {
    "partitions": (Partition("low", default=True), Partition("high")),
    "account": "lab",
    "qos": "long",
    "mem": "64M",
    "exclude": ("n7", "n[8-9]"),
    "wckey": "it's # a key",
    "sbatch_args": ("--nice=5", "--comment", "a b", "-H"),
    "gpu_type": "h100",
    "slots_per_node": 4,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sbatch_plain": ({}, {"request": Request(gpus=1)}),
    "sbatch_array": ({}, {"count": 3, "request": Request(gpus=0, cpus=2, memory_mib=50), "time_limit_s": 3600.0}),
    "sbatch_all_keys": (ALL_KEYS, {"request": Request(gpus=8, cpus=2)}),
    "sbatch_gres": (
        {"tres_supported": False, "sbatch_args": ("--exclusive",)},
        {"request": Request(gpus=2, chip="h100")},
    ),
    "sbatch_no_gres": ({"gres_supported": False}, {"request": Request(gpus=4, nodes=2)}),
    "sbatch_pack": ({"slot_type": "cpu"}, {"count": 5, "groups": [(0, 1, 2), (3, 4)], "time_limit_s": 600.0}),
}


def scheduler(layout: Layout | None = None, **keys: Any) -> SlurmScheduler:
    host = SlurmHost(name="hpc", cluster="hpc", **keys)
    return SlurmScheduler(host, Hosts(hosts={"hpc": host}), layout or Layout(ROOT), 30)


def script(given: Submission, layout: Layout | None = None, **keys: Any) -> bytes:
    ((path, content),) = scheduler(layout, **keys).scripts(given).items()
    assert path == str(given.layout.submission_script(given.name))
    return content


def rendered(case: str) -> str:
    keys, words = CASES[case]
    return script(submission(ROOT, NAME, **words), **keys).decode()


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    made = rendered(case)
    check_golden(case, made, BASE, rendered(BASE))
    subprocess.run(["bash", "-n"], input=made, text=True, check=True)


def test_scripts_are_accepted_by_sbatch(slurm: SlurmBed) -> None:
    for case in CASES:
        text = rendered(case)
        # The cluster of the test has no accounts, and not these nodes.
        lines = [line for line in text.splitlines(keepends=True) if "--exclude" not in line and "--wckey" not in line]
        told = slurm.run("sbatch", "--test-only", input="".join(lines), check=False)
        assert "to start at" in told.stderr, f"{case}: {told.stderr}"


def test_what_cannot_be_rendered() -> None:
    with pytest.raises(TemplateError, match="up to 1024 characters"):
        script(submission(ROOT, "d" * 1025))
    with pytest.raises(TemplateError, match="backslash"):
        script(submission(Path("/a\\b"), NAME))
    with pytest.raises(ConfigError, match=r"(?s)hosts: hpc.*--gpus=2 is not taken"):
        scheduler(sbatch_args=("--gpus=2",))


def test_an_own_launcher_of_the_workspace(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.templates_dir.mkdir()
    (layout.templates_dir / "sbatch.sh.j2").write_text("#!/bin/sh\n# mine\necho {{ directories }} {{ groups }}\n")
    lines = script(submission(ROOT, NAME), layout).decode().splitlines()
    assert lines[0] == "#!/bin/sh"
    assert lines[1].startswith("#SBATCH --job-name=")
    assert lines[-2] == "# mine"


# Its behaviour.

PATIENT = "trap 'echo TERM >told; exit 143' TERM; echo >begun; while :; do sleep 0.02; done"


class Batch:
    """A batch script that runs as SLURM would run it; `scontrol` says what `shown` is."""

    def __init__(self, root: Path, *commands: str, groups: Sequence[Sequence[int]] = (), shown: str = "", **env: str):
        given = submission(root, NAME, len(commands), groups=groups)
        self.directories = [Path(directory) for directory in given.directories]
        for directory, command in zip(self.directories, commands, strict=True):
            directory.mkdir(parents=True)
            (directory / contract.WRAPPER_FILE).write_text(f'cd -- "$DISPATCHER_ATTEMPT_DIR" || exit 9\n{command}\n')
        (root / "bin").mkdir()
        (root / "bin" / "scontrol").write_text(f"#!/bin/sh\necho '{shown}'\n")
        (root / "bin" / "scontrol").chmod(0o755)
        path = root / "submit.sh"
        path.write_bytes(script(given, slot_type="cpu"))
        words: Mapping[str, str] = {"PATH": f"{root}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **env}
        self.process = subprocess.Popen(["bash", path], env=words, stderr=subprocess.PIPE, text=True)

    def begun(self, index: int = 0) -> None:
        wait_for((self.directories[index] / "begun").exists, f"attempt {index} begins")

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        try:
            _, errors = self.process.communicate(timeout=20)
        finally:
            self.process.kill()
        return self.process.returncode, errors

    def read(self, index: int, name: str) -> str | None:
        path = self.directories[index] / name
        return path.read_text() if path.exists() else None


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "a'; echo foo"
    made.mkdir()
    yield made


@pytest.mark.parametrize("status", [0, 3, 75, 255])
def test_its_exit_status_is_that_of_the_wrapper(root: Path, status: int) -> None:
    assert Batch(root, f"exit {status}").end() == (status, "")


def test_a_task_of_an_array_finds_its_attempt(root: Path) -> None:
    batch = Batch(root, "exit 1", "echo mine >begun; exit 5", "exit 2", SLURM_ARRAY_TASK_ID="1")
    assert batch.end() == (5, "")
    assert batch.read(1, "begun") == "mine\n"


def test_a_restart_by_slurm_runs_nothing(root: Path) -> None:
    status, errors = Batch(root, "echo >begun", SLURM_RESTART_COUNT="1").end()
    assert status == 1
    assert errors == "job 7: started again by SLURM (restart 1); not run, the dispatcher decides\n"
    assert not list(root.rglob("begun"))


def test_a_first_run_is_no_restart(root: Path) -> None:
    assert Batch(root, "exit 4", SLURM_RESTART_COUNT="0").end() == (4, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_passes_signals_on(root: Path, number: int) -> None:
    batch = Batch(root, PATIENT)
    batch.begun()
    batch.tell(number)
    assert batch.end() == (143, "")
    assert batch.read(0, "told") == "TERM\n"
    assert batch.read(0, contract.STOP_FILE) is None


def test_it_waits_for_a_wrapper_that_takes_its_time(root: Path) -> None:
    """However often it is told."""
    batch = Batch(root, "trap 'echo TERM >>told' TERM; echo >begun; until [ -e go ]; do sleep 0.02; done; exit 6")
    batch.begun()
    for count in (1, 2, 3):
        batch.tell(signal.SIGTERM)
        wait_for(lambda count=count: (batch.read(0, "told") or "").count("TERM") == count, "it is told")
    (batch.directories[0] / "go").touch()
    assert batch.end() == (6, "")


def test_its_status_when_all_processes_are_told_at_once(root: Path) -> None:
    """As scancel does. bash loses the status of a process that ends while a signal interrupts its `wait`."""
    command = """trap 'echo "{\\"exit_code\\": 9, \\"reason\\": \\"\\"}" >exit.json; exit 9' TERM
echo $$ >begun; while :; do sleep 0.01; done"""
    for number in range(10):
        inner = root / str(number)
        inner.mkdir()
        batch = Batch(inner, command)
        wait_for(lambda batch=batch: (batch.read(0, "begun") or "").endswith("\n"), "it begins")
        pid = int(batch.read(0, "begun") or "")
        batch.tell(signal.SIGTERM)
        # The wrapper may have passed it on already.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        assert batch.end() == (9, "")


@pytest.mark.parametrize(
    ("shown", "stop"),
    [
        ("JobId=7 PreemptEligibleTime=2026-11-22T12:15:50 PreemptTime=None Partition=low", "time limit\n"),
        ("JobId=7 PreemptEligibleTime=2026-11-22T12:15:50 PreemptTime=2026-11-22T12:17:13 Partition=low", None),
        ("", "time limit\n"),
    ],
)
def test_near_the_end_of_its_time(root: Path, shown: str, stop: str | None) -> None:
    """A preemption is left to the scheduler's word."""
    batch = Batch(root, PATIENT, shown=shown)
    batch.begun()
    batch.tell(signal.SIGUSR1)
    assert batch.end() == (143, "")
    assert batch.read(0, contract.STOP_FILE) == stop


def test_why_it_is_stopped_is_not_overwritten(root: Path) -> None:
    batch = Batch(root, PATIENT)
    batch.begun()
    (batch.directories[0] / contract.STOP_FILE).write_text("preempted\n")
    batch.tell(signal.SIGUSR1)
    batch.end()
    assert batch.read(0, contract.STOP_FILE) == "preempted\n"


def test_the_wrapper_leads_a_process_group(root: Path) -> None:
    batch = Batch(root, 'read -r _ _ _ _ group _ <"/proc/$$/stat"; [ "$group" = $$ ]')
    assert batch.end() == (0, "")


def test_attempts_of_a_group_run_in_turn(root: Path) -> None:
    words = [f"echo {index} >>../../order; exit {index}" for index in range(4)]
    batch = Batch(root, *words, groups=[(1, 3), (0, 2)], SLURM_ARRAY_TASK_ID="1")
    assert batch.end() == (2, "")
    assert (batch.directories[0].parent.parent / "order").read_text() == "0\n2\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_what_has_not_begun_goes_back(root: Path, number: int) -> None:
    batch = Batch(root, "echo >begun", PATIENT, "echo >begun", "echo >begun", groups=[(0, 1, 2, 3)])
    (batch.directories[3] / contract.TAKEN_FILE).write_text("elsewhere 1\n")
    batch.begun(1)
    batch.tell(number)
    assert batch.end() == (143, "")
    told = json.loads(batch.read(2, contract.EXIT_FILE) or "")
    assert (told["exit_code"], told["reason"]) == (143, "preempted")
    assert batch.read(2, "begun") is None
    assert batch.read(2, contract.TAKEN_FILE)
    # Another job runs it: that one tells how it ends.
    assert batch.read(3, contract.EXIT_FILE) is None
    assert batch.read(0, contract.EXIT_FILE) is None
