"""Jobs that share a GPU by its memory: a stand-in for the driver's library tells how much there is."""

from __future__ import annotations

import json

import pytest
from fleet import Fleet, shell, wait_until
from nvml_driver import Driver

from dispatcher.run_state.events import Event

GIB = 1 << 30
TOLD = "echo $CUDA_VISIBLE_DEVICES $DISPATCHER_GPU_MEMORY_MIB $XLA_PYTHON_CLIENT_MEM_FRACTION"
GATED = f"{TOLD}; until [ -e go ]; do sleep 0.1; done"


def test_they_share_it_as_long_as_their_sum_fits_also_when_their_pod_is_killed(fleet: Fleet, driver: Driver) -> None:
    driver.say("count 1", f"0 memory {24 * GIB} {GIB} 0")
    fleet.write_config("methods: {m: {gpu_memory: 12G}}\n")
    fleet.write_manifest(
        [
            shell("a", GATED, method="other", gpu_memory="10G"),
            shell("b", GATED, method="m", env={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"}),
            shell("c", TOLD, method="m", gpu_memory="2G"),
            shell("large", TOLD, method="m", gpu_memory="30G"),
            shell("alone", TOLD, method="other", gpus=1),
        ]
    )
    # The pod has a CPU slot too, and what asks for memory of a GPU does not run there.
    words = ("--gpus", "0", "--slots", "1")
    pod = fleet.start("pod", *words)
    for job in "ab":
        fleet.wait_running(job)
    lacks = "asks for 2G of GPU memory, at most 1G free"
    wait_until(lambda: lacks in fleet.run("show", "c"), "what c waits for")
    assert "asks for 30G of GPU memory, no GPU of a live pod has more than 23G for jobs" in fleet.run("show", "large")
    pod.kill()
    again = fleet.start("pod", *words)
    again.says("found b (attempt 1) again")
    wait_until(lambda: lacks in fleet.run("show", "c"), "what c waits for with the second pod")
    dry = json.loads(fleet.run("--pod", "other", "--gpus", "0", "--dry-run", "--json"))
    assert {row["job"]: row["slot"] for row in dry}["c"] == "gpu 0 (2G)"
    (fleet.root / "go").touch()
    for job in ("a", "b", "c", "alone"):
        fleet.wait_for(job, "done")
    assert again.stop() == 0
    assert [fleet.output(job).split() for job in "abc"] == [
        ["0", "10240", "0.3911"],
        ["0", "12288", "0.1"],
        ["0", "2048", "0.0651"],
    ]
    assert fleet.output("alone").split() == ["0"]
    account = json.loads(fleet.run("usage", "--json"))
    assert abs(account["check"]["left_over"]["gpus"]) < 0.01 * account["total"]["total"]["gpus"]
    shares = [
        line.data["gpu_share"]
        for job in "abc"
        for line in fleet.history(job)
        if line.event is Event.CLAIMED and line.data
    ]
    assert shares == pytest.approx([10 / 23, 12 / 23, 2 / 23], abs=0.001)
