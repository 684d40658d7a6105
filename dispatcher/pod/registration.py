"""A pod's own files: the lock that it holds while it runs, and its description with a heartbeat."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.base import files, host
from dispatcher.base.kernel_locks import CANNOT_LOCK, flock_fault
from dispatcher.base.mounts import mount_of
from dispatcher.base.times import Clock
from dispatcher.base.users import user_name
from dispatcher.config import LockKind
from dispatcher.errors import PodError, StorageError
from dispatcher.outlets.kinds import kind_of
from dispatcher.run_state import journal, liveness
from dispatcher.run_state.liveness import SlotInfo, heartbeat_rises
from dispatcher.workspace import Layout

# How often the lock of the name is tried that fails although others work.
_TRIES: Final = 3


class NameTakenError(PodError):
    """The pod's name is held by another live dispatcher."""


class Registration:
    """Holds `pods/<pod>.lock` and keeps `pods/<pod>.json` up to date."""

    def __init__(self, layout: Layout, pod: str, heartbeat_s: float) -> None:
        self._layout = layout
        self.fd: int | None = None
        old = liveness.read_pod(layout, pod)
        self.previous = old
        self.info = liveness.PodInfo(
            pod=pod,
            host=host.host_name(),
            boot_id=host.boot_id(),
            pid_namespace=host.pid_namespace(),
            pid=os.getpid(),
            start_ticks=host.start_ticks(os.getpid()) or 0,
            user=user_name(),
            started_at=journal.now_text(time.time()),
            heartbeat=(old.heartbeat if old else 0) + 1,
            heartbeat_s=heartbeat_s,
            lock=LockKind.FLOCK,
        )
        self._next_s = 0.0
        # Whether this dispatcher has written the pod's file, and whether another one has taken it over since.
        self._begun = False
        self._lost = False
        self._network = mount_of(layout.root).is_network
        self._locks_work = False

    def take(self) -> str | None:
        """Take the lock of the pod's name. Returns why locks cannot be used here, None when they can.

        Raises PodError when a dispatcher of that name is running. Without usable locks, `refuse_if_alive` decides.
        """
        path = self._layout.pod_lock(self.info.pod)
        with files.shared_umask(self._layout.root), files.storing("taking the name of the pod with", path):
            os.makedirs(path.parent, exist_ok=True)
            for _ in range(_TRIES):
                fault = self._try_to_take(path)
                if not fault:
                    self._locks_work = True
                    return None
                # A workspace changes its kind of lock for good, so one error of a file server is not enough.
                proof = flock_fault(files.temporary_name(path))
                if proof:
                    return f"{proof} on {mount_of(path.parent)}"
        raise StorageError(f"{path}: {fault}, although flock works on other files there: try again")

    def _try_to_take(self, path: Path) -> str:
        """Take the lock; why it cannot be used, empty when it can. Raises PodError when another process has it."""
        try:
            self.fd = liveness.take_patiently(path)
            if self.fd is None:
                raise PodError(self._taken())
            # If a second descriptor gets the lock as well, it does not exclude anything.
            second = liveness.take(path)
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise
            second, fault = None, f"flock fails with {files.error_name(error)} ({error.strerror})"
        else:
            if second is None:
                return ""
            fault = "flock does not exclude"
        for fd in filter(None, (self.fd, second)):
            os.close(fd)
        self.fd = None
        return fault

    def _taken(self) -> str:
        other = self.previous
        who = (
            f"on host {other.host}, pid {other.pid}, user {other.user}, since {Clock(time.time())(other.started_at)}"
            if other
            else "unknown"
        )
        return (
            f"a dispatcher named {self.info.pod!r} is already running ({who}). Use another --pod name, or end that "
            f"dispatcher (`dispatcher drain {self.info.pod}`)"
        )

    def refuse_if_alive(self, lost_after_s: float, *, locks_work: bool) -> None:
        """Raise PodError when the pod's heartbeat still rises, even if its lock is free (locks may not span hosts)."""
        other = self.previous
        if other is None or other.phase == "ended" or other.process_is_gone():
            return
        if other.same_host():
            if locks_work:
                return
            raise PodError(self._taken())
        mount = mount_of(self._layout.pods_dir)
        if locks_work and not mount.is_network:
            return
        if heartbeat_rises(self._layout, other, lost_after_s):
            raise PodError(self._taken())

    def describe(self, **fields: Any) -> None:
        """Set fields of the pod's file, written with the next heartbeat."""
        self.info = msgspec.structs.replace(self.info, **fields)

    def beat(self, *, force: bool = False, **changes: Any) -> None:
        """Write the file when a heartbeat is due, or at once with `force`.

        Raises NameTakenError when another dispatcher of this name has written it, which can happen without locks or
        after the file server has revoked this host's lock.
        """
        now = time.monotonic()
        if not force and now < self._next_s:
            return
        self._refuse_others()
        self._next_s = now + self.info.heartbeat_s
        at = journal.now_text(time.time())
        self.info = msgspec.structs.replace(self.info, heartbeat=self.info.heartbeat + 1, heartbeat_at=at, **changes)
        with files.shared_umask(self._layout.root):
            liveness.write_pod(self._layout, self.info)
        self._begun = True

    def _refuse_others(self) -> None:
        found = liveness.read_pod(self._layout, self.info.pod) if self._begun else None
        if found is None or self._is_me(found):
            return
        self.previous, self._lost = found, True
        raise NameTakenError(f"{self._taken()}. This one exits; its jobs keep running unless they were taken over")

    def _is_me(self, info: liveness.PodInfo) -> bool:
        return info.same_host() and (info.pid, info.start_ticks) == (self.info.pid, self.info.start_ticks)

    def keep_lock(self) -> None:
        """On a network filesystem, take the lock again if the file server has revoked it.

        If that fails (the server is in its grace period, another process is testing the lock), the next heartbeat tries
        again. Another dispatcher of the same name is detected by the pod's file, not by the lock.
        """
        if not (self._network and self._locks_work):
            return
        if self.fd is not None and not _still_held(self.fd):
            with contextlib.suppress(OSError):
                os.close(self.fd)
            self.fd = None
        if self.fd is None:
            with contextlib.suppress(OSError), files.shared_umask(self._layout.root):
                self.fd = liveness.take(self._layout.pod_lock(self.info.pod))

    def due_in_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def release(self) -> None:
        """Record that the pod has ended, and release its name."""
        if self._begun and not self._lost:
            self.beat(force=True, phase="ended", slots=[])
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._layout.pod_drain(self.info.pod))
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _still_held(fd: int) -> bool:
    """Whether the lock is still held: the file server refuses writes through a descriptor whose lock it has revoked."""
    try:
        os.pwrite(fd, b"\n", 0)
        os.fsync(fd)
    except OSError:
        return False
    return True


