"""What `pause` and `unpause` do to pods that run."""

from __future__ import annotations

from fleet import Fleet, shell, wait_until

from dispatcher.base.host import host_name


def test_a_paused_method_is_not_claimed_until_it_is_unpaused(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true", method="m"), shell("b", "true", method="n")])
    fleet.run("pause", "m", "--why", "the tokenizer is broken")
    pod = fleet.start()
    fleet.wait_for("b", "done")
    assert fleet.states() == {"a": "queued", "b": "done"}
    status = fleet.try_("status").stdout
    assert "method m is paused: the tokenizer is broken (by " in status
    fleet.run("unpause", "m")
    fleet.wait_for("a", "done")
    assert pod.stop() == 0


def test_a_gpu_is_paused_while_a_pod_runs(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true", gpus=1), shell("b", "true", gpus=0)])
    pod = fleet.start("pod", "--gpus", "0", "--slots", "1")
    fleet.wait_for("a", "done")
    scope = f"gpu:{host_name()}:0"
    fleet.run("pause", scope, "--why", "new fan")
    wait_until(lambda: "new fan" in fleet.run("pods"), "`pods` says that the GPU is paused")
    fleet.run("requeue", "a", "b", "--state", "done")
    # The pod has seen the request for `a` when it has run `b`, which came with it.
    fleet.wait_for("b", "done", attempt=2)
    assert fleet.states()["a"] == "queued"
    status = fleet.try_("status").stdout
    assert "new fan" in status and "asks for 1 GPU, but 1 of 1 cannot be used now: GPU 0: " in status
    fleet.run("unpause", scope)
    fleet.wait_for("a", "done", attempt=2)
    assert pod.stop() == 0


def test_no_pod_on_a_paused_host_claims(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    pod = fleet.start()
    fleet.wait_for("a", "done")
    fleet.run("pause", f"host:{host_name()}")
    pod.says("no claims")
    fleet.run("requeue", "a", "--state", "done")
    wait_until(
        lambda: "is paused: no reason given (by " in fleet.try_("status").stdout, "`status` says why the job waits"
    )
    assert fleet.states() == {"a": "queued"}
    fleet.run("unpause", f"host:{host_name()}")
    pod.says("may claim again")
    fleet.wait_for("a", "done")
