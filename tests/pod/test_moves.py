"""Trainings of job classes on hosts that do not see the workspace, and jobs that move between outlets."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from beds.sshd import SshBed
from fleet import Dispatcher, Fleet, wait_until
from jax_on_cpu import compilation_cache  # noqa: F401 - a fixture
from tiny_runs import TESTS, arrays_of_checkpoints, assert_same_bits, metric_lines, on_cpu
from tiny_training import config, made

from dispatcher.contract import BOOTSTRAP_FILE, RUN_FILE

pytestmark = [pytest.mark.demo, pytest.mark.slow]

CONFIG = """
hosts:
  h1: {type: plain, ssh: h1}
  h2: {type: plain, ssh: h2}
clusters: {h1: &cluster %s, h2: *cluster}
methods:
  m: {backoff: 1s, env: &env %s}
  moving: {on_move: restart, backoff: 1s, env: *env}
kill_grace: 20s
"""
# The training that is preempted, and that is made without a break.
WORDS: dict[str, Any] = {"steps": 200, "save_every": 20, "eval_every": 100}


class Lab:
    """A workspace under git, and two hosts that are reached by ssh and see nothing of it."""

    def __init__(self, fleet: Fleet, ssh: SshBed, cache: Path) -> None:
        self.fleet = fleet
        self.ssh = ssh
        self._cache = cache
        self.configure()
        jobs = fleet.root / "jobs"
        jobs.mkdir()
        shutil.copy(TESTS / "tiny_training.py", jobs / "tiny.py")
        (fleet.root / ".gitignore").write_text("run_state/\nsaid/\nruns/\nmatrix/\n")
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "The training"]):
            named = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            subprocess.run(["git", *named, *words], cwd=fleet.root, check=True)
        for name in ("h1", "h2"):
            # The job's environment has the package and its libraries.
            ssh[name].install("python", f'#!/bin/bash\nexec {shlex.quote(sys.executable)} "$@"\n')

    def configure(self, cluster: Any = None, env: Any = None) -> None:
        """Write dispatcher.yaml: what both clusters have, and further variables of the methods."""
        variables = {**on_cpu(self._cache), **(env or {})}
        self.fleet.write_config(CONFIG % (json.dumps(cluster or {}), json.dumps(variables)))

    def train(self, *outlets: str, method: str = "m", checkpoints: str = "", env: Any = None, **training: Any) -> None:
        """Write the manifest: one training, and which outlets it may use."""
        where = {"checkpoints": checkpoints} if checkpoints else {}
        entry = {"job_id": "a", "method": method, "job": "tests/tiny", "gpus": 0, "config": config(**training)}
        self.fleet.write_manifest([{**entry, **where, "env": env or {}, "outlet": list(outlets)}])

    def start(self, *words: str, pod: str = "pod") -> Dispatcher:
        environment = {"DISPATCHER_SSH_CONFIG": os.fspath(self.ssh.config), "JAX_PLATFORMS": "cpu"}
        return self.fleet.start(pod, *words, poll="0.5", **environment)

    def there(self, host: str, pattern: str) -> list[Path]:
        """Files of the mirrored workspace on a host."""
        return sorted(self.ssh[host].path(".dispatcher").glob(f"*/{pattern}"))

    def steps(self, host: str, number: int = 1) -> int:
        """How far an attempt has come, by the metrics that it writes where it runs."""
        found = self.there(host, f"run_state/jobs/a/{number}/metrics.jsonl")
        lines = found[0].read_text().splitlines() if found else []
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def preempt(self, host: str, number: int = 1) -> None:
        """Somebody else's TERM to the wrapper."""
        wait_until(lambda: self.steps(host, number) >= 20, "step 20", 120)
        (taken,) = self.there(host, f"run_state/jobs/a/{number}/taken")
        # By its pid there: the host has a PID namespace of its own.
        self.ssh[host].run("kill", "-TERM", taken.read_text().split()[1])


@pytest.fixture
def lab(fleet: Fleet, start_ssh: Callable[..., SshBed], jax_cache: Path) -> Lab:
    # The interpreter may be installed in the home directory, of which the hosts have their own.
    return Lab(fleet, start_ssh(shared=[Path(sys.base_prefix), jax_cache]), jax_cache)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    """The training without a break, and its result."""
    job = made(tmp_path_factory.mktemp("undisturbed"), "a", **WORDS)
    return job, job()


