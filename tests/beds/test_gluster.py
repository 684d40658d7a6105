"""GlusterFS: its clients show old content for a second or more, and dispatchers must not be misled by it."""

from __future__ import annotations

import json
import time

import pytest

from .lab import COMMAND, PROVE, Lab, wait_until

JOBS = [f"job-{number:03}" for number in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["defaults", "caches-on", "caches-off"])
def test_nothing_is_lost_and_nothing_runs_twice(gluster, variant):
    a, b = gluster.hosts(variant)
    lab = Lab(a, b, heartbeat="1s")
    lab.write_matrix(dict.fromkeys(JOBS, PROVE))
    begun = time.monotonic()
    pods = [lab.start(host, host.name) for host in (a, b)]
    codes = [pod.wait(280) for pod in pods]
    print(f"{variant}: {time.monotonic() - begun:.1f} s for {len(JOBS)} jobs")
    said = "\n".join(pod.output()[-3000:] for pod in pods)
    assert codes == [0, 0], said
    assert lab.proofs() == dict.fromkeys(JOBS, 1)
    lab.check_journal()
    for host in (a, b):
        records = lab.records(host)
        assert {job: (row["state"], row["attempt"]) for job, row in records.items()} == dict.fromkeys(JOBS, ("done", 1))
    assert {row["pod"] for row in records.values()} == {"host-a", "host-b"}


@pytest.mark.slow
def test_dispatchers_that_are_killed_in_the_middle_leave_no_damage(gluster):
    """Whoever dies between the two renames of the end's name, or behind the append, blocks nobody."""
    a, b = gluster.hosts("defaults")
    lab = Lab(a, b, heartbeat="1s", lost_after="8s")
    jobs = JOBS
    lab.write_matrix(dict.fromkeys(jobs, f"sleep 0.5; {PROVE}"))
    survivor = lab.start(b, "host-b", slots=1)
    for number in range(4):
        pod = lab.start(a, "host-a")
        pod.wait_for_output("start job", 60)
        before = pod.output().count("start job")
        wait_until(lambda: pod.poll() is not None or pod.output().count("start job") > before + number, "it works", 60)  # noqa: B023
        pod.kill()
        pod.wait(60)
    last = lab.start(a, "host-a")
    assert (last.wait(200), survivor.wait(200)) == (0, 0), last.output() + survivor.output()
    lab.check_journal()
    records = lab.records(b)
    assert {job: row["state"] for job, row in records.items()} == dict.fromkeys(jobs, "done")
    # Never two at once: a further attempt only where the one before was lost.
    claims = [line["job"] for line in lab.journal() if line["event"] == "claimed"]
    assert sum(lab.proofs().values()) <= len(claims)
    assert len(lab.a.run(["ls", lab.a.path("run_state/journal_end")], check=True).stdout.split()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["defaults", "caches-off"])
def test_doctors_find_nothing_wrong(gluster, variant):
    a, b = gluster.hosts(variant)
    lab = Lab(a, b)
    lab.write_matrix({"job": "true"})
    assert lab.start(a, "pod", "--until-empty").wait(60) == 0
    doctors = [host.start([COMMAND, "doctor", "--json", "--peer-wait", "60"], cwd=host.root) for host in (a, b)]
    codes = [doctor.wait(150) for doctor in doctors]
    found = [json.loads(doctor.stdout())["findings"] for doctor in doctors]
    for findings in found:
        by_check = {finding["check"]: finding for finding in findings}
        assert by_check["transactions"]["verdict"] == "ok", by_check["transactions"]
        assert by_check["flock between hosts"]["verdict"] == "ok"
    assert codes == [0, 0], [finding for findings in found for finding in findings if finding["verdict"] != "ok"]
