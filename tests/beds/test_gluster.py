"""GlusterFS: its clients show old content for a second or more, and dispatchers must not be misled by it."""

from __future__ import annotations

import time

import pytest

from .lab import PROVE, Lab

JOBS = [f"job-{number:03}" for number in range(120)]


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["caches-on", "defaults", "caches-off"])
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