def refuse_shared_slots(layout: Layout, me: liveness.PodInfo, slots: Sequence[SlotInfo], lost_after_s: float) -> None:
    """Raise PodError when another live pod of this machine uses the hardware of these slots, such as a GPU."""
    for other in liveness.read_pods(layout):
        if other.pod == me.pod or not other.same_boot() or other.phase == "ended" or other.process_is_gone():
            continue
        shared = _shared(slots, other.slots, same_host_name=other.host == me.host)
        if shared and _runs_here(layout, other, lost_after_s):
            where = "on this host" if other.same_host() else f"in another container of this machine ({other.host})"
            raise PodError(f"{shared} belong to pod {other.pod!r} {where}, pid {other.pid}")


def _shared(mine: Sequence[SlotInfo], theirs: Sequence[SlotInfo], *, same_host_name: bool) -> str:
    """The hardware that slots of two pods of one machine have in common, as the outlets name it; empty for none."""
    found = []
    for name in dict.fromkeys(slot.outlet for slot in mine):
        of_me, of_other = ([slot for slot in slots if slot.outlet == name] for slots in (mine, theirs))
        found.append(kind_of(name).shared_hardware(of_me, of_other, same_host_name))
    return "; ".join(filter(None, found))


def _runs_here(layout: Layout, other: liveness.PodInfo, lost_after_s: float) -> bool:
    """Whether a pod of this machine is alive; in another PID namespace, judged by its lock or its heartbeat."""
    if other.same_host() or liveness.is_held(layout.pod_lock(other.pod)):
        return True
    return heartbeat_rises(layout, other, lost_after_s)
