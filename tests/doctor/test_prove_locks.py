"""Whether locks exclude: a pod whose lock is free lives although its lock says no, or has just got it back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher.doctor.prove_locks import prove_locks
from dispatcher.run_state import liveness
from dispatcher.workspace import Layout


@pytest.mark.parametrize("takes_it_again", [True, False])
def test_a_lock_that_was_taken_again_before_the_heartbeat_is_no_lie(tmp_path: Path, takes_it_again: bool) -> None:
    layout = Layout(tmp_path)
    layout.pods_dir.mkdir(parents=True)
    layout.pod_lock("theirs").touch()
    pod = liveness.PodInfo(
        pod="theirs", host="elsewhere", boot_id="x", pid_namespace=1, pid=7, start_ticks=7, user="u",
        started_at="", heartbeat=1, heartbeat_s=1.0, lock="flock",
    )  # fmt: skip
    liveness.write_pod(layout, pod)
    fds: list[int | None] = []

    def beat_of_the_other() -> None:
        if not fds:
            fds.append(liveness.take(layout.pod_lock("theirs")) if takes_it_again else None)
            pod.heartbeat += 1
            liveness.write_pod(layout, pod)

    proof = prove_locks(layout, "mine", beat_of_the_other, lambda _: None)
    assert proof.unprotected == (() if takes_it_again else ("theirs",))
    for fd in fds:
        if fd is not None:
            os.close(fd)
