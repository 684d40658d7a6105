"""Liveness locks and heartbeats: who counts as gone, and who only looks so."""

from __future__ import annotations

import pytest
from clocks import Clock

from dispatcher.base.mounts import Mount
from dispatcher.run_state import liveness
from dispatcher.workspace import Layout


def test_a_counter_is_unchanged_since_it_was_last_seen_to_change() -> None:
    clock = Clock()
    watch = liveness.Watch(clock)
    assert watch.unchanged_s("pod", 1) == 0
    clock.now_s += 30
    assert watch.unchanged_s("pod", 1) == 30
    clock.now_s += 5
    assert watch.unchanged_s("pod", 2) == 0
    assert watch.observe("pod", 2).rose


def test_time_in_which_nobody_could_look_does_not_count() -> None:
    clock = Clock()
    watch = liveness.Watch(clock, longest_gap_s=10)
    watch.observe("pod", 1)
    clock.now_s += 3600
    assert watch.unchanged_s("pod", 1) == 10, "an hour without the file server is one look"
    clock.now_s += 8
    assert watch.unchanged_s("pod", 1) == 18
    watch.start_over()
    assert watch.unchanged_s("pod", 1) == 0


NFS = Mount("/lab", "nfs4", "server:/lab", "rw")


@pytest.mark.parametrize(("fstype", "longest_s"), [("ext4", 3), ("nfs4", 7), ("fuse.glusterfs", 7), ("fuse.sshfs", 28)])
def test_for_how_long_a_heartbeat_may_be_the_same(elsewhere: liveness.PodInfo, fstype: str, longest_s: float) -> None:
    assert liveness.longest_beat_s(elsewhere, Mount("/lab", fstype, "server", "rw")) == longest_s


def test_on_a_local_disk_a_free_lock_is_enough(layout: Layout, elsewhere: liveness.PodInfo) -> None:
    local = Mount("/", "ext4", "/dev/sda", "rw")
    assert not liveness.pod_is_alive(layout, elsewhere, liveness.Watch(Clock()), 600, mount=local)


@pytest.fixture
def elsewhere(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> liveness.PodInfo:
    """A pod of another host that has left its file and a lock that is free."""
    layout.pods_dir.mkdir(parents=True)
    layout.pod_lock("pod").touch()
    return liveness.PodInfo(
        pod="pod", host="elsewhere", boot_id="x", pid_namespace=1, pid=7, start_ticks=7, user="u", started_at="",
        heartbeat=1, heartbeat_s=1.0, lock="flock",
    )  # fmt: skip


def test_a_free_lock_is_believed_by_the_patient_only_when_the_heartbeat_is_still(
    layout: Layout, elsewhere: liveness.PodInfo
) -> None:
    clock = Clock()
    watch = liveness.Watch(clock)
    assert not liveness.pod_is_alive(layout, elsewhere, watch, 600)
    watch = liveness.Watch(clock)
    assert liveness.pod_is_alive(layout, elsewhere, watch, 600, mount=NFS)
    clock.now_s += 5
    elsewhere.heartbeat += 1
    assert liveness.pod_is_alive(layout, elsewhere, watch, 600, mount=NFS), "it goes on rising"
    clock.now_s += 5
    assert liveness.pod_is_alive(layout, elsewhere, watch, 600, mount=NFS)
    clock.now_s += 5
    assert not liveness.pod_is_alive(layout, elsewhere, watch, 600, mount=NFS)


def test_without_locks_the_heartbeat_alone_decides(layout: Layout, elsewhere: liveness.PodInfo) -> None:
    clock = Clock()
    watch = liveness.Watch(clock)
    elsewhere.lock = "hardlink"
    assert liveness.pod_is_alive(layout, elsewhere, watch, 600)
    clock.now_s += 599
    assert liveness.pod_is_alive(layout, elsewhere, watch, 600)
    clock.now_s += 2
    assert not liveness.pod_is_alive(layout, elsewhere, watch, 600)