def test_a_preempted_training_stays_with_the_host_that_has_its_checkpoint(
    lab: Lab, undisturbed: tuple[Any, dict[str, Any]]
) -> None:
    """The host sees nothing of the workspace; what the job class reports comes home."""
    lab.train("h1", "local", **WORDS)
    pod = lab.start("--until-empty", "--outlet", "h1:1")
    lab.preempt("h1")
    wait_until(lambda: lab.fleet.record("a").attempt == 2, "its second attempt", 60)
    assert pod.end(240) == 0, pod.said
    record = lab.fleet.record("a")
    assert (record.state, record.outlet, record.host, record.attempt, record.checkpoint_at) == (
        "done", "h1", "h1", 2, None,
    )  # fmt: skip
    back = next(line for line in lab.fleet.history("a") if line.event == "auto_requeued")
    assert (back.set["outlet"], back.set["checkpoint_at"]) == ("h1", "cluster h1")
    assert "resuming from step" in lab.fleet.output("a", 2)

    directory = lab.fleet.attempt("a", 2).directory
    assert json.loads((directory / "result.json").read_text())["steps"] == WORDS["steps"]
    run = json.loads((directory / RUN_FILE).read_text())
    assert (run["status"], run["host"], run["devices"]) == ("completed", "h1", 1)
    assert run["commit"] and run["digest"]
    assert (directory / BOOTSTRAP_FILE).exists()
    assert f"{run['run_id']}, completed on h1, 1 x cpu" in lab.fleet.run("show", "a")
    assert lab.there("h1", "runs/checkpoints/default/default/a/latest")
    assert not (lab.fleet.root / "runs").exists()

    job, _ = undisturbed
    (mirror,) = lab.there("h1", "runs")
    expected, found = arrays_of_checkpoints(job), arrays_of_checkpoints(made(mirror, "a", **WORDS))
    for one, other in zip(expected, found, strict=True):
        assert_same_bits(one, other)
    assert metric_lines(directory / "metrics.jsonl") == metric_lines(job.spec.result_path("metrics.jsonl"))


def test_it_waits_for_the_host_that_has_its_checkpoint_unless_its_method_says_otherwise(lab: Lab) -> None:
    """Status says what it waits for; a method with `on_move: restart` starts anew on the next host."""
    lab.train("h1", "h2", steps=4000, save_every=20, eval_every=None)
    first = lab.start("--slots", "0", "--outlet", "h1:1", "--on-exit", "stop")
    wait_until(lambda: lab.steps("h1") >= 50, "step 50", 120)
    assert first.stop() == 0
    record = lab.fleet.record("a")
    assert (record.state, record.checkpoint_at) == ("queued", "cluster h1")
    other = lab.start("--slots", "0", "--outlet", "h2:1", pod="other")
    other.says("pod other on")
    wait_until(lambda: "h2" in lab.fleet.run("pods"), "the other pod's outlet is known")
    step = record.furthest_checkpoint
    waits = f"waits for cluster h1: its checkpoint of step {step:g} is there"
    wait_until(lambda: waits in lab.fleet.run("show", "a"), "status says what it waits for")
    assert lab.fleet.record("a").attempt == 1

    lab.train("h1", "h2", method="moving", steps=10, eval_every=None)
    record = lab.fleet.wait_for("a", "done", timeout_s=240)
    assert (record.outlet, record.attempt) == ("h2", 2)
    assert "resuming" not in lab.fleet.output("a", 2)
    assert "a starts anew: h2 does not see its checkpoint" in other.said


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of jobs for an object store with the bucket `lab`."""
    pytest.importorskip("moto.server", reason="the S3 server of these tests is moto[server]")
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    monkeypatch.setattr("werkzeug.serving.WSGIRequestHandler.log", lambda *_: None)
    server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    environment = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=environment["AWS_ENDPOINT_URL"])
    client.create_bucket(Bucket="lab")
    yield environment
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("by", ["entry", "cluster", "variable"])
def test_with_checkpoints_in_an_object_store_it_goes_on_where_there_is_room(
    lab: Lab, store: dict[str, str], undisturbed: tuple[Any, dict[str, Any]], by: str
) -> None:
    """The store is named by the entry, in dispatcher.yaml for the clusters, or by a variable of the method."""
    # What the server has is kept from one test to the next.
    url = f"s3://lab/{by}"
    if by == "cluster":
        lab.configure(cluster={"checkpoints": url})
    elif by == "variable":
        lab.configure(env={"DISPATCHER_CHECKPOINTS_OVERRIDE": url})
    lab.train("h1", "h2", checkpoints=url if by == "entry" else "", env=store, **WORDS)
    pod = lab.start("--until-empty", "--outlet", "h1:1", "--outlet", "h2:1")
    # The one that was reached first.
    first = lab.fleet.wait_for("a", "running").outlet
    assert first in ("h1", "h2")
    lab.preempt(first)
    assert pod.end(240) == 0, pod.said
    record = lab.fleet.record("a")
    assert (record.state, record.outlet, record.attempt) == ("done", "h1" if first == "h2" else "h2", 2)
    assert "resuming from step" in lab.fleet.output("a", 2)
    row = json.loads((lab.fleet.attempt("a", 2).directory / "result.json").read_text())
    assert row == undisturbed[1]
    kept = [path for host in ("h1", "h2") for path in lab.there(host, "runs/checkpoints/default/default/a/step*")]
    assert kept == [], "nothing is kept on the hosts' own disks"
