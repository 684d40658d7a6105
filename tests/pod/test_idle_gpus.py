"""Jobs that leave their GPUs at 0 %: real pods over a stand-in for the driver's library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fleet import Dispatcher, Fleet, shell, wait_until
from nvml_driver import Driver
from told_notices import keeping, told

WAITS = "echo begun; exec sleep 600"
QUICK = "gpu_idle: {after: 2s}\nheartbeat: 0.2s\nlost_after: 60s\nkill_grace: 2s\n"


def started(fleet: Fleet, driver: Driver, config: str, *words: str, gpus: str = "0") -> Dispatcher:
    fleet.write_config(config)
    driver.say("count 2", "0 busy 0 0", "1 busy 0 0")
    return fleet.start("pod", "--gpus", gpus, *words)


def rows(fleet: Fleet) -> dict[str, Any]:
    return {row["job"]: row for row in json.loads(fleet.run("status", "--json"))["jobs"]}


def wait_for_event(fleet: Fleet, job: str, event: str, times: int = 1) -> None:
    wait_until(lambda: fleet.events(job).count(event) == times, f"{event} of {job}, {times} times")


def test_one_event_for_each_spell_and_its_end(fleet: Fleet, driver: Driver, tmp_path: Path) -> None:
    fleet.write_manifest([shell("a", WAITS, gpus=1)])
    notify = {"after": "0.1s", "targets": {"chat": {"command": keeping(tmp_path / "kept"), "events": ["gpu_idle"]}}}
    pod = started(fleet, driver, f"{QUICK}notify: {json.dumps(notify)}\n")
    fleet.wait_running("a")
    wait_for_event(fleet, "a", "gpu_idle")
    assert rows(fleet)["a"]["gpu_idle_s"] >= 2
    assert "GPU idle" in fleet.run("status") and "1 job leaves its GPU idle" in fleet.run("status")
    assert "idle" in fleet.run("pods") and "GPU idle" in fleet.run("show", "a")
    assert json.loads(fleet.run("show", "a", "--json"))["gpu_idle_s"] >= 2
    [pods] = json.loads(fleet.run("pods", "--json"))
    assert pods["slots"][0]["gpu_idle_s"] >= 2
    driver.say("count 2", "0 busy 0 0", "0 sample 5", "1 busy 0 0")
    wait_for_event(fleet, "a", "gpu_busy")
    assert rows(fleet)["a"]["gpu_idle_s"] is None and "GPU idle" not in fleet.run("status")
    driver.say("count 2", "0 busy 0 0", "1 busy 0 0")
    wait_for_event(fleet, "a", "gpu_idle", 2)
    lines = [line for line in fleet.history("a") if line.event in ("gpu_idle", "gpu_busy")]
    assert [line.event for line in lines] == ["gpu_idle", "gpu_busy", "gpu_idle"]
    first, end, second = (line.data or {} for line in lines)
    assert first["attempt"] == 1 and first["gpus"] == 1
    assert end["since"] == first["since"] < second["since"]
    assert "idle since" in pod.said and "in use again" in pod.said

    def notices() -> list[str]:
        return [row["state"] for row in json.loads(fleet.run("show", "a", "--json"))["notices"]]

    wait_until(lambda: notices() == ["sent", "waiting"], "people are told, of a second spell only after an hour")
    assert told(tmp_path / "kept")[0]["events"][0]["jobs"] == ["a"] and len(told(tmp_path / "kept")) == 1
    # Nobody stops what was not to be stopped.
    assert fleet.record("a").state == "running"
    fleet.run("cancel", "a")
    fleet.wait_for("a", "abandoned")
    assert rows(fleet)["a"]["gpu_idle_s"] is None


def test_a_method_has_such_jobs_stopped_and_they_have_failed(fleet: Fleet, driver: Driver) -> None:
    # One of them saves what it has and says so, as job classes do; that is no preemption.
    saves = "trap 'exit 75' TERM; echo begun; sleep 600 & wait"
    fleet.write_manifest([shell("a", WAITS, gpus=1), shell("b", saves, gpus=1), shell("c", WAITS, gpus=0)])
    started(fleet, driver, QUICK + "methods: {m: {gpu_idle: {stop: true}}}\n", "--slots", "1", gpus="0,1")
    for job in "ab":
        record = fleet.wait_for(job, "failed")
        assert record.reason == "GPU idle for 2 s" and record.attempt == 1
        assert fleet.events(job)[-2:] == ["gpu_idle", "failed"]
    assert fleet.exit_file("a")["reason"] == "GPU idle for 2 s"
    assert fleet.record("c").state == "running" and "gpu_idle" not in fleet.events("c")


def test_retries_apply_to_them_as_to_other_failures(fleet: Fleet, driver: Driver) -> None:
    once = "[[ $DISPATCHER_ATTEMPT != 1 ]] || { echo begun; exec sleep 600; }"
    method = "{gpu_idle: {stop: true}, retries: 1, retry_on: [gpu idle], backoff: 0.1s}"
    fleet.write_manifest([shell("a", once, gpus=1)])
    started(fleet, driver, QUICK + f"methods: {{m: {method}}}\n")
    fleet.wait_for("a", "done", attempt=2)
    assert "retried" in fleet.events("a")


def test_what_the_driver_does_not_tell_is_no_proof(fleet: Fleet, driver: Driver) -> None:
    fleet.write_manifest([shell("a", WAITS, gpus=1), shell("b", WAITS, gpus=1)])
    fleet.write_config(QUICK + "methods: {m: {gpu_idle: {stop: true}}}\n")
    driver.say("count 2", "0 busy 0 0", "0 mig 1", "1 busy 0 0")
    fleet.start("pod", "--gpus", "0,1")
    # The other one, which is proved to be idle, shows that samples were taken meanwhile.
    ended = wait_until(
        lambda: [job for job, state in fleet.states().items() if state == "failed"], "the job on GPU 1 failed"
    )
    other = "b" if ended == ["a"] else "a"
    assert fleet.record(ended[0]).gpu == 1
    assert fleet.record(other).state == "running" and "gpu_idle" not in fleet.events(other)


def test_a_job_that_computes_now_and_then_is_left_alone(fleet: Fleet, driver: Driver) -> None:
    fleet.write_manifest([shell("a", WAITS, gpus=1), shell("b", WAITS, gpus=1)])
    fleet.write_config(QUICK + "methods: {m: {gpu_idle: {stop: true}}}\n")
    # GPU 0 is at 0 % in every other look.
    driver.say("count 2", "0 busy 30 0", "0 rests 1", "1 busy 0 0")
    fleet.start("pod", "--gpus", "0,1")
    wait_until(lambda: "failed" in fleet.states().values(), "the job on GPU 1 failed")
    running = next(job for job, state in fleet.states().items() if state == "running")
    assert fleet.record(running).gpu == 0 and "gpu_idle" not in fleet.events(running)


def test_a_restarted_pod_goes_on_with_the_spell(fleet: Fleet, driver: Driver) -> None:
    fleet.write_manifest([shell("a", WAITS, gpus=1)])
    pod = started(fleet, driver, QUICK)
    fleet.wait_running("a")
    wait_for_event(fleet, "a", "gpu_idle")
    pod.kill()
    wait_until(lambda: rows(fleet)["a"]["gpu_idle_s"] is None, "nobody looks: nothing is claimed")
    fleet.start("pod", "--gpus", "0").ready()
    assert rows(fleet)["a"]["gpu_idle_s"] >= 2
    driver.say("count 2", "0 busy 9 0")
    wait_for_event(fleet, "a", "gpu_busy")
    assert fleet.events("a").count("gpu_idle") == 1


def test_switched_off_for_a_method(fleet: Fleet, driver: Driver) -> None:
    fleet.write_manifest([shell("a", WAITS, gpus=1), shell("b", WAITS, gpus=1, method="watched")])
    started(fleet, driver, QUICK + "methods: {m: {gpu_idle: false}, watched: {}}\n", gpus="0,1")
    wait_for_event(fleet, "b", "gpu_idle")
    wait_until(lambda: rows(fleet)["b"]["gpu_idle_s"] >= 4, "twice that time")
    assert "gpu_idle" not in fleet.events("a")
