"""`dispatcher clean` on two hosts that share a directory by NFS."""

from __future__ import annotations

import json

from .lab import Lab
from .test_beds import hold


class TestNfs:
    def test_two_hosts_clean_at_once_what_no_attempt_of_either_uses(self, nfs):
        a, b = nfs.hosts()
        lab = Lab(a, b)
        noise = "cd $DISPATCHER_ATTEMPT_DIR; mkdir out; head -c 100000 /dev/zero >out/big; echo said; exit 3"
        jobs = [f"job{number}" for number in range(2)]
        lab.write_matrix(dict.fromkeys(jobs, noise))
        for host in (a, b):
            lab.start(host, f"on-{host.name}").wait(120)
            lab.run(a, "requeue", *jobs, check=False)
        lab.run(a, "cancel", *jobs)
        alive = "run_state/jobs/job0/1/alive"
        holder = hold(b, "flock", name=alive)
        # A process on the other host may still belong to it.
        plan = json.loads(lab.run(a, "clean", "--json").stdout)
        assert [row["what"] for row in plan["items"]] == [f"jobs/{job}/1" for job in jobs[1:]]
        assert plan["skipped"] == [{"what": "jobs/job0/1", "why": "may be running"}]
        holder.kill()
        holder.wait()
        cleaners = [host.start(["dispatcher", "clean", "--yes", "--json"], cwd=host.root) for host in (a, b)]
        for cleaner in cleaners:
            assert cleaner.wait(120) == 0, cleaner.output()
        for job in jobs:
            listed = b.run(["sh", "-c", f"ls {job}/1 {job}/2"], cwd=b.path("run_state/jobs"), check=True).stdout
            first, second = listed.split(f"{job}/2:")
            assert "cleaned.json" in first and "exit.json" in first and "output.log" not in first, listed
            assert "output.log" in second and "out\n" in second, listed
        assert "nothing to remove" in lab.run(b, "clean").stdout
