"""Whether locks exclude: a pod whose lock is free lives although its lock says no, or has just got it back."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fleet import Fleet, fleet_at, shell

from dispatcher.doctor.prove_locks import prove_locks
from dispatcher.run_state import liveness
from dispatcher.workspace import Layout


def pod_without_lock(root: Path) -> tuple[Layout, liveness.PodInfo]:
    layout = Layout(root)
    layout.pods_dir.mkdir(parents=True)
    layout.pod_lock("theirs").touch()
    pod = liveness.PodInfo(
        pod="theirs", host="elsewhere", boot_id="x", pid_namespace=1, pid=7, start_ticks=7, user="u",
        started_at="", heartbeat=1, heartbeat_s=1.0, lock="flock",
    )  # fmt: skip
    liveness.write_pod(layout, pod)
    return layout, pod


@pytest.mark.parametrize("takes_it_again", [True, False])
def test_a_lock_that_was_taken_again_before_the_heartbeat_is_no_lie(tmp_path: Path, takes_it_again: bool) -> None:
    layout, pod = pod_without_lock(tmp_path)
    fds: list[int] = []
    beats: list[bool] = []

    def beat_of_the_other() -> None:
        """Without the lock once, as when it was about to take it again."""
        beats.append(True)
        if beats[1:] and takes_it_again and not fds:
            fd = liveness.take(layout.pod_lock("theirs"))
            assert fd is not None
            fds.append(fd)
        pod.heartbeat += 1
        liveness.write_pod(layout, pod)

    proof = prove_locks(layout, "mine", beat_of_the_other, lambda _: None)
    assert proof.unprotected == (() if takes_it_again else ("theirs",))
    assert len(beats) >= 2
    for fd in fds:
        os.close(fd)


def test_an_error_of_the_test_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, pod = pod_without_lock(tmp_path)
    tests: list[Path] = []

    def is_held(path: Path) -> bool | None:
        tests.append(path)
        # Free at first, then flock fails with EIO.
        return False if len(tests) == 1 else None

    def beat_of_the_other() -> None:
        pod.heartbeat += 1
        liveness.write_pod(layout, pod)

    monkeypatch.setattr(liveness, "is_held", is_held)
    assert prove_locks(layout, "mine", beat_of_the_other, lambda _: None).unprotected == ()


def test_a_copy_of_a_workspace_with_a_live_pod_proves_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """The file of the pod in the copy has a pid that lives, on this host, and nobody holds the copied lock."""
    fleet.write_config("heartbeat: 0.2s\nlost_after: 2s\n")
    fleet.write_manifest([shell("a", "true")])
    pod = fleet.start("theirs")
    fleet.wait_for("a", "done")
    copy = tmp_path / "copy"
    shutil.copytree(fleet.root, copy, symlinks=True)
    assert pod.is_running()
    with fleet_at(copy, tmp_path / "said") as other:
        other.write_manifest([shell("b", "true")])
        other.run_all(pod="mine")
        assert other.record("b").state == "done"
        assert not other.layout.hardlink_lock_file.exists()
        assert "hard-link lock" not in other.dispatchers[0].said
    assert not fleet.layout.hardlink_lock_file.exists()
