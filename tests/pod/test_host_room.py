"""Jobs that ask for CPUs and memory of their pod's host: real pods count them, and say where nothing enforces them."""

from __future__ import annotations

import json

from fleet import Fleet, shell, wait_until

GATED = "echo $OMP_NUM_THREADS; until [ -e go ]; do sleep 0.1; done"


def test_jobs_begin_when_there_are_enough_and_what_is_not_enforced_is_said(fleet: Fleet) -> None:
    fleet.write_manifest(
        [
            shell("two", GATED, resources={"cpus": 2, "memory": "100M"}),
            shell("one", GATED, resources={"cpus": 1}, env={"OMP_NUM_THREADS": "7"}),
            shell("large", "true", resources={"memory": "3G"}),
            shell("none", GATED),
        ]
    )
    words = ("--slots", "4", "--cpus", "2", "--memory", "2G")
    pod = fleet.start("pod", *words)
    for job in ("two", "none"):
        fleet.wait_running(job)
    lacks = "asks for 1 CPU, 0 CPUs free"
    wait_until(lambda: lacks in fleet.run("show", "one"), "what `one` waits for")
    assert "asks for 3G of memory, no live pod has more than 2G of memory (--memory)" in fleet.run("show", "large")
    pod.kill()
    again = fleet.start("pod", *words)
    again.says("found two (attempt 1) again")
    wait_until(lambda: lacks in fleet.run("show", "one"), "what `one` waits for with the second pod")
    # This machine may well be one where they are.
    is_enforced = fleet.attempt("two").cgroup.exists()
    said = "cpus and memory of two are counted, not enforced: "
    status = fleet.try_("status")
    assert (said in " ".join((status.stdout + status.stderr).split())) is not is_enforced
    (shown,) = [one for one in json.loads(fleet.run("pods", "--json")) if one["pod"] == "pod"]
    assert any(said in note for note in shown["notes"]) is not is_enforced
    (fleet.root / "go").touch()
    for job in ("two", "one", "none"):
        fleet.wait_for(job, "done")
    assert again.stop() == 0
    assert [fleet.output(job).split() for job in ("two", "one", "none")] == [["2"], ["7"], []]
    assert fleet.states()["large"] == "queued"
