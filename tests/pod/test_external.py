"""Jobs that a lab's own script runs while dispatchers work on the same status file."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import COMMAND, Fleet, shell, wait_until

from dispatcher.run_state.journal import now_text

GATED = "echo begun; until [ -e go ]; do sleep 0.02; done"


@pytest.fixture
def script() -> Iterator[subprocess.Popen[bytes]]:
    """The training of a lab's own script."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def claim_of(process: subprocess.Popen[bytes], **fields: Any) -> dict[str, Any]:
    started_at = now_text(time.time()).split(".")[0] + "Z"
    return {"state": "running", "pod": "shivam-0", "pid": process.pid, "started_at": started_at, **fields}


def write(path: Path, job: str, **fields: Any) -> None:
    lines = json.loads(path.read_bytes())
    lines[job].update(fields)
    with open(path, "w") as file:
        json.dump(lines, file)


def test_the_gpu_of_an_adopted_job_is_taken_while_its_process_lives(
    fleet: Fleet, script: subprocess.Popen[bytes]
) -> None:
    fleet.write_manifest([shell(job, "echo begun; sleep 600", gpus=1) for job in ("old", "a", "b")])
    path = fleet.root / "matrix" / "matrix_status.json"
    path.write_text(json.dumps({"old": claim_of(script, gpu=0)}))
    fleet.run("init", "--adopt", str(path))
    assert "old" in fleet.run("--pod", "x", "--gpus", "0", "--dry-run")
    pod = fleet.start("pod", "--gpus", "0,1", "--on-exit", "stop", poll="0.2")
    fleet.wait_running("a")
    assert fleet.record("a").gpu == 1
    assert "its GPU counts as in use" in fleet.try_("status").stderr
    assert "old of shivam-0 runs there" in fleet.run("pods")
    assert fleet.record("b").state == "queued"
    script.kill()
    script.wait()
    fleet.wait_running("b")
    assert fleet.record("b").gpu == 0
    # How it ended is unknown, and stays so until a person records it.
    record = fleet.record("old")
    assert (record.state, record.external) == ("running", True)
    assert f"there is no pid {script.pid} on this host" in fleet.run("show", "old")
    assert fleet.run("mark", "done", "old") == "old: set by hand\n"
    assert pod.stop() == 0


# Claims a job in the status file that is its argument, and goes on.
OLD_SCRIPT = """
import json, subprocess, sys, time
with subprocess.Popen(["sleep", "600"]) as job:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(json.dumps({"state": "running", "pod": "old", "pid": job.pid, "started_at": now}), flush=True)
    sys.stdin.read()
    job.kill()
"""


