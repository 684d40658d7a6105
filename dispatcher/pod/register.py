"""A pod's own files: the lock that says that it lives, and what it tells about itself."""

from __future__ import annotations

import contextlib
import getpass
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from dispatcher.errors import LockUnsupportedError, PodError
from dispatcher.run_state import files, journal, life
from dispatcher.run_state.mounts import Mount, mount_of
from dispatcher.workspace import Layout

# How often a heartbeat may be missed before its dispatcher counts as gone.
_STILL_HEARTBEATS = 3
# How long old file content may be shown by a network filesystem before a heartbeat is seen to rise (sshfs: 20 s).
_NETWORK_DELAY_S = 25.0
_NFS_DELAY_S = 4.0


class NameTakenError(PodError):
    """Another dispatcher bears this pod's name and is in the right."""


def heartbeat_delay_s(mount: Mount) -> float:
    """How late a heartbeat of another host may be seen on this mount."""
    if not mount.is_network:
        return 0.0
    return _NFS_DELAY_S if mount.fstype.startswith("nfs") else _NETWORK_DELAY_S


class Registration:
    """Holds `pods/<pod>.lock` and keeps `pods/<pod>.json` up to date."""

    def __init__(self, layout: Layout, pod: str, heartbeat_s: float) -> None:
        self._layout = layout
        self.fd: int | None = None
        old = life.read_pod(layout, pod)
        self.previous = old
        self.info = life.PodInfo(
            pod=pod,
            host=life.host_name(),
            boot_id=life.boot_id(),
            pid=os.getpid(),
            start_ticks=life.start_ticks(os.getpid()) or 0,
            user=user_name(),
            started_at=journal.now_text(time.time()),
            heartbeat=(old.heartbeat if old else 0) + 1,
            heartbeat_s=heartbeat_s,
            lock="flock",
        )
        self._next_s = 0.0
        # Whether the pod's file is this dispatcher's, and whether another one has taken it over since.
        self._begun = False
        self._lost = False
        self._network = mount_of(layout.root).is_network

    def take(self) -> str | None:
        """Take the pod's name; why locks cannot be used here, if they cannot.

        Raises PodError when a dispatcher of that name runs. Where locks cannot tell, `refuse_if_alive` must.
        """
        path = self._layout.pod_lock(self.info.pod)
        with files.shared_umask(self._layout.root):
            os.makedirs(path.parent, exist_ok=True)
            try:
                self.fd = life.take_patiently(path)
                if self.fd is None:
                    raise PodError(self._taken())
                # A lock that a second descriptor can have too is none.
                second = life.take(path)
            except OSError as error:
                if error.errno not in life.CANNOT_LOCK:
                    raise files.storage_error(error, "taking the name of the pod with", path) from error
                return f"flock fails with {files.error_name(error)} ({error.strerror}) on {mount_of(path.parent)}"
        if second is not None:
            os.close(second)
            return f"flock is granted to everybody on {mount_of(path.parent)}"
        return None

    def _taken(self) -> str:
        other = self.previous
        who = (
            f"on host {other.host}, pid {other.pid}, user {other.user}, since {other.started_at}"
            if other
            else "unknown"
        )
        return (
            f"a dispatcher named {self.info.pod!r} runs already ({who}). Give this one another --pod name, "
            f"or end that one (`dispatcher drain {self.info.pod}`)"
        )

    def refuse_if_alive(self, lost_after_s: float, *, locks_work: bool) -> None:
        """A name whose heartbeat still rises is taken, whatever the locks say (they may not reach the other host)."""
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
        watch = life.Watch()
        delay_s = heartbeat_delay_s(mount)
        end_s = time.monotonic() + min(lost_after_s, _STILL_HEARTBEATS * other.heartbeat_s + delay_s)
        while time.monotonic() < end_s:
            now = life.read_pod(self._layout, self.info.pod)
            if now is not None and watch.observe("pod", now.heartbeat).rose:
                raise PodError(self._taken())
            time.sleep(other.heartbeat_s / 4)

    def describe(self, **fields: Any) -> None:
        """What the pod's file says from the next heartbeat on."""
        self.info = msgspec.structs.replace(self.info, **fields)

    def beat(self, *, force: bool = False, **changes: Any) -> None:
        """Write the file when a heartbeat is due, or at once when `force`.

        Raises NameTakenError when another dispatcher of this name has written it: without locks, or after a file server
        took the lock away from this host, that is how it shows.
        """
        now = time.monotonic()
        if not force and now < self._next_s:
            return
        self._refuse_others()
        self._next_s = now + self.info.heartbeat_s
        self.info = msgspec.structs.replace(self.info, heartbeat=self.info.heartbeat + 1, **changes)
        with files.shared_umask(self._layout.root):
            life.write_pod(self._layout, self.info)
        self._begun = True

    def _refuse_others(self) -> None:
        found = life.read_pod(self._layout, self.info.pod) if self._begun else None
        if found is None or self._is_me(found):
            return
        self.previous, self._lost = found, True
        raise NameTakenError(f"{self._taken()}. This one ends; its jobs run on where they are still its own")

    def _is_me(self, info: life.PodInfo) -> bool:
        return (info.pid, info.boot_id, info.host) == (self.info.pid, self.info.boot_id, self.info.host)

    def keep_lock(self) -> None:
        """On a network filesystem: take the lock again when the file server has taken it away from this host."""
        if self.fd is None or not self._network:
            return
        try:
            os.pwrite(self.fd, b"\n", 0)
            os.fsync(self.fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.close(self.fd)
            self.fd = None
            self.take()

    def due_in_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def release(self) -> None:
        """Say that the pod has ended, and let go of its name."""
        if self._begun and not self._lost:
            self.beat(force=True, phase="ended", slots=[])
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._layout.pod_drain(self.info.pod))
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def refuse_shared_gpus(layout: Layout, me: life.PodInfo, gpus: tuple[int, ...]) -> None:
    """Raise PodError when another live pod of this host uses one of these GPUs."""
    for other in life.read_pods(layout):
        if other.pod == me.pod or not other.same_host() or other.phase == "ended" or other.process_is_gone():
            continue
        used = {int(slot.name.removeprefix("gpu")) for slot in other.slots if slot.name.startswith("gpu")}
        shared = sorted(used.intersection(gpus))
        if shared:
            numbers = ", ".join(map(str, shared))
            raise PodError(f"--gpus: {numbers} belong to pod {other.pod!r} on this host (pid {other.pid})")


def locks_refused(why: str, path: Path, wanted: str) -> LockUnsupportedError:
    return LockUnsupportedError(
        f"{path}: {why}, and lock: {wanted} does not allow another kind. Cure: {mount_of(path).cure}; "
        "or set `lock: auto` or `lock: strict` in dispatcher.yaml"
    )
