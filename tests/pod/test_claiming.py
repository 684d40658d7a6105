"""Which entries a dispatcher takes, in which order, and on which slots."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from fleet import Fleet, shell
from nvml_driver import Driver

SHOW = "echo gpus=$(printenv CUDA_VISIBLE_DEVICES || echo unset) order=$(printenv CUDA_DEVICE_ORDER || echo unset)"
# Says when it begins and goes on until the test lets it end.
GATED = "echo begun; until [ -e go ]; do sleep 0.02; done"


def numbers(*jobs: str, **rest: Any) -> list[dict[str, Any]]:
    return [shell(job, "true", **rest) for job in jobs]


def test_by_priority_then_by_the_manifest(fleet: Fleet) -> None:
    fleet.write_manifest(
        [*numbers("d", "a"), *numbers("urgent", priority=2), *numbers("late", priority=-1), *numbers("b")]
    )
    assert fleet.run_all().end() == 0
    assert fleet.claimed() == ["urgent", "d", "a", "b", "late"]
    assert set(fleet.states().values()) == {"done"}


def test_needs_are_done_first(fleet: Fleet) -> None:
    last = shell("last", "cat made", needs=["middle", "first"])
    fleet.write_manifest([last, shell("middle", "echo x >made", needs=["first"]), *numbers("first")])
    assert fleet.run_all("--slots", "3").end() == 0
    assert fleet.claimed() == ["first", "middle", "last"]
    assert fleet.output("last") == "x\n"


def test_what_needs_a_failed_entry_waits_for_a_person(fleet: Fleet) -> None:
    fleet.write_manifest([shell("bad", "test -e repaired"), *numbers("after", needs=["bad"])])
    pod = fleet.run_all()
    assert pod.end() == 1
    assert "ended with 1 job left that cannot run now" in pod.said
    assert fleet.states() == {"bad": "failed", "after": "queued"}
    (fleet.root / "repaired").touch()
    fleet.run("requeue", "bad")
    assert fleet.run_all().end() == 0
    assert fleet.states() == {"bad": "done", "after": "done"}


def test_methods_and_where(fleet: Fleet) -> None:
    fleet.write_manifest(
        [
            shell(f"{method}_{lang}_{seed}", "true", method=method, lang=lang, seed=seed)
            for method in ("fft", "lora")
            for lang in ("spanish", "swedish", "german")
            for seed in (1, 2)
        ]
    )
    words = ("--methods", "fft", "--where", "lang=s*", "--where", "seed=2")
    assert fleet.run_all(*words).end() == 0
    assert fleet.claimed() == ["fft_spanish_2", "fft_swedish_2"]


def test_a_method_that_no_entry_has_is_said(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true", method="lora")])
    pod = fleet.run_all("--methods", "loara")
    assert pod.end() == 0
    assert "--methods: matrix.json has no jobs of 'loara' (did you mean 'lora'?)" in pod.said


def test_a_key_that_no_entry_has_is_said(fleet: Fleet) -> None:
    fleet.write_manifest([{**shell("a", "true"), "lang": "greek"}, {**shell("b", "true"), "seed": 2}])
    pod = fleet.run_all("--where", "lnag=greek", "--where", "seed=*")
    assert pod.end() == 0
    assert "--where: no job of matrix.json has a value for 'lnag' (did you mean 'lang'?)" in pod.said
    assert "'seed'" not in pod.said


def test_max_jobs(fleet: Fleet) -> None:
    fleet.write_manifest(numbers("a", "b", "c"))
    one = fleet.start("pod", "--max-jobs", "2", "--slots", "3")
    assert one.end() == 0
    assert fleet.states() == {"a": "done", "b": "done", "c": "queued"}


def test_until_empty_waits_for_what_others_run(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED), *numbers("b", needs=["a"])])
    first = fleet.start("first", "--max-jobs", "1").ready()
    fleet.wait_running("a")
    second = fleet.start("second", "--until-empty").ready()
    (fleet.root / "go").touch()
    assert (first.end(), second.end()) == (0, 0)
    assert fleet.record("b").pod == "second"


def test_dry_run_changes_nothing(fleet: Fleet) -> None:
    fleet.write_manifest([*numbers("a", "b"), *numbers("big", gpus=4), *numbers("after", needs=["a"])])
    said = fleet.run("--slots", "1", "--dry-run")
    lines = {line.split()[0]: line for line in said.splitlines() if line.split()}
    assert "cpu" in lines["a"]
    assert "waits for a free slot" in lines["b"]
    assert "4 GPUs" in lines["big"]
    assert "needs a" in lines["after"]
    assert not fleet.layout.run_state.exists()


def test_several_dispatchers_never_take_the_same_entry(fleet: Fleet) -> None:
    jobs = [f"job_{n:03d}" for n in range(60)]
    fleet.write_manifest([shell(job, f"echo x >>ran_{job}") for job in jobs])
    pods = [fleet.start(f"pod-{n}", "--until-empty", "--slots", "2") for n in range(3)]
    assert [pod.end() for pod in pods] == [0, 0, 0]
    assert sorted(fleet.claimed()) == jobs
    assert {(fleet.root / f"ran_{job}").read_text() for job in jobs} == {"x\n"}


# GPUs, on a host that may have none.


def test_gpus_without_a_driver(fleet: Fleet) -> None:
    one = {"gpus": 1}
    fleet.write_manifest([shell("a", f"{SHOW}; {GATED}", **one), shell("b", SHOW, **one), shell("both", SHOW, gpus=2)])
    pod = fleet.start("pod", "--gpus", "0,1", "--slots", "1", "--until-empty")
    fleet.wait_for("b", "done")
    assert fleet.record("b").gpu == 1
    (fleet.root / "go").touch()
    assert pod.end() == 0
    assert fleet.output("a").splitlines()[0] == "gpus=0 order=PCI_BUS_ID"
    assert fleet.output("b") == "gpus=1 order=PCI_BUS_ID\n"
    assert fleet.output("both") == "gpus=0,1 order=PCI_BUS_ID\n"
    assert fleet.record("both").gpu == (0, 1)


def test_without_a_driver_there_is_a_warning(fleet: Fleet) -> None:
    fleet.write_manifest(numbers("a"))
    pod = fleet.run_all("--gpus", "0")
    assert "warning:" in pod.said, "neither a driver nor a word about it"
    assert fleet.states() == {"a": "done"}


def test_a_cpu_slot_has_no_gpu(fleet: Fleet, driver: Driver) -> None:
    """Whatever the dispatcher itself was started with, and also beside GPUs of the same pod."""
    fleet.write_manifest([shell("said", SHOW, gpus=0), shell("unsaid", SHOW)])
    fleet.run_all(CUDA_VISIBLE_DEVICES="0,1", CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert fleet.output("said") == fleet.output("unsaid") == "gpus= order=unset\n"
    driver.say("count 1")
    fleet.write_manifest([shell("a", f"{SHOW}; {GATED}"), shell("b", f"{SHOW}; {GATED}")])
    pod = fleet.start("both", "--gpus", "0", "--slots", "1", "--until-empty")
    for job in "ab":
        fleet.wait_running(job)
    (fleet.root / "go").touch()
    assert pod.end() == 0
    shown = sorted(fleet.output(job).splitlines()[0] for job in "ab")
    assert shown == ["gpus= order=unset", "gpus=0 order=PCI_BUS_ID"]


def test_a_pod_keeps_to_the_gpus_that_it_was_given(fleet: Fleet, driver: Driver) -> None:
    """As in an allocation, whose other GPUs are somebody else's."""
    driver.say("count 2", "0 uuid GPU-aa", "1 uuid GPU-bb")
    fleet.write_manifest([shell("a", SHOW, gpus=1)])
    outside = fleet.try_("--pod", "x", "--gpus", "0", "--until-empty", CUDA_VISIBLE_DEVICES="GPU-bb")
    assert outside.returncode and "GPU 0 is not among those that this pod may use (1)" in outside.stderr
    fleet.run_all("--gpus", "all", CUDA_VISIBLE_DEVICES="GPU-bb")
    assert fleet.output("a") == "gpus=1 order=PCI_BUS_ID\n"


