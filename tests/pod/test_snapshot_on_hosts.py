"""`snapshot: true` on hosts behind ssh: they get the copy of the queueing, not today's code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.sshd import SshBed
from fleet import Fleet, shell, wait_until
from repositories import Repository

pytestmark = pytest.mark.slow

CONFIG = """\
code: {}
methods: {{m: {{backoff: 0.1s, retries: 1, snapshot: true}}}}
clusters:
  lab: {{work: {}/work, log: {}/logs}}
hosts:
  h1: {{type: plain, cluster: lab, ssh: h1}}
"""
SHOW = "cat code.txt; echo $DISPATCHER_CODE_COMMIT $DISPATCHER_CODE_DIGEST"


@pytest.mark.parametrize("sees", [False, True], ids=["sends the copy", "sees the workspace"])
@pytest.mark.parametrize("code", ["ship", "none"])
def test_a_retry_runs_the_copy_and_a_requeue_the_code_of_then(
    fleet: Fleet, tmp_path: Path, start_ssh: Callable[..., SshBed], sees: bool, code: str
) -> None:
    bed = start_ssh(["h1"], shared=[tmp_path] if sees else [])
    place = f"{tmp_path}/host" if sees else "~"
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\nsaid/\ngate\n")
    repository.write("code.txt", "one\n")
    fleet.write_config(CONFIG.format(code, place, place))
    fleet.write_manifest([shell("a", f"{SHOW}; until [ -e ~/gate ]; do sleep 0.1; done; exit 3")])
    commit = repository.commit()
    environment = {"DISPATCHER_SSH_CONFIG": os.fspath(bed.config)}
    pod = fleet.start("pod", "--outlet", "h1:2", poll="0.5", **environment)
    wait_until(lambda: fleet.records().get("a") and fleet.record("a").code, "it was sent")
    repository.write("code.txt", "two\n")
    bed["h1"].path("gate").touch()
    fleet.wait_for("a", "failed")
    assert fleet.record("a").attempt == 2
    for number in (1, 2):
        seen, told = fleet.output("a", number).splitlines()[-2:]
        assert seen == "one", fleet.output("a", number)
        assert told.startswith(f"{commit} ")
    assert fleet.record("a").code == fleet.record("a").snapshot
    fleet.run("requeue", "a")
    fleet.wait_for("a", "failed", attempt=4)
    assert [fleet.output("a", number).splitlines()[-2] for number in (3, 4)] == ["two", "two"]
    assert pod.stop() == 1


def test_a_job_that_is_submitted_to_a_host_at_once_runs_the_code_of_its_submission(
    fleet: Fleet, start_ssh: Callable[..., SshBed]
) -> None:
    bed = start_ssh(["h1"])
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\nsaid/\nmatrix/\n")
    repository.write("code.txt", "one\n")
    fleet.write_config(CONFIG.format("ship", "~", "~"))
    repository.commit()
    environment = {"DISPATCHER_SSH_CONFIG": os.fspath(bed.config)}
    fleet.run("submit", "--snapshot", "--outlet", "h1", "--name", "a", "--", "bash", "-c", SHOW, **environment)
    record = fleet.record("a")
    assert record.state in ("submitted", "running", "done"), record
    assert record.snapshot
    repository.write("code.txt", "two\n")
    wait_until(lambda: fleet.run("poll", **environment) is not None and fleet.record("a").state == "done", "it is done")
    assert "one" in fleet.output("a").splitlines()
