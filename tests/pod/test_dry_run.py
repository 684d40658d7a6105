"""`--dry-run` says what a start does right after it, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, shell, wait_until

GATED = "echo begun; until [ -e go ]; do sleep 0.02; done"


def numbers(*jobs: str, **rest: Any) -> list[dict[str, Any]]:
    return [shell(job, "true", **rest) for job in jobs]


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (found.st_mtime_ns, found.st_ctime_ns)
        for path in [root, *root.rglob("*")]
        if (found := path.lstat()) and "said" not in path.parts
    }


class Dry:
    """What a dry run says: the claims in their order, the reasons of the rest, and the notes."""

    def __init__(self, fleet: Fleet, *words: str) -> None:
        before = snapshot(fleet.root)
        done = fleet.try_("--dry-run", "--json", *words)
        assert done.returncode == 0, done.stderr
        if not any(pod.is_running() for pod in fleet.dispatchers):
            assert snapshot(fleet.root) == before, "a dry run has changed something"
        rows = json.loads(done.stdout)
        self.claims = [row["job"] for row in rows if row["claimed"] == "yes"]
        self.why = {row["job"]: row["why"] for row in rows if row["claimed"] == "no"}
        self.notes = done.stderr


def edit(fleet: Fleet, **lines: dict[str, Any]) -> None:
    status = fleet.status()
    for job, line in lines.items():
        status[job] = line
    fleet.layout.status_file.write_text(json.dumps(status))


def test_hand_edits_count_as_if_they_were_taken_in(fleet: Fleet) -> None:
    fleet.write_manifest(numbers("a", "b"))
    assert fleet.run_all().end() == 0
    fleet.write_manifest(numbers("a", "b", "c", "d"))
    edit(fleet, b={"state": "queued"}, a={"state": "running"}, c={"state": "held"})
    dry = Dry(fleet, "--slots", "3")
    assert dry.claims == ["b", "d"]
    assert dry.why["c"] == "held: not claimed until it is requeued"
    assert "take in hand edits of run_state/matrix_status.json: 2 jobs (b, c)" in dry.notes
    assert "would refuse the hand edit of a: " in dry.notes
    fleet.start("pod", "--slots", "3", "--max-jobs", "2").end()
    assert fleet.claimed()[2:] == dry.claims


def test_a_status_file_is_adopted(fleet: Fleet) -> None:
    fleet.write_manifest(numbers("a", "b", "c"))
    fleet.layout.run_state.mkdir()
    fleet.layout.status_file.write_text('{"a": {"state": "done"}, "b": {"state": "failed", "exit_code": 1}}')
    dry = Dry(fleet, "--slots", "3")
    assert dry.claims == ["c"]
    assert dry.why == {"a": "it is done", "b": "it has failed"}
    assert "a start would adopt the records of run_state/matrix_status.json: 2 jobs (a, b)" in dry.notes
    fleet.run_all()
    assert fleet.claimed() == dry.claims


@pytest.mark.parametrize("where", ["matrix", "run_state"])
def test_what_keeps_a_start_from_beginning_keeps_a_dry_run_too(fleet: Fleet, where: str) -> None:
    fleet.write_manifest(numbers("a"))
    (fleet.root / where).mkdir(exist_ok=True)
    # One that nobody has adopted, and one that is broken.
    text = '{"a": {"state": "done"}}' if where == "matrix" else '{"a": '
    (fleet.root / where / "matrix_status.json").write_text(text)
    before = snapshot(fleet.root)
    dry = fleet.try_("--dry-run", "--slots", "1")
    assert snapshot(fleet.root) == before
    start = fleet.start("pod", "--until-empty")
    assert dry.returncode == start.end() == 1
    assert "matrix_status.json" in dry.stderr
    assert dry.stderr.split(":")[1] in start.said


def test_a_restarted_pod_finds_its_jobs_again(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED), *numbers("b")])
    pod = fleet.start("pod")
    fleet.wait_running("a")
    assert "a dispatcher named 'pod' is already running" in Dry(fleet, "--pod", "pod", "--slots", "1").notes
    pod.kill()
    dry = Dry(fleet, "--pod", "pod", "--slots", "1")
    assert dry.claims == []
    assert dry.why == {"a": "it is running; this pod would find it again", "b": "waits for a free slot"}
    assert "is already running" not in dry.notes
    other = Dry(fleet, "--pod", "other", "--slots", "1")
    assert other.claims == ["b"]
    assert other.why == {"a": "it is running; its pod pod is gone, any pod will record how it ends"}
    (fleet.root / "go").touch()
    assert fleet.run_all().end() == 0


def test_what_ended_after_its_dispatcher_is_recorded_first(fleet: Fleet) -> None:
    fleet.write_manifest([shell("good", GATED), shell("bad", f"{GATED}; exit 3"), *numbers("after", needs=["good"])])
    pod = fleet.start("pod", "--slots", "2")
    for job in ("good", "bad"):
        fleet.wait_running(job)
    pod.kill()
    (fleet.root / "go").touch()
    for job in ("good", "bad"):
        fleet.wait_gone(job)
    dry = Dry(fleet, "--slots", "1")
    assert dry.claims == ["after"]
    assert dry.why == {
        "good": "it is done; its pod pod is gone, so a start would record it",
        "bad": "it has ended with exit status 3; its pod pod is gone, so a start would record that first",
    }
    fleet.run_all(pod="other")
    assert fleet.claimed()[2:] == dry.claims


def test_max_jobs_and_the_rest(fleet: Fleet) -> None:
    fleet.write_manifest(numbers("a", "b", "c"))
    dry = Dry(fleet, "--slots", "3", "--max-jobs", "2")
    assert dry.claims == ["a", "b"]
    assert "--max-jobs 2: the pod would end after these; others may take the rest" in dry.notes


def test_what_no_live_pod_takes(fleet: Fleet) -> None:
    fleet.write_manifest([*numbers("big", gpus=16), *numbers("slurm", outlet="slurm"), shell("a", GATED)])
    alone = Dry(fleet, "--slots", "1")
    assert alone.why == {
        "big": "asks for 16 GPUs, this pod has 0",
        "slurm": "asks for outlet slurm, this pod offers local",
    }
    pod = fleet.start("pod").ready()
    fleet.wait_running("a")
    together = Dry(fleet, "--slots", "1")
    assert together.why["big"] == "asks for 16 GPUs, no live pod has any"
    assert together.why["slurm"] == "asks for outlet slurm, which no live pod offers (offered: local)"
    why = {job["job"]: job["why"] for job in json.loads(fleet.run("status", "--json"))["jobs"]}
    assert (why["big"], why["slurm"]) == (together.why["big"], together.why["slurm"])
    (fleet.root / "go").touch()
    pod.stop()


def test_a_pod_with_a_manifest_of_its_own_takes_no_other_jobs(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", GATED), *numbers("b")])
    fleet.write_manifest([shell("a", GATED)], "subset.json")
    pod = fleet.start("pod", "--matrix", "subset.json").ready()
    fleet.wait_running("a")
    why = {job["job"]: job["why"] for job in json.loads(fleet.run("status", "--json"))["jobs"]}
    assert why["b"] == "not in its manifest subset.json (pod pod)"
    (fleet.root / "go").touch()
    pod.stop()


def test_the_last_line_of_max_jobs_calls_nothing_stuck(fleet: Fleet) -> None:
    fleet.write_manifest(numbers("a", "b", "c"))
    pod = fleet.run_all("--max-jobs", "1")
    assert pod.end() == 0
    assert "ended after --max-jobs 1; others may take the rest" in pod.said
    assert "cannot run now" not in pod.said


def test_the_last_line_names_the_reasons(fleet: Fleet) -> None:
    chain = [shell("bad", "exit 3"), *numbers("b", needs=["bad"]), *numbers("c", needs=["b"])]
    fleet.write_manifest([*chain, *numbers("big", gpus=16)])
    pod = fleet.run_all()
    assert pod.end() == 1
    assert "ended with 2 jobs left that cannot run now: bad failed: exit 3 (2)" in pod.said
    assert "1 job left that this pod cannot run: asks for 16 GPUs, this pod has 0" in pod.said


def test_what_no_outlet_of_the_pod_can_run_has_one_reason_everywhere(fleet: Fleet) -> None:
    fleet.write_config("hosts: {hpc: {type: slurm, slot_type: cpu}}\n")
    fleet.write_manifest(numbers("big", gpus=4, outlet="hpc"))
    why = "hpc has slot_type cpu, and 4 GPUs are asked for"
    options = ("--outlet", "hpc:2")
    assert why in fleet.run("--pod", "p", *options, "--dry-run")
    pod = fleet.start("p", *options, "--until-empty")
    assert pod.end() == 1
    assert f"1 job left that this pod cannot run: {why}" in pod.said
    assert f"could not take it: {why}" in fleet.run("status")
    assert why in fleet.try_("solve", "--explain", "--chips", "4").stdout
    alive = fleet.start("p", *options)
    wait_until(lambda: why in fleet.run("show", "big"), "`show` says why it waits")
    assert "free slot" not in fleet.run("status")
    alive.stop()


def test_a_job_that_another_pod_can_run_is_not_left(fleet: Fleet) -> None:
    fleet.write_manifest([shell("first", GATED, gpus=1), *numbers("big", gpus=1), *numbers("small", gpus=0)])
    other = fleet.start("gpu", "--gpus", "0", "--slots", "0")
    fleet.wait_running("first")
    pod = fleet.start("cpu", "--slots", "1", "--until-empty")
    assert pod.end() == 0, pod.said
    assert "1 job left that this pod cannot run: asks for 1 GPU, this pod has 0 (pod gpu can take it)" in pod.said
    (fleet.root / "go").touch()
    fleet.wait_for("big", "done")
    other.stop()


def test_what_needs_a_paused_method_does_not_keep_a_pod_for_ever(fleet: Fleet) -> None:
    failing = [shell(f"bad{n}", "exit 3", method="bad") for n in range(6)]
    fleet.write_manifest([*failing, *numbers("after", needs=["bad5"])])
    pod = fleet.run_all()
    assert pod.end() == 1
    assert fleet.states()["bad5"] == "queued"
    assert "ended with 2 jobs left that cannot run now: method bad is paused: " in pod.said


def test_a_job_that_its_directory_keeps_from_being_claimed_is_named(fleet: Fleet) -> None:
    fleet.write_manifest(numbers("a", "b"))
    fleet.layout.jobs_dir.mkdir(parents=True)
    fleet.layout.job_dir("a").touch()
    dry = Dry(fleet, "--slots", "2")
    assert dry.claims == ["b"]
    assert dry.why["a"].startswith("cannot be claimed: ") and "must be a directory" in dry.why["a"]
    assert "a cannot be claimed" in dry.notes
