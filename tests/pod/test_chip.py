"""A job that asks for a kind of GPU, on a pod's own GPUs: a stand-in for the driver's library tells their names."""

from __future__ import annotations

from fleet import Fleet, shell, wait_until
from nvml_driver import Driver


def test_it_runs_on_that_kind_and_waits_for_one(fleet: Fleet, driver: Driver) -> None:
    driver.say("count 2", "0 name NVIDIA A100-SXM4-40GB", "1 name NVIDIA H100 80GB HBM3")
    told = "echo $CUDA_VISIBLE_DEVICES"
    fleet.write_manifest(
        [
            shell("h", told, resources={"chip": "h100"}),
            shell("v", told, gpus=1, resources={"chip": "v100"}),
            shell("a", told, gpus=1, resources={"chip": "a100-40gb"}),
        ]
    )
    pod = fleet.start("pod", "--gpus", "0,1", "--slots", "1")
    fleet.wait_for("h", "done")
    fleet.wait_for("a", "done")
    assert (fleet.output("h").strip(), fleet.output("a").strip()) == ("1", "0")
    why = "asks for 1 v100, and live pods have 1 NVIDIA A100-SXM4-40GB, 1 NVIDIA H100 80GB HBM3"
    wait_until(lambda: why in fleet.run("show", "v"), "what v waits for")
    assert pod.stop() == 0
    assert fleet.states()["v"] == "queued"
