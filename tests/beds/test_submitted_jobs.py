"""Two hosts submit to one workspace over real NFS at the same time, while pods of both run what comes."""

from __future__ import annotations

import json

import pytest

from .lab import COMMAND, PROVE, Lab, wait_until


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("submissions", "each"), [(6, 2), pytest.param(10, 4, marks=pytest.mark.long)])
@pytest.mark.parametrize("mount", ["v4.2", "v3"])
def test_no_submission_is_lost_and_no_job_runs_twice(nfs, mount, submissions, each):
    a, b = nfs.hosts(mount)
    lab = Lab(a, b)
    lab.write_matrix({"first": PROVE})
    pods = [lab.start(host, f"{host.name}-pod", "--on-exit=drain") for host in (a, b)]
    values = ",".join(map(str, range(each)))
    words = ["submit", "--param", f"n={values}", "--", "bash", "-c", PROVE]
    hosts = [(a, b)[number % 2] for number in range(submissions)]
    running = [host.start([COMMAND, *words], cwd=host.root) for host in hosts]
    assert [one.wait(300) for one in running] == [0] * submissions, [one.output() for one in running]
    printed = [job for one in running for job in one.stdout().split()]
    assert len(printed) == len(set(printed)) == submissions * each
    jobs = {*printed, "first"}
    for host in (a, b):
        lines = host.run(["cat", host.path("matrix/submitted.jsonl")], check=True).stdout.splitlines()
        assert sorted(json.loads(line)["job_id"] for line in lines) == sorted(printed)
    wait_until(lambda: {row["state"] for row in lab.file_records(b).values()} == {"done"}, "all are done", 200, 1)
    assert {job: row["state"] for job, row in lab.records(b).items()} == dict.fromkeys(jobs, "done")
    for pod in pods:
        pod.terminate()
    assert [pod.wait() for pod in pods] == [0, 0]
    assert lab.proofs() == dict.fromkeys(jobs, 1)
    lab.check_journal()
