"""Proving that locks exclude on this filesystem, before the first claim.

A starting dispatcher tries the life-sign locks of the other pods. One that it gets belongs to a dead pod, or the lock
is a lie: then that pod's heartbeat goes on rising. Everybody does this after having published a heartbeat of their own,
so of two that start together at least one sees the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from dispatcher.errors import LockUnsupportedError
from dispatcher.run_state import life
from dispatcher.run_state.mounts import Mount, mount_of
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

# How long old file content may be shown by a network filesystem before a heartbeat is seen to rise (sshfs: 20 s).
_NETWORK_DELAY_S = 25.0
_NFS_DELAY_S = 4.0
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
            f"locks do not exclude here: the life sign of pod {names} could be taken although its heartbeat goes on "
            f"rising. Filesystem: {self.mount}. Cure: {self.mount.cure}"
        )


def prove_locks(layout: Layout, me: str, beat: Callable[[], None], say: Callable[[str], None]) -> Proof:
    """Watch the pods whose locks are free until each has shown a heartbeat or had time for several."""
    mount = mount_of(layout.run_state)
    watch = life.Watch()
    suspects = {}
    for info in life.read_pods(layout):
        if info.pod == me or info.phase == "ended" or info.process_is_gone():
            continue
        if life.is_held(layout.pod_lock(info.pod)) is False:
            suspects[info.pod] = info
    lying = [pod for pod, info in suspects.items() if info.same_host()]
    delay_s = 0.0
    if mount.is_network:
        delay_s = _NFS_DELAY_S if mount.fstype.startswith("nfs") else _NETWORK_DELAY_S
    waiting = {pod: info for pod, info in suspects.items() if pod not in lying}
    if waiting and not lying:
        say(f"looking whether pod {', '.join(waiting)} lives (its lock is free, its end was not announced) ...")
    begun = time.monotonic()
    while waiting and not lying:
        for pod, first in list(waiting.items()):
            now = life.read_pod(layout, pod)
            if now is None or now.phase == "ended":
                del waiting[pod]
            elif watch.observe(pod, (now.pid, now.heartbeat)).rose:
                lying.append(pod)
            elif time.monotonic() - begun > 3 * first.heartbeat_s + delay_s:
                del waiting[pod]
        beat()
        time.sleep(0.1)
    return Proof(tuple(lying), mount)


def go_strict(store: Store, layout: Layout, me: str, beat: Callable[[], None], why: str) -> None:
    """Change the workspace over to the hard-link lock, and wait until every live dispatcher has followed.

    Raises LockUnsupportedError when one does not: then two kinds of lock would be in use.
    """
    mount = mount_of(layout.run_state)
    if mount.fstype == "fuse.sshfs":
        raise LockUnsupportedError(
            f"{why}. The hard-link lock does not help on sshfs either: it shows old file content for up to 20 s. "
            f"Nothing was claimed. Cure: {mount.cure}"
        )
    store.use_strict_lock()
    watch = life.Watch()
    begun = time.monotonic()
    while True:
        others = [
            info
            for info in life.read_pods(layout)
            if info.pod != me and info.phase != "ended" and not info.process_is_gone() and info.lock != "strict"
        ]
        waited_s = time.monotonic() - begun
        # One that shows no heartbeat for so long has died without saying so.
        alive = [
            info
            for info in others
            if watch.observe(info.pod, info.heartbeat).rose or waited_s < 3 * info.heartbeat_s + _NETWORK_DELAY_S
        ]
        if not alive:
            return
        if waited_s > _FOLLOW_S:
            names = ", ".join(f"{info.pod} (host {info.host})" for info in alive)
            raise LockUnsupportedError(
                f"{why}. Went over to the hard-link lock, but these dispatchers have not followed: {names}. Nothing "
                "was claimed. End them and start again"
            )
        beat()
        time.sleep(0.2)
