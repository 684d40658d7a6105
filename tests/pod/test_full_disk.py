"""A disk that fills up while jobs run, and one that cannot be written to: nothing is lost, and it is said."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet, fleet_at, shell, wait_until

FILL_AND_WAIT = """
    echo begun
    until [ -e fill ]; do sleep 0.02; done
    head -c 100M /dev/zero >filler 2>/dev/null
    echo full >>{0}
    until [ -e {1} ]; do sleep 0.02; done
"""


@pytest.fixture
def small(small_disk: Path, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_at(small_disk / "w", tmp_path / "said") as made:
        yield made


def test_exit_statuses_are_recorded_when_there_is_room_again(small: Fleet, tmp_path: Path) -> None:
    gate, full = tmp_path / "gate", tmp_path / "full"
    waiting = f"echo begun; until [ -e {gate} ]; do sleep 0.02; done; exit 7"
    fill = FILL_AND_WAIT.format(full, gate)
    small.write_manifest([shell("a", waiting), shell("b", fill), shell("c", "true")])
    pod = small.start("pod", "--slots", "2", "--until-empty")
    small.wait_running("a")
    small.wait_running("b")
    (small.root / "fill").touch()
    wait_until(full.exists, "the disk is full")
    gate.touch()
    wait_until(lambda: "warning" in pod.said or "No space" in pod.said, "the dispatcher says that the disk is full")
    before = small.states()
    assert before["c"] == "queued", "something was claimed without room for its record"
    assert pod.is_running()
    said = small.run("status")
    assert "run_state is full, so no claim can be recorded" in said and "free slot" not in said
    (small.root / "filler").unlink()
    assert pod.end() == 1
    records = small.records()
    assert {job: (r.state, r.exit_code) for job, r in records.items()} == {
        "a": ("failed", 7),
        "b": ("done", 0),
        "c": ("done", 0),
    }
    assert records["a"].attempt == records["b"].attempt == 1
    assert small.states() == {job: line["state"] for job, line in small.status().items()}


def test_a_dispatcher_that_is_told_to_leave_a_full_disk_loses_nothing(small: Fleet, tmp_path: Path) -> None:
    gate, full = tmp_path / "gate", tmp_path / "full"
    fill = FILL_AND_WAIT.format(full, gate)
    small.write_manifest([shell("a", f"{fill}\nexit 3")])
    pod = small.start("pod", "--on-exit", "leave")
    small.wait_running("a")
    (small.root / "fill").touch()
    wait_until(full.exists, "the disk is full")
    pod.stop()
    gate.touch()
    (small.root / "filler").unlink()
    small.wait_gone("a")
    small.run_all()
    assert small.record("a").exit_code == 3
    assert small.record("a").attempt == 1


def test_a_full_disk_at_the_start(small: Fleet) -> None:
    small.write_manifest([shell("a", "true")])
    filler = small.root / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4k"], capture_output=True, check=False)
    pod = small.start()
    pod.says("No space left on device")
    assert "Traceback" not in pod.said and "by themselves" not in pod.said
    nested = small.try_("init", "--nested", "sub")
    assert "the disk is full: free some space" in nested.stderr and not (small.root / "sub").exists()
    filler.unlink()
    if not pod.is_running():
        assert pod.end() == 1
    assert small.run_all(pod="other").end() == 0
    assert small.states() == {"a": "done"}


def test_a_change_on_a_full_disk_is_recorded_with_a_note(small: Fleet) -> None:
    small.write_manifest([shell("a", "true")])
    small.run("hold", "a")
    subprocess.run(["dd", "if=/dev/zero", f"of={small.root}/filler", "bs=4k"], capture_output=True, check=False)
    done = small.try_("requeue", "a")
    assert (done.returncode, small.record("a").state) == (0, "queued"), done.stderr
    assert "note: the change is recorded, but the status file does not show it yet" in done.stderr


def test_a_workspace_that_can_only_be_read(small: Fleet, small_disk: Path) -> None:
    small.write_manifest([shell("a", "true")])
    assert small.run_all().end() == 0
    before = small.status()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    pod = small.start()
    assert pod.end() == 1
    assert "Read-only file system" in pod.said
    assert "Traceback" not in pod.said
    assert small.run("status")
    assert small.status() == before


def test_a_run_state_that_vanishes(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "echo begun; sleep 600")])
    pod = fleet.start()
    pid = fleet.wait_running("a")
    while fleet.layout.run_state.exists():
        # The pod may write into it meanwhile.
        shutil.rmtree(fleet.layout.run_state, ignore_errors=True)
    os.kill(pid, signal.SIGTERM)
    pod.says("the directory is gone")
    assert not fleet.layout.run_state.exists(), "an empty run state would let everything run again"
    for word in ("draining", "stopping", "leaving"):
        pod.send(signal.SIGTERM)
        pod.says(word)
    pod.end()
    assert "Traceback" not in pod.said


def test_no_inodes_for_a_while_pause_no_host_and_fail_no_job(small: Fleet, tmp_path: Path) -> None:
    """What cannot be prepared for want of room is queued again, and claimed when there is room."""
    ran = tmp_path / "ran"
    jobs = [f"j{number}" for number in range(20)]
    small.write_manifest([shell(job, f"echo {job} >>{ran}") for job in jobs])
    pod = small.start("pod", "--slots", "2", "--max-jobs", "1")
    pod.end()
    fillers = [small.root.parent / f"filler{number}" for number in range(10_000)]
    made = []
    for filler in fillers:
        try:
            filler.touch()
        except OSError:
            break
        made.append(filler)
    # Some are free: attempts are claimed, and not all of their files can be made.
    for filler in made[:3]:
        filler.unlink()
    pod = small.start("pod", "--slots", "2", "--until-empty")
    wait_until(lambda: "no inodes are left" in pod.said, "the pod says what there is too little of")
    for filler in made[3:]:
        filler.unlink()
    assert pod.end() == 0
    assert {record.state for record in small.records().values()} == {"done"}
    assert sorted(ran.read_text().split()) == sorted(jobs)
    assert "paused" not in pod.said
