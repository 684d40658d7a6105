"""Before a pod's first transaction: its name is taken, and a lock is found that excludes other hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dispatcher.base.mounts import mount_of
from dispatcher.config import Config, LockKind
from dispatcher.doctor.prove_locks import (
    prove_locks,
    refuse_other_hosts_on_sshfs,
    switch_to_hardlink,
    wait_until_all_follow,
)
from dispatcher.pod.registration import Registration, refuse_shared_slots
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.lock_choice import locks_refused
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def register_with_trusted_locks(
    store: Store, config: Config, registration: Registration, slots: Sequence[SlotInfo], log: Callable[[str], None]
) -> None:
    """Take the pod's name and prove that locks exclude here; go over to the hard-link lock where they do not.

    Raises PodError when the name or one of the slots is another pod's, LockError when no lock can be trusted.
    """
    layout = config.layout
    store.prepare()
    useless = registration.take()
    uses_kernel_locks = store.lock_kind != LockKind.HARDLINK
    registration.refuse_if_alive(config.lost_after_s, locks_work=useless is None and uses_kernel_locks)
    refuse_shared_slots(layout, registration.info, slots, config.lost_after_s)

    def beat() -> None:
        registration.beat(lock=store.lock_kind)

    registration.beat(force=True, slots=slots, lock=store.lock_kind)
    if not uses_kernel_locks:
        if useless is not None and config.lock == "auto":
            log(_instead(useless, layout))
        refuse_other_hosts_on_sshfs(layout, registration.info.pod, config.lost_after_s)
        # Another dispatcher may have switched to it just now, and others may not have followed yet.
        wait_until_all_follow(layout, registration.info.pod, beat, "the hard-link lock is in use")
        return
    if useless is None:
        proof = prove_locks(layout, registration.info.pod, beat, log)
        useless = proof.message if proof.unprotected else None
    elif store.lock_kind == LockKind.LOCKF:
        log(f"warning: {useless}, so nothing proves that lockf excludes here: run `dispatcher doctor` on two hosts")
        return
    if useless is None:
        return
    if config.lock != "auto":
        raise locks_refused(useless, layout.run_state, config.lock)
    log(_instead(useless, layout))
    switch_to_hardlink(store, layout, registration.info.pod, beat, useless)


def _instead(useless: str, layout: Layout) -> str:
    cure = mount_of(layout.run_state).cure
    return f"warning: {useless}. Using the hard-link lock (lock: hardlink) instead, which is slower. Cure: {cure}"
