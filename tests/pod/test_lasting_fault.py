"""What is said of ends that cannot be recorded."""

from __future__ import annotations

import json
import resource
import signal

from fleet import Fleet, shell, wait_until

from dispatcher.pod.lasting_fault import LastingFault


def test_a_fault_is_said_once_and_again_while_ends_wait_for_it() -> None:
    now_s = 0.0
    fault = LastingFault(lambda: now_s)
    assert fault.report("disk full", 0) == "warning: disk full; trying again"
    assert fault.report("disk full", 2) == ""
    now_s = 61.0
    assert fault.report("disk full", 0) == ""
    assert fault.report("disk full", 2) == "2 ends not recorded yet: disk full"
    assert fault.report("disk full", 2) == ""
    now_s = 122.0
    assert fault.report("disk full", 1) == "1 end not recorded yet: disk full"
    assert fault.report("file server away", 1) == "warning: file server away; trying again"
    fault.clear()
    assert fault.report("file server away", 1) == "warning: file server away; trying again"


def test_a_drain_that_cannot_record_ends_says_so_and_another_pod_finds_them(fleet: Fleet) -> None:
    gated = "echo begun; until [ -e go ]; do sleep 0.02; done"
    # The others make the journal longer than what the pod prints, whose length is limited, too.
    others = [shell(f"z{n}", "true", method="later") for n in range(100)]
    fleet.write_manifest([shell("a", gated), shell("b", f"{gated}; exit 3"), *others])
    pod = fleet.start("pod", "--slots", "2", "--methods", "m")
    for job in ("a", "b"):
        fleet.wait_running(job)
        fleet.wait_for(job, "running")
    size = fleet.layout.journal(1).stat().st_size
    resource.prlimit(pod.pid, resource.RLIMIT_FSIZE, (size, size))
    (fleet.root / "go").touch()
    pod.says("warning: writing to the journal")

    def is_idle() -> bool:
        return not any(slot.get("jobs") for slot in json.loads(fleet.layout.pod_file("pod").read_bytes())["slots"])

    wait_until(is_idle, "the pod knows that both have ended")
    pod.send(signal.SIGTERM)
    assert "nothing is running" in pod.says("2 ends not recorded yet: writing to the journal ")
    for word in ("stopping", "leaving"):
        pod.send(signal.SIGTERM)
        pod.says(word)
    pod.end()
    last = pod.said.splitlines()[-1]
    assert last.endswith("no job has ended; 2 ends not recorded: a pod of this workspace finds them"), last
    fleet.run_all("--methods", "m", pod="other")
    records = fleet.records()
    assert [(records[job].state, records[job].exit_code, records[job].attempt) for job in ("a", "b")] == [
        ("done", 0, 1),
        ("failed", 3, 1),
    ]
