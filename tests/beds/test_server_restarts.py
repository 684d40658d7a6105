"""The file server restarts twice in a row: a host that misses the grace period keeps its jobs all the same."""

from __future__ import annotations

import json

import pytest

from .lab import WAIT, Lab, wait_until


def _heartbeat(lab: Lab, pod: str) -> int:
    lab.b.names("run_state/pods")
    return int(json.loads(lab.b.read_text(f"run_state/pods/{pod}.json"))["heartbeat"])


@pytest.mark.slow
@pytest.mark.parametrize("mount", ["v4.2", "v3"])
def test_jobs_of_a_host_that_comes_too_late_to_claim_its_locks_again(nfs, mount):
    a, b = nfs.hosts(mount)
    lab = Lab(a, b, heartbeat="1s", lost_after="10m", kill_grace="1s")
    lab.write_matrix({"mine": WAIT, "theirs": WAIT})
    pod_a = lab.start(a, "pod-a", "--until-empty", slots=1)
    wait_until(lambda: lab.proofs() == {"mine": 1}, "the first job runs on host-a", 60)
    # It has room for the other's job, too.
    pod_b = lab.start(b, "pod-b", "--until-empty", slots=2)
    wait_until(lambda: lab.proofs() == {"mine": 1, "theirs": 1}, "the second job runs on host-b", 60)
    wait_until(lambda: all(row.get("pid") for row in lab.file_records(b).values()), "the pids are recorded", 30)
    nfs.reboot_server()
    a.cut()
    nfs.reboot_server()
    # Locks of after the grace period: host-a can claim none of its own any more.
    assert b.run(["flock", b.path("grace"), "true"], timeout=120).returncode == 0
    begun = _heartbeat(lab, "pod-b")
    wait_until(lambda: _heartbeat(lab, "pod-b") > begun + 10, "host-b has looked around many times", 120)
    assert lab.file_records(b)["mine"]["attempt"] == 1, pod_b.output()
    a.restore()
    cut = _heartbeat(lab, "pod-a")
    wait_until(lambda: _heartbeat(lab, "pod-a") > cut + 3, "host-a is back", 120)
    b.write_text("go", "")
    for pod in (pod_a, pod_b):
        assert pod.wait(120) == 0, pod.output()
    records = lab.file_records(b)
    assert {job: (row["state"], row["attempt"], row["pod"]) for job, row in records.items()} == {
        "mine": ("done", 1, "pod-a"),
        "theirs": ("done", 1, "pod-b"),
    }
    assert lab.proofs() == {"mine": 1, "theirs": 1}
    lab.check_journal()
