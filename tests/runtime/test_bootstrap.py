"""Job classes that a rendered bootstrap runs in a copy of the project, where the workspace is not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fleet import wait_until
from interrupted_training import FILE, waiting
from tiny_runs import (
    TESTS,
    Attempt,
    arrays_of_checkpoints,
    assert_same_bits,
    environment,
    free_port,
    metric_lines,
    one_of_two,
)
from tiny_training import config, made

import dispatcher
from dispatcher import contract
from dispatcher.errors import ConfigError
from dispatcher.runtime.bootstrap import check_devices
from dispatcher.runtime.execution import Cluster, Hardware
from dispatcher.runtime.launching import entry_job, places
from dispatcher.runtime.run_record import RunRecord
from dispatcher.templates.render import render_bootstrap


class Project:
    """A copy of a project on some host, and a directory there that outlives it."""

    def __init__(self, tmp_path: Path, cache: Path) -> None:
        self.base = tmp_path / "a'; echo foo"
        self.root = self.base / "workspace id"
        self._cache = cache
        self._copies = 0

    def copy(self) -> Path:
        """A fresh copy of the code, as it is extracted for each attempt."""
        self._copies += 1
        tree = self.base / "extracted" / str(self._copies)
        (tree / "jobs" / "deeper").mkdir(parents=True)
        shutil.copy(TESTS / "tiny_training.py", tree / "jobs" / "tiny.py")
        (tree / "jobs" / "interrupted.py").write_text(FILE.read_text().replace("tiny_training", "jobs.tiny"))
        return tree

    def start(
        self, number: int = 1, *, job: str = "tests/tiny", hardware: Any = None, env: Any = None, **training: Any
    ) -> Started:
        entry = {"job_id": "tiny", "method": "m", "job": job, "config": config(**training)}
        return Started(self, self._cache, number, entry, hardware or {}, env or {})


class Started(Attempt):
    """A bootstrap that runs in a copy of the project, as the wrapper starts it."""

    def __init__(
        self, project: Project, cache: Path, number: int, entry: dict[str, Any], hardware: Any, env: dict[str, str]
    ) -> None:
        self.tree = project.copy()
        self.directory = project.root / "run_state" / "jobs" / "tiny" / str(number)
        self.directory.mkdir(parents=True, exist_ok=True)
        script = self.directory / contract.BOOTSTRAP_FILE
        script.write_bytes(render_bootstrap(entry, hardware, {"job_id": "tiny", "attempt": number, "pod": "p"}))
        identity = {
            contract.ROOT: str(project.root),
            contract.JOB_ID: "tiny",
            contract.ATTEMPT: str(number),
            contract.ATTEMPT_DIR: str(self.directory),
        }
        known = environment(cache, **{**identity, **env})
        # The environment of the host has the package, and nothing of the tests.
        known.pop("PYTHONPATH")
        self.log = self.directory / f"output.{env.get('DISPATCHER_PROCESS_ID', '0')}.log"
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(script)],
                env=known, cwd=self.tree / "jobs" / "deeper", stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    @property
    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / contract.RUN_FILE).read_text())
        return found


@pytest.fixture
def project(tmp_path: Path, jax_cache: Path) -> Project:
    return Project(tmp_path, jax_cache)


@pytest.mark.demo
def test_it_runs_in_a_copy_of_the_project_with_nothing_else(project: Project) -> None:
    attempt = project.start(env={contract.CODE_COMMIT: "c0ffee", contract.CODE_DIGEST: "d1"})
    assert attempt.end() == 0
    run = attempt.run
    assert (run["status"], run["error"], run["devices"], run["processes"]) == ("completed", None, 1, 1)
    assert (run["platform"], run["chip"], run["commit"], run["digest"]) == ("cpu", "cpu", "c0ffee", "d1")
    assert len(run["run_id"]) == 32
    assert run["started_at"] <= run["heartbeat_at"]
    assert json.loads((attempt.directory / contract.RESULT_FILE).read_text())["steps"] == 40
    assert (project.root / "runs/checkpoints/default/default/tiny/latest").exists()
    assert sorted(path.name for path in attempt.tree.iterdir()) == ["jobs"], "nothing is written beside the code"


def preempt(project: Project, number: int, **words: Any) -> Started:
    """An attempt that was preempted by this signal in the middle of its training."""
    told = project.base / "told"
    attempt = project.start(job="tests/interrupted", env=waiting(22, told), **words)
    attempt.wait_for(lambda: attempt.last_step() >= 20, "step 20")
    assert attempt.run["status"] == "running"
    attempt.send(number)
    told.touch()
    assert attempt.end() == 75
    assert attempt.run["status"] == "preempted"
    return attempt


@pytest.mark.demo
def test_an_interrupt_is_a_preemption_too(project: Project) -> None:
    attempt = preempt(project, signal.SIGINT)
    assert "saved" in attempt.said
    assert (project.root / "runs/checkpoints/default/default/tiny/latest").exists()


@pytest.mark.demo
@pytest.mark.slow
def test_the_resume_of_a_preempted_run_is_exact(project: Project, jax_cache: Path) -> None:
    words = {"save_every": 20, "eval_every": 20}
    first = preempt(project, signal.SIGTERM, **words)
    shutil.rmtree(first.tree)

    second = project.start(2, **words)
    assert second.end() == 0
    assert "resuming from step" in second.said
    assert second.run["run_id"] != first.run["run_id"]
    other = Project(project.base / "undisturbed", jax_cache)
    undisturbed = other.start(**words)
    assert undisturbed.end() == 0
    expected, found = (arrays_of_checkpoints(made(place.root / "runs", **words)) for place in (other, project))
    for one, two in zip(expected, found, strict=True):
        assert_same_bits(one, two)
    assert metric_lines(second.metrics) == metric_lines(undisturbed.metrics)


@pytest.mark.demo
def test_fewer_devices_than_asked_for_fail_and_say_what_is_seen(project: Project) -> None:
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    attempt = project.start(hardware={"gpus": 4, "chip": "h100"}, env=env)
    assert attempt.end() == 1
    assert "asked for 4 x h100, but JAX sees 4 cpu devices in 1 process" in attempt.said
    assert "JAX_PLATFORMS is 'cpu'" in attempt.said
    assert "Traceback" not in attempt.said
    run = attempt.run
    assert (run["status"], run["devices"]) == ("failed", 4)
    assert run["error"].startswith("ConfigError: asked for 4 x h100")


@pytest.mark.demo
def test_an_environment_of_another_attempt_is_refused(project: Project) -> None:
    attempt = project.start(env={contract.ATTEMPT: "7"})
    assert attempt.end() == 1
    assert "this is the bootstrap of tiny/1, and the environment is that of tiny/7" in attempt.said
    assert not (attempt.directory / contract.RUN_FILE).exists()


@pytest.mark.demo
def test_the_environment_sets_the_batch_size_and_the_directories(project: Project, tmp_path: Path) -> None:
    env = {
        contract.BATCH_SIZE: "2",
        "DISPATCHER_CHECKPOINTS_OVERRIDE": str(tmp_path / "checkpoints"),
        "DISPATCHER_ROOT_OVERRIDE": "$HERE/elsewhere",
        "HERE": str(tmp_path),
    }
    attempt = project.start(steps=2, hardware={"checkpoints": "gs://never", "root": "/never"}, env=env)
    assert attempt.end() == 0
    saved = (tmp_path / "checkpoints/default/default/tiny/step-00000002/config.yaml").read_text()
    assert "per_device_batch_size: 2" in saved
    assert (tmp_path / "elsewhere/runs/results/default/default/tiny/result.json").exists()


@pytest.mark.demo
@pytest.mark.parametrize("value", ["0", "many", "-2", "1.5"])
def test_a_batch_size_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str) -> None:
    monkeypatch.setenv(contract.BATCH_SIZE, value)
    entry = {"job_id": "tiny", "job": "tests/tiny", "config": config()}
    with pytest.raises(ConfigError, match=f"DISPATCHER_BATCH_SIZE = '{value}': expected the rows of one device"):
        entry_job(entry, tmp_path, {"root": tmp_path}, where="entry.json")


@pytest.mark.demo
@pytest.mark.slow
def test_of_two_processes_the_first_keeps_the_record(project: Project) -> None:
    address = f"127.0.0.1:{free_port()}"
    pair = [project.start(save_every=20, eval_every=20, env=one_of_two(address, number)) for number in range(2)]
    try:
        assert [attempt.end() for attempt in pair] == [0, 0]
    finally:
        for attempt in pair:
            attempt.kill()
    assert (pair[0].run["processes"], pair[0].run["devices"]) == (2, 2)
    assert pair[0].run["pid"] == pair[0].process.pid


def bare(script: Path, cwd: Path, cache: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """The script run by a Python whose environment has only what `path` has."""
    known = {name: value for name, value in environment(cache).items() if name == "PATH" or name.startswith("JAX_")}
    known["PYTHONPATH"] = path
    command = [sys.executable, "-S", str(script)]
    return subprocess.run(command, env=known, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "attempt" / contract.BOOTSTRAP_FILE
    path.parent.mkdir()
    entry = {"job_id": "tiny", "job": "tests/tiny", "config": config()}
    path.write_bytes(render_bootstrap(entry, {}, {"job_id": "tiny", "attempt": 1, "pod": "p"}))
    return path


def test_without_the_package_it_says_what_to_install(script: Path, tmp_path: Path, jax_cache: Path) -> None:
    done = bare(script, tmp_path, jax_cache)
    assert done.returncode == 1
    assert "dispatcher: error: No module named 'dispatcher'" in done.stderr
    assert "uv add 'dispatcher[jax]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.demo
def test_the_package_may_be_part_of_the_project(script: Path, project: Project, jax_cache: Path) -> None:
    """By hand, without any variable of a dispatcher; the libraries are those of the environment."""
    tree = project.copy()
    (tree / "dispatcher").symlink_to(Path(dispatcher.__file__).parent)
    libraries = Path(pytest.__file__).parents[1]
    # The package is installed here by a .pth file, which -S does not read.
    assert not (libraries / "dispatcher").exists()
    done = bare(script, tree, jax_cache, str(libraries))
    assert done.returncode == 0, done.stderr
    assert json.loads((tree / "runs/by-hand/tiny/run.json").read_text())["status"] == "completed"


def hardware(platform: str, chip: str, devices: int) -> Hardware:
    return Hardware(platform, chip, devices, 1, "node7", Cluster.at("/nonexistent"))


def test_devices_are_counted_and_another_chip_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    asked = {"gpus": 4, "chip": "h100"}
    check_devices(asked, hardware("gpu", "NVIDIA H100 80GB HBM3", 4))
    check_devices({"gpus": 2, "chip": ""}, hardware("gpu", "NVIDIA H100 80GB HBM3", 8))
    check_devices({"gpus": 0, "chip": ""}, hardware("cpu", "cpu", 1))
    check_devices({"gpus": None}, hardware("cpu", "cpu", 1))
    assert not caplog.records
    check_devices(asked, hardware("gpu", "NVIDIA A100-SXM4-80GB", 4))
    assert "asked for h100; the devices are NVIDIA A100-SXM4-80GB" in caplog.text
    with pytest.raises(ConfigError, match="asked for 4 x h100, but JAX sees 3 NVIDIA H100 devices"):
        check_devices(asked, hardware("gpu", "NVIDIA H100", 3))


def test_overrides_have_the_last_word_and_urls_stay_as_they_are(tmp_path: Path) -> None:
    given = {"gpus": 1, "data": "~/data", "checkpoints": "s3://lab/$x~"}
    found = places(given, {"DISPATCHER_RESULTS_OVERRIDE": "/fast/results"}, Path("/mirror"))
    assert found == {
        "root": "/mirror",
        "data": os.path.expanduser("~/data"),
        "checkpoints": "s3://lab/$x~",
        "results": "/fast/results",
    }
    assert places({}, {}, tmp_path) == {"root": str(tmp_path)}


def test_the_heartbeat_goes_on_while_the_disk_is_full(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = small_disk / "run.json"

    def read() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    with RunRecord(path, {}, interval_s=0.01):
        first = read()
        wait_until(lambda: read()["heartbeat_at"] > first["heartbeat_at"], "a heartbeat")
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 4096)
        wait_until(lambda: "the heartbeat cannot be written: No space" in caplog.text, "the failure is logged")
        before = read()
        assert before["status"] == "running", "the old file is still whole"
        filler.unlink()
        wait_until(lambda: read()["heartbeat_at"] > before["heartbeat_at"], "it recovers")
    assert read()["status"] == "completed"
    assert sorted(entry.name for entry in small_disk.iterdir() if entry.name != "lost+found") == ["run.json"]


def test_how_a_run_ended_is_what_is_left(tmp_path: Path) -> None:
    def ended(error: BaseException | None) -> tuple[str, str | None]:
        path = tmp_path / "run.json"
        try:
            with RunRecord(path, {}) as record:
                record.preempt()
                if error is not None:
                    raise error
        except BaseException as raised:  # noqa: BLE001  # what was raised in the block
            assert raised is error
        found = json.loads(path.read_text())
        return found["status"], found["error"]

    assert ended(None) == ("completed", None)
    assert ended(SystemExit(75)) == ("preempted", None)
    assert ended(SystemExit(3)) == ("failed", "exit status 3")
    assert ended(ValueError("two\nlines")) == ("failed", "ValueError: two\nlines")
