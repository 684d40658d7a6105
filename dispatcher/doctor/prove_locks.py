"""Proves that locks exclude on this filesystem, before the first claim.

A starting dispatcher tries to take the liveness locks of the other pods. If it gets one, that pod is dead or locks do
not exclude here; in the second case the heartbeat of the pod continues to rise. Every dispatcher publishes a heartbeat
of its own before it does this, so of two that start together at least one sees the other.

A workspace changes its kind of lock for good, so only a heartbeat that rises here, twice, is proof. In a copy of a
workspace (`cp -a`), the pods of the original have files with pids that live, and their locks are free.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dispatcher.base.mounts import Mount, mount_of
from dispatcher.config import LockKind
from dispatcher.errors import LockUnsupportedError
from dispatcher.run_state import liveness
from dispatcher.run_state.lock_choice import AUTO, locks_refused
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

# How long a live dispatcher may take to change to another kind of lock.
_FOLLOW_S: Final = 90.0
_LOOK_S: Final = 0.1
_LOOK_AT_ALL_S: Final = 0.2
# How often a heartbeat must have risen while the lock was free.
_PROOFS: Final = 2


class Proof(msgspec.Struct, frozen=True):
    """`unprotected` names live pods whose liveness locks could be taken; empty when locks exclude."""

    unprotected: tuple[str, ...]
    mount: Mount

    @property
    def message(self) -> str:
        names = ", ".join(self.unprotected)
        return (
            f"locks do not exclude here: the liveness lock of pod {names} could be taken although its heartbeat "
            f"keeps rising, on {self.mount}"
        )


def prove_locks(layout: Layout, own_pod: str, beat: Callable[[], None], log: Callable[[str], None]) -> Proof:
    """Watch the pods whose locks are free until each has shown a heartbeat or has had time for several."""
    mount = mount_of(layout.run_state)
    watching = {}
    for info in liveness.read_pods(layout):
        if info.pod == own_pod or info.phase == "ended" or info.process_is_gone():
            continue
        if liveness.is_held(layout.pod_lock(info.pod)) is False:
            watching[info.pod] = info
    unprotected: list[str] = []
    if watching:
        log(f"checking whether pod {', '.join(watching)} is alive (its lock is free, but it has not ended cleanly) ...")
    watch = liveness.Watch()
    risen = dict.fromkeys(watching, 0)
    while watching and not unprotected:
        for pod, first in list(watching.items()):
            now = liveness.read_pod(layout, pod)
            if now is None or now.phase == "ended":
                del watching[pod]
                continue
            still_s = watch.unchanged_s(pod, (now.pid, now.heartbeat))
            if (now.pid, now.heartbeat) != (first.pid, first.heartbeat):
                watching[pod] = now
                risen[pod] += 1
                # Before each heartbeat a dispatcher takes its lock again that a restarted file server has forgotten.
                if liveness.is_held(layout.pod_lock(pod)) is not False:
                    del watching[pod]
                elif risen[pod] >= _PROOFS:
                    unprotected.append(pod)
            elif still_s > liveness.longest_beat_s(first, mount):
                del watching[pod]
        beat()
        time.sleep(_LOOK_S)
    return Proof(tuple(unprotected), mount)


def _refuse_sshfs(mount: Mount, why: str) -> None:
    """Raise LockUnsupportedError on sshfs, where no kind of lock helps."""
    if mount.fstype == "fuse.sshfs":
        raise LockUnsupportedError(
            f"{why}. The hard-link lock does not help on sshfs, which shows old file content for up to 20 s. "
            f"Nothing was changed. Filesystem: {mount}. Cure: {mount.cure}"
        )


def refuse_other_hosts_on_sshfs(layout: Layout, own_pod: str, lost_after_s: float) -> None:
    """Raise LockUnsupportedError when pods on other hosts use this sshfs; for `lock: hardlink`."""
    mount = mount_of(layout.run_state)
    if mount.fstype != "fuse.sshfs":
        return
    watch = liveness.Watch()
    others = [info for info in liveness.read_pods(layout) if info.pod != own_pod and not info.same_host()]
    alive = [info for info in others if liveness.pod_is_alive(layout, info, watch, lost_after_s)]
    if alive:
        names = ", ".join(f"{info.pod} (host {info.host})" for info in alive)
        _refuse_sshfs(mount, f"the workspace is used from other hosts, too: pod {names}")


def switch_to_hardlink(store: Store, layout: Layout, own_pod: str, beat: Callable[[], None], why: str) -> None:
    """Change the workspace to the hard-link lock, and wait until every live dispatcher has followed.

    Raises LockUnsupportedError when one does not: then two kinds of lock would be in use.
    """
    _refuse_sshfs(mount_of(layout.run_state), why)
    store.use_hardlink_lock()
    wait_until_all_follow(layout, own_pod, beat, why)


def wait_until_all_follow(layout: Layout, own_pod: str, beat: Callable[[], None], why: str) -> None:
    """Wait until every live dispatcher uses the hard-link lock; LockUnsupportedError when one does not."""
    mount = mount_of(layout.run_state)
    watch = liveness.Watch()
    start_s = time.monotonic()
    while True:
        others = [
            info
            for info in liveness.read_pods(layout)
            if info.pod != own_pod
            and info.phase != "ended"
            and not info.process_is_gone()
            and info.lock != LockKind.HARDLINK
        ]
        waited_s = time.monotonic() - start_s
        # A pod that shows no heartbeat for longer was killed.
        alive = [
            info
            for info in others
            if watch.observe(info.pod, info.heartbeat).rose or waited_s < liveness.longest_beat_s(info, mount)
        ]
        if not alive:
            return
        if waited_s > _FOLLOW_S:
            names = ", ".join(f"{info.pod} (host {info.host})" for info in alive)
            raise LockUnsupportedError(
                f"{why}. This workspace now uses the hard-link lock, but these dispatchers have not followed: "
                f"{names}. Nothing was changed. End them and try again"
            )
        beat()
        time.sleep(_LOOK_AT_ALL_S)


def prove_for_command(store: Store, layout: Layout, wanted: str) -> None:
    """As at the start of a pod, for a command that changes the run state.

    Where locks do not exclude, the workspace is changed to the hard-link lock; raises LockUnsupportedError when
    dispatcher.yaml (`wanted`) forbids that. There is nothing to prove without dispatchers on a network filesystem.
    """
    if not mount_of(layout.run_state).is_network or not os.path.isdir(layout.pods_dir):
        return
    if store.lock_kind == LockKind.HARDLINK:
        wait_until_all_follow(layout, "", _nothing, "the hard-link lock is in use")
        return
    proof = prove_locks(layout, "", _nothing, _nothing)
    if proof.unprotected and wanted != AUTO:
        raise locks_refused(proof.message, layout.run_state, wanted)
    if proof.unprotected:
        switch_to_hardlink(store, layout, "", _nothing, proof.message)


def _nothing(*_: object) -> None:
    pass
