"""Proving that locks exclude on this filesystem, before the first claim.

A starting dispatcher tries the life-sign locks of the other pods. One that it gets belongs to a dead pod, or the lock
is a lie: then that pod's heartbeat goes on rising. Everybody does this after having published a heartbeat of their own,
so of two that start together at least one sees the other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from dispatcher.base.mounts import Mount, mount_of
from dispatcher.errors import LockUnsupportedError
from dispatcher.run_state import liveness
from dispatcher.run_state.heartbeat import heartbeat_delay_s
from dispatcher.run_state.lock_choice import AUTO, HARDLINK, locks_refused
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

# How long a live dispatcher may take to go over to another kind of lock.
_FOLLOW_S = 90.0


class Proof(msgspec.Struct, frozen=True):
    """`lying` names the pods whose locks could be taken although they live; none when locks exclude."""

    lying: tuple[str, ...]
    mount: Mount

    @property
    def message(self) -> str:
        names = ", ".join(self.lying)
        return (
            f"locks do not exclude here: the liveness lock of pod {names} could be taken although its heartbeat "
            f"goes on rising, on {self.mount}"
        )


def prove_locks(layout: Layout, me: str, beat: Callable[[], None], say: Callable[[str], None]) -> Proof:
    """Watch the pods whose locks are free until each has shown a heartbeat or had time for several."""
    mount = mount_of(layout.run_state)
    watch = liveness.Watch()
    suspects = {}
    for info in liveness.read_pods(layout):
        if info.pod == me or info.phase == "ended" or info.process_is_gone():
            continue
        if liveness.is_held(layout.pod_lock(info.pod)) is False:
            suspects[info.pod] = info
    lying = [pod for pod, info in suspects.items() if info.same_host()]
    delay_s = heartbeat_delay_s(mount)
    waiting = {pod: info for pod, info in suspects.items() if pod not in lying}
    if waiting and not lying:
        say(f"looking whether pod {', '.join(waiting)} lives (its lock is free, its end was not announced) ...")
    begun = time.monotonic()
    while waiting and not lying:
        for pod, first in list(waiting.items()):
            now = liveness.read_pod(layout, pod)
            if now is None or now.phase == "ended":
                del waiting[pod]
            elif watch.observe(pod, (now.pid, now.heartbeat)).rose:
                # A dispatcher asks for a lock that a restarted file server took away before each of its heartbeats.
                if liveness.is_held(layout.pod_lock(pod)):
                    del waiting[pod]
                else:
                    lying.append(pod)
            elif time.monotonic() - begun > 3 * first.heartbeat_s + delay_s:
                del waiting[pod]
        beat()
        time.sleep(0.1)
    return Proof(tuple(lying), mount)


def refuse_sshfs(mount: Mount, why: str) -> None:
    """Raise LockUnsupportedError on sshfs: it has no lock that could help."""
    if mount.fstype == "fuse.sshfs":
        raise LockUnsupportedError(
            f"{why}. The hard-link lock does not help on sshfs either: it shows old file content for up to 20 s. "
            f"Nothing was changed. Filesystem: {mount}. Cure: {mount.cure}"
        )


def refuse_other_hosts_on_sshfs(layout: Layout, me: str, lost_after_s: float) -> None:
    """With the hard-link lock from the start: raise LockUnsupportedError when pods of other hosts live on an sshfs."""
    mount = mount_of(layout.run_state)
    if mount.fstype != "fuse.sshfs":
        return
    watch = liveness.Watch()
    others = [info for info in liveness.read_pods(layout) if info.pod != me and not info.same_host()]
    alive = [info for info in others if liveness.pod_is_alive(layout, info, watch, lost_after_s)]
    if alive:
        names = ", ".join(f"{info.pod} (host {info.host})" for info in alive)
        refuse_sshfs(mount, f"the workspace is used from other hosts, too: pod {names}")


def switch_to_hardlink(store: Store, layout: Layout, me: str, beat: Callable[[], None], why: str) -> None:
    """Change the workspace over to the hard-link lock, and wait until every live dispatcher has followed.

    Raises LockUnsupportedError when one does not: then two kinds of lock would be in use.
    """
    refuse_sshfs(mount_of(layout.run_state), why)
    store.use_hardlink_lock()
    wait_until_all_follow(layout, me, beat, why)


def wait_until_all_follow(layout: Layout, me: str, beat: Callable[[], None], why: str) -> None:
    """Wait until every live dispatcher uses the hard-link lock; LockUnsupportedError when one does not."""
    mount = mount_of(layout.run_state)
    watch = liveness.Watch()
    delay_s = heartbeat_delay_s(mount)
    begun = time.monotonic()
    while True:
        others = [
            info
            for info in liveness.read_pods(layout)
            if info.pod != me and info.phase != "ended" and not info.process_is_gone() and info.lock != "hardlink"
        ]
        waited_s = time.monotonic() - begun
        # One that shows no heartbeat for so long has died without saying so.
        alive = [
            info
            for info in others
            if watch.observe(info.pod, info.heartbeat).rose or waited_s < 3 * info.heartbeat_s + delay_s
        ]
        if not alive:
            return
        if waited_s > _FOLLOW_S:
            names = ", ".join(f"{info.pod} (host {info.host})" for info in alive)
            raise LockUnsupportedError(
                f"{why}. This workspace has gone over to the hard-link lock, but these dispatchers have not followed: "
                f"{names}. Nothing was changed. End them and try again"
            )
        beat()
        time.sleep(0.2)


def prove_for_command(store: Store, layout: Layout, wanted: str) -> None:
    """Before a command changes anything: that its lock keeps the dispatchers of other hosts away.

    Goes over to the hard-link lock where it does not, as a dispatcher would; raises LockUnsupportedError when
    dispatcher.yaml (`wanted`) forbids that. Without dispatchers on a network filesystem there is nothing to prove.
    """
    if not mount_of(layout.run_state).is_network or not os.path.isdir(layout.pods_dir):
        return
    if store.lock_kind == HARDLINK:
        wait_until_all_follow(layout, "", _nothing, "the hard-link lock is in use")
        return
    proof = prove_locks(layout, "", _nothing, _nothing)
    if proof.lying and wanted != AUTO:
        raise locks_refused(proof.message, layout.run_state, wanted)
    if proof.lying:
        switch_to_hardlink(store, layout, "", _nothing, proof.message)


def _nothing(*_: object) -> None:
    pass