def test_no_pod_starts_while_a_script_that_has_started_an_adopted_job_lives(fleet: Fleet) -> None:
    fleet.write_manifest([shell("old", "true"), shell("a", "true")])
    path = fleet.root / "matrix" / "matrix_status.json"
    with subprocess.Popen(
        [sys.executable, "-c", OLD_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdin is not None and script.stdout is not None
        path.write_text(json.dumps({"old": json.loads(script.stdout.readline()), "a": {"state": "queued"}}))
        fleet.run("init", "--adopt", str(path))
        refused = fleet.try_("--pod", "p", "--slots", "1", "--until-empty")
        assert refused.returncode == 1
        assert f"(pid {script.pid}) has started old" in refused.stderr
        assert fleet.record("a").state == "queued"
        script.stdin.close()
        script.wait()
    fleet.run("mark", "done", "old")
    assert fleet.run_all("--slots", "1").end() == 0
    assert fleet.record("a").state == "done"


def test_a_pod_claims_nothing_while_a_script_writes_a_file_that_it_does_not_read(fleet: Fleet) -> None:
    fleet.write_manifest([shell("first", GATED), shell("second", "true")])
    path = fleet.root / "matrix" / "matrix_status.json"
    path.write_text('{"first": {"state": "queued"}, "second": {"state": "queued"}}')
    fleet.run("init", "--adopt", str(path))
    pod = fleet.start("pod", "--slots", "1", poll="0.2")
    fleet.wait_running("first")
    path.write_text('{"first": {"state": "queued"}, "second": {"state": "running", "pid": 1}}')
    (fleet.root / "go").touch()
    pod.says("nothing is claimed: ")
    assert fleet.wait_for("first", "done")
    assert fleet.record("second").state == "queued"
    path.rename(path.with_suffix(".old"))
    assert fleet.wait_for("second", "done")
    assert pod.stop() == 0


def test_what_a_script_claims_is_left_to_it(fleet: Fleet, script: subprocess.Popen[bytes]) -> None:
    fleet.write_config("status_file: matrix_status.json\nscript_lock: matrix/claims.lock\n")
    fleet.write_manifest(
        [shell("a", GATED), shell("b", "touch twice"), shell("c", "true"), shell("d", "true", needs=["b"])]
    )
    status = fleet.root / "matrix_status.json"
    pod = fleet.start("pod", poll="0.2")
    fleet.wait_running("a")
    write(status, "b", **claim_of(script))
    wait_until(lambda: fleet.record("b").external, "the claim is taken in")
    (fleet.root / "go").touch()
    fleet.wait_for("c", "done")
    assert "(external)" in fleet.run("status")
    # A pod with --until-empty does not wait for external jobs.
    other = fleet.run_all(pod="other")
    assert "2 jobs left that cannot run now" in other.said
    write(status, "b", state="done", exit_code=0)
    assert fleet.wait_for("b", "done").pod == "shivam-0"
    fleet.wait_for("d", "done")
    assert pod.stop() == 0
    assert fleet.claimed() == ["a", "c", "d"]
    assert not (fleet.root / "twice").exists()
    assert "b" not in {row["job_id"] for row in json.loads(fleet.run("results", "--json"))}


def test_a_pod_claims_nothing_beside_a_script_whose_lock_it_does_not_know(
    fleet: Fleet, script: subprocess.Popen[bytes]
) -> None:
    fleet.write_manifest([shell("a", GATED), shell("b", "true"), shell("c", "true")])
    pod = fleet.start("pod", "--until-empty", poll="0.2")
    fleet.wait_running("a")
    wait_until(lambda: "c" in fleet.status(), "all are queued")
    write(fleet.layout.status_file, "b", **claim_of(script))
    pod.says("b was claimed by shivam-0")
    wait_until(lambda: "script_lock: FILE" in fleet.run("pods"), "`pods` says it, too")
    why = {job["job"]: job["why"] for job in json.loads(fleet.run("status", "--json"))["jobs"]}
    assert why["c"].startswith("no longer claims: b was claimed by shivam-0")
    (fleet.root / "go").touch()
    # What ran is recorded, but nothing is begun.
    assert pod.end() == 1
    assert fleet.states() == {"a": "done", "b": "running", "c": "queued"}
    *_, left, stuck, _ = pod.said.splitlines()
    assert "ended with 2 jobs left, 1 of which this pod no longer claims: b was claimed by shivam-0, pid " in left
    assert "start this pod again" in left
    assert "1 of these cannot run now: runs externally" in stuck
    # Told what the script locks, it goes on.
    fleet.write_config("script_lock: matrix/claims.lock\n")
    fleet.run_all()
    assert fleet.states() == {"a": "done", "b": "running", "c": "done"}


def test_a_dispatcher_gives_way_to_a_script_that_claims_what_it_runs(
    fleet: Fleet, script: subprocess.Popen[bytes]
) -> None:
    fleet.write_config("status_file: matrix_status.json\n")
    fleet.write_manifest([shell("a", "echo begun; sleep 600")])
    status = fleet.root / "matrix_status.json"
    fleet.run("hold", "a")
    fleet.run("requeue", "a")
    old = json.loads(status.read_bytes())
    pod = fleet.start("pod", poll="0.2")
    fleet.wait_running("a")
    # The script had loaded the file before.
    status.write_text(json.dumps({"a": {**old["a"], **claim_of(script)}}))
    pod.says("was taken over by another pod")
    fleet.wait_gone("a")
    pod.says("not recorded")
    record = fleet.record("a")
    assert (record.state, record.pod, record.attempt, record.external) == ("running", "shivam-0", 2, True)
    assert pod.stop() == 0


LAB_SCRIPT = """
import fcntl, json, os, sys, time

lock_with = getattr(fcntl, sys.argv[1])
while True:
    with open("matrix/claims.lock", "a") as lock:
        lock_with(lock, fcntl.LOCK_EX)
        with open("matrix_status.json") as file:
            status = json.load(file)
        job = next((job for job, line in status.items() if line["state"] == "queued"), None)
        if job is not None:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            status[job].update(state="running", pod="shivam-0", pid=os.getpid(), gpu=None, started_at=now)
            with open("matrix_status.json", "w") as file:
                json.dump(status, file)
    if job is None:
        break
    with open("ran", "a") as file:
        file.write(f"script {job}\\n")
    with open("matrix/claims.lock", "a") as lock:
        lock_with(lock, fcntl.LOCK_EX)
        with open("matrix_status.json") as file:
            status = json.load(file)
        status[job].update(state="done", exit_code=0)
        with open("matrix_status.json", "w") as file:
            json.dump(status, file)
"""


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_a_script_and_two_pods_that_share_its_lock_run_nothing_twice(fleet: Fleet, kind: str) -> None:
    fleet.write_config("status_file: matrix_status.json\nscript_lock: matrix/claims.lock\n")
    jobs = [f"job{number:02d}" for number in range(60)]
    fleet.write_manifest([shell(job, f"echo pod {job} >> ran") for job in jobs])
    path = fleet.root / "matrix_status.json"
    path.write_text(json.dumps({job: {"state": "queued"} for job in jobs}))
    (fleet.root / "lab.py").write_text(LAB_SCRIPT)
    pods = [fleet.start(name, "--slots", "2", poll="0.2") for name in ("one", "two")]
    for pod in pods:
        pod.ready()
    script = subprocess.run(
        [sys.executable, "lab.py", kind], cwd=fleet.root, capture_output=True, text=True, timeout=120, check=False
    )
    assert script.returncode == 0, script.stderr
    for job in jobs:
        fleet.wait_for(job, "done")
    ran = [line.split() for line in (fleet.root / "ran").read_text().splitlines()]
    assert sorted(job for _, job in ran) == jobs
    # Both have had their share, else nothing was shown.
    assert {who for who, _ in ran} == {"script", "pod"}
    theirs = {job for who, job in ran if who == "script"}
    assert {job for job, record in fleet.records().items() if record.external} == theirs
    assert not any(record.attempt > 1 for record in fleet.records().values())
    assert [pod.stop() for pod in pods] == [0, 0]


def test_a_script_that_keeps_its_lock_stops_claims_alone(fleet: Fleet) -> None:
    fleet.write_config("script_lock: matrix/claims.lock\n")
    fleet.write_manifest([shell("a", GATED), shell("b", "true")])
    pod = fleet.start("pod", poll="0.2")
    fleet.wait_running("a")
    with open(fleet.root / "matrix" / "claims.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (fleet.root / "go").touch()
        fleet.wait_for("a", "done")
        pod.says("nothing is claimed meanwhile")
        assert fleet.record("b").state == "queued"
    fleet.wait_for("b", "done")
    assert pod.stop() == 0


def test_what_runs_outside_is_requeued_when_its_process_has_ended(
    fleet: Fleet, script: subprocess.Popen[bytes]
) -> None:
    fleet.write_manifest([shell("a", "true"), shell("b", "true")])
    fleet.layout.run_state.mkdir()
    fleet.layout.status_file.write_text(json.dumps({"a": claim_of(script)}))
    pod = fleet.start("pod", poll="0.2")
    fleet.wait_for("b", "done")
    assert f"takes effect when pid {script.pid}" in fleet.run("requeue", "a")
    fleet.write_manifest([shell("a", "true"), shell("b", "true"), shell("c", "true")])
    fleet.wait_for("c", "done")
    assert (fleet.record("a").state, fleet.record("a").desired) == ("running", "queued")
    script.kill()
    script.wait()
    assert fleet.wait_for("a", "done").attempt == 1
    assert fleet.record("a").external is False
    assert pod.stop() == 0


def test_an_open_editor_does_not_hide_claims_from_a_script(fleet: Fleet) -> None:
    fleet.write_config("script_lock: matrix/claims.lock\n")
    fleet.write_manifest([shell("a", GATED), shell("b", "echo begun; sleep 600")])
    pod = fleet.start("pod", "--on-exit", "stop", poll="0.2")
    fleet.wait_running("a")
    wait_until(lambda: fleet.status()["a"]["state"] == "running", "its claim is shown")
    swap = fleet.layout.status_file.with_name(f".{fleet.layout.status_file.name}.swp")
    swap.write_bytes(b"an editor of another host")
    with open(fleet.root / "matrix" / "claims.lock", "a") as lock:
        # From here on the pod cannot claim, so that b is claimed with the editor open.
        fcntl.flock(lock, fcntl.LOCK_EX)
        (fleet.root / "go").touch()
        fleet.wait_for("a", "done")
        assert fleet.record("b").state == "queued"
    fleet.wait_running("b")
    with open(fleet.root / "matrix" / "claims.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert fleet.status()["b"]["state"] == "running"
    assert pod.stop() == 0


def test_nothing_is_claimed_that_a_script_could_not_be_shown(fleet: Fleet) -> None:
    fleet.write_config("script_lock: matrix/claims.lock\n")
    fleet.write_manifest([shell("a", GATED), shell("b", "true")])
    pod = fleet.start("pod", poll="0.2")
    fleet.wait_running("a")
    wait_until(lambda: fleet.status()["a"]["state"] == "running", "its claim is shown")
    whole = fleet.layout.status_file.read_text()
    # A value that Python's json reads all the same, and dispatchers do not.
    fleet.layout.status_file.write_text(whole.replace('{"state": "queued"', '{"note": NaN, "state": "queued"'))
    (fleet.root / "go").touch()
    fleet.wait_for("a", "done")
    wait_until(lambda: "a script relies on it" in fleet.run("status", "--json"), "`status` says why nothing is claimed")
    assert fleet.record("b").state == "queued"
    fleet.layout.status_file.write_text(whole)
    fleet.wait_for("b", "done")
    assert pod.stop() == 0


# A disk that is full for the status file alone.
FAILING = """
import errno, os
from dispatcher.run_state import projection
write_temporary = projection._write_temporary
def failing(path, data):
    if os.path.exists("full"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write_temporary(path, data)
projection._write_temporary = failing
"""


def test_the_scripts_lock_is_kept_until_its_status_file_shows_the_claims(fleet: Fleet) -> None:
    fleet.write_config("script_lock: matrix/claims.lock\n")
    fleet.write_manifest([shell("a", GATED), shell("b", GATED)])
    fleet.run_all("--methods", "none")
    fleet.command = [*COMMAND[:-1], FAILING + COMMAND[-1]]
    (fleet.root / "full").touch()
    pod = fleet.start("pod", poll="0.2")
    fleet.wait_running("a")
    pod.says("No space left on device")
    with open(fleet.root / "matrix" / "claims.lock", "a") as lock:

        def is_free() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        assert fleet.status()["a"]["state"] == "queued", "the claim cannot be shown"
        assert not is_free(), "the script would claim it, too"
        (fleet.root / "full").unlink()
        wait_until(is_free, "the script may go on")
        assert fleet.status()["a"]["state"] == "running"
    (fleet.root / "go").touch()
    fleet.wait_for("a", "done")
    fleet.wait_for("b", "done")
    assert pod.stop() == 0
