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
from dispatcher.run_state.mounts import mount_of
from dispatcher.workspace import Layout

_TRIES = 20


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

    def take(self) -> str | None:
        """Take the pod's name; why locks cannot be used here, if they cannot.

        Raises PodError when a dispatcher of that name runs.
        """
        path = self._layout.pod_lock(self.info.pod)
        with files.shared_umask(self._layout.root):
            os.makedirs(path.parent, exist_ok=True)
            try:
                self.fd = self._take(path)
            except OSError as error:
                return f"flock fails with {error.strerror} on {mount_of(path.parent)}"
        if self.fd is None:
            raise PodError(self._taken())
        # A lock that a second descriptor can have too is none.
        try:
            second = life.take(path)
        except OSError as error:
            return f"flock fails with {error.strerror} on {mount_of(path.parent)}"
        if second is not None:
            os.close(second)
            return f"flock is granted to everybody on {mount_of(path.parent)}"
        return None

    def _take(self, path: Path) -> int | None:
        # Somebody who asks whether we live holds the lock for a moment.
        for _ in range(_TRIES):
            fd = life.take(path)
            if fd is not None:
                return fd
            time.sleep(0.05)
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

    def refuse_if_alive_without_locks(self, lost_after_s: float) -> None:
        """Where locks cannot tell, the heartbeat must: a name whose heartbeat still rises is taken."""
        other = self.previous
        if other is None or other.phase == "ended" or other.process_is_gone():
            return
        if other.same_host():
            raise PodError(self._taken())
        watch = life.Watch()
        end_s = time.monotonic() + min(lost_after_s, 5 * other.heartbeat_s + 25)
        while time.monotonic() < end_s:
            now = life.read_pod(self._layout, self.info.pod)
            if now is not None and watch.observe("pod", now.heartbeat).rose:
                raise PodError(self._taken())
            time.sleep(other.heartbeat_s / 4)

    def beat(self, *, force: bool = False, **changes: Any) -> None:
        """Write the file when a heartbeat is due, or at once when `force`."""
        now = time.monotonic()
        if not force and now < self._next_s:
            return
        self._next_s = now + self.info.heartbeat_s
        self.info = msgspec.structs.replace(self.info, heartbeat=self.info.heartbeat + 1, **changes)
        with files.shared_umask(self._layout.root):
            life.write_pod(self._layout, self.info)

    def due_in_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def release(self) -> None:
        """Say that the pod has ended, and let go of its name."""
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