def test_a_part_of_a_gpu(fleet: Fleet, driver: Driver) -> None:
    driver.say("count 1", "0 mig 1", "8 parent 0", "8 uuid MIG-8", "9 parent 0", "9 uuid MIG-9")
    fleet.write_manifest([shell("a", f"{SHOW}; {GATED}", gpus=1), shell("b", f"{SHOW}; {GATED}", gpus=1)])
    pod = fleet.start("pod", "--gpus", "all", "--until-empty", CUDA_VISIBLE_DEVICES="MIG-9,MIG-8")
    for job in "ab":
        fleet.wait_running(job)
    (fleet.root / "go").touch()
    assert pod.end() == 0
    shown = [fleet.output(job).split()[0] for job in "ab"]
    assert shown == ["gpus=MIG-9", "gpus=MIG-8"]


def test_kinds_of_slots(fleet: Fleet) -> None:
    fleet.write_manifest([*numbers("gpu", gpus=1), *numbers("cpu", gpus=0), *numbers("any")])
    fleet.run_all("--gpus", "3")
    assert fleet.states() == {"gpu": "done", "cpu": "queued", "any": "done"}
    fleet.run_all("--slots", "1")
    assert fleet.record("cpu").gpu is None
    assert fleet.record("any").gpu == 3


def test_jobs_per_gpu(fleet: Fleet) -> None:
    jobs = ["a", "b", "c", "d"]
    fleet.write_manifest([shell(job, GATED, gpus=1) for job in jobs])
    pod = fleet.start("pod", "--gpus", "0,1", "--jobs-per-gpu", "2", "--until-empty")
    for job in jobs:
        fleet.wait_running(job)
    assert [fleet.record(job).gpu for job in jobs] == [0, 0, 1, 1]
    (fleet.root / "go").touch()
    assert pod.end() == 0


def test_an_entry_on_several_gpus_is_not_starved(fleet: Fleet) -> None:
    """Single ones that come behind it leave it the GPUs that become free."""
    fleet.write_manifest(
        [
            shell("one", "true", gpus=1),
            shell("two", "sleep 0.5", gpus=1),
            shell("pair", "true", gpus=2),
            *(shell(f"small_{n}", "true", gpus=1) for n in range(10)),
        ]
    )
    assert fleet.run_all("--gpus", "0,1").end() == 0
    assert fleet.claimed()[:3] == ["one", "two", "pair"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_dispatcher_ends_at_a_signal(fleet: Fleet, number: int) -> None:
    fleet.write_manifest(numbers("a"))
    pod = fleet.start("pod")
    fleet.wait_for("a", "done")
    pod.send(number)
    assert pod.end() == 0
