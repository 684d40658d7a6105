"""Liveness locks: locks that a process holds for as long as it lives, and heartbeats where locks cannot tell.

The `alive` file of an attempt is locked by flock before its wrapper starts, and every process of its tree inherits the
descriptor: the lock is free only when no process of the tree is left, which any host can test. A dispatcher holds
`pods/<pod>.lock` in the same way. A test takes a shared lock for a moment, so tests do not disturb each other.

Heartbeats are counters. An observer times them by its own monotonic clock: clocks of hosts are never compared.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.base import files, host
from dispatcher.base.host import boot_id, host_name
from dispatcher.base.kernel_locks import CANNOT_LOCK, PASSING_ERRORS, is_flocked, try_flock
from dispatcher.base.mounts import SHOWN_LATE_S, Mount, mount_of
from dispatcher.base.times import parse_time
from dispatcher.config import LockKind
from dispatcher.errors import StorageError
from dispatcher.workspace import Layout

# A dispatcher that misses so many heartbeats is dead.
_MISSED_HEARTBEATS: Final = 3
_TRIES: Final = 20
_TRY_AGAIN_S: Final = 0.05
_ERROR_TRIES: Final = 3
# Less is no proof that two clocks differ.
CLOCKS_DIFFER_S: Final = SHOWN_LATE_S


def take(path: Path) -> int | None:
    """Take the liveness lock at `path`; the descriptor to keep, or None when another process holds it.

    Raises OSError with one of CANNOT_LOCK where flock does not work.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if try_flock(fd):
            return fd
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def take_patiently(path: Path) -> int | None:
    """As `take`, but tries for a second, because a test whether the lock is held takes it for a moment.

    An error that a file server may give once is tried again, too.
    """
    errors = 0
    for _ in range(_TRIES):
        try:
            fd = take(path)
        except OSError as error:
            errors += 1
            if error.errno not in PASSING_ERRORS or errors == _ERROR_TRIES:
                raise
            fd = None
        if fd is not None:
            return fd
        time.sleep(_TRY_AGAIN_S)
    return None


def is_held(path: Path) -> bool | None:
    """Whether a process on any host holds the liveness lock; None where flock does not work."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise files.storage_error(error, "testing the liveness lock", path) from error
    try:
        return is_flocked(fd)
    except OSError as error:
        if error.errno in CANNOT_LOCK:
            return None
        raise files.storage_error(error, "testing the liveness lock", path) from error
    finally:
        os.close(fd)


class SlotInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One slot of an outlet, such as a GPU, as `dispatcher pods` shows it; `jobs` are `job_id/attempt`.

    `room` is how many slots this stands for: a host to which attempts are submitted has one line, however many it has.
    """

    name: str
    outlet: str = ""
    jobs: list[str] = []
    room: int = 1
    note: str = ""
    gpu_name: str = ""
    gpu_uuid: str = ""
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    # The mean utilisation of the GPU in the last minute; None where it is unknown.
    busy_percent: int | None = None


class PodInfo(msgspec.Struct, kw_only=True):
    """`pods/<pod>.json`: who a dispatcher is, what it takes and what it does; written by it alone.

    `outlets` (by name, the preferred first, what the outlet publishes: see outlets/kinds.py), `methods` (empty: all),
    `where` (as typed), `unusable_methods` (name: why) and `stopped` (why it no longer claims) say which jobs it takes,
    `blocked` which it could not claim and why, so that others can tell why a job waits. `code_problems`: see Offer.
    """

    pod: str
    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int
    user: str
    started_at: str
    heartbeat: int
    heartbeat_s: float
    lock: str
    # When the heartbeat was written, by the pod's own clock.
    heartbeat_at: str = ""
    phase: str = "running"
    matrix: str = ""
    # How far it has seen the journal go: generation, length, checksum.
    journal: tuple[int, int, int] | None = None
    outlets: dict[str, dict[str, Any]] = {}
    methods: list[str] = []
    where: list[str] = []
    unusable_methods: dict[str, str] = {}
    stopped: str = ""
    blocked: dict[str, str] = {}
    code_problems: dict[str, str] = {}
    # One of `submit` or `poll`, whose file is removed when nothing needs it any more.
    is_short_lived: bool = False
    slots: list[SlotInfo] = []
    notes: list[str] = []
    # Those of the notes that are about jobs which run.
    warnings: list[str] = []
    # Why jobs that it has submitted have not begun.
    pending: dict[str, str] = {}

    def same_host(self) -> bool:
        """Whether its pids mean the same processes here: one machine, one boot, one PID namespace."""
        return self.same_boot() and (self.host, self.pid_namespace) == (host_name(), host.pid_namespace())

    def same_boot(self) -> bool:
        """Whether it runs on this very machine, maybe in another container."""
        return self.boot_id == boot_id()

    def process_is_gone(self) -> bool:
        """Whether it is certain that this dispatcher no longer runs, because it ran on this very boot of this host."""
        return self.same_host() and host.is_gone(self.pid, self.start_ticks)


_decode_pod = msgspec.json.Decoder(PodInfo)


def read_pod(layout: Layout, pod: str) -> PodInfo | None:
    data = files.read_fresh(layout.pod_file(pod))
    if not data:
        return None
    try:
        return _decode_pod.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def pod_names(layout: Layout) -> list[str]:
    """The names of all pods that have a file here, dead ones included."""
    try:
        files.refresh_names(layout.pods_dir)
        names = os.listdir(layout.pods_dir)
    except FileNotFoundError:
        return []
    return sorted(name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith("."))


def read_pods(layout: Layout) -> list[PodInfo]:
    return [info for info in (read_pod(layout, name) for name in pod_names(layout)) if info is not None]


def write_pod(layout: Layout, info: PodInfo) -> None:
    try:
        files.replace_file(layout.pod_file(info.pod), msgspec.json.encode(info) + b"\n", durable=False)
    except OSError as error:
        raise files.storage_error(error, "writing the heartbeat", layout.pod_file(info.pod)) from error


def clock_ahead_s(info: PodInfo, beat_at_s: float | None) -> float:
    """By how much the clock of a pod's host is ahead of the file server's; 0 where a delay of files may explain it.

    `beat_at_s` is when its last heartbeat was written, by the clock of the file server.
    """
    told_s = parse_time(info.heartbeat_at)
    if told_s is None or beat_at_s is None or abs(told_s - beat_at_s) <= CLOCKS_DIFFER_S:
        return 0.0
    return told_s - beat_at_s


class Observed(msgspec.Struct):
    """What one observer has seen of a counter: its value, for how long, when last, and whether it ever changed."""

    value: Any
    last_s: float
    unchanged_s: float = 0.0
    rose: bool = False


class Watch:
    """Times how long counters (heartbeats) stay the same, by the monotonic clock of this process.

    The time between two observations counts for at most `longest_gap_s`: an observer that could not look, because the
    file server was down, has not seen that nothing happened meanwhile.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, longest_gap_s: float = math.inf) -> None:
        self._clock = clock
        self._longest_gap_s = longest_gap_s
        self._seen: dict[str, Observed] = {}

    def observe(self, name: str, value: Any) -> Observed:
        """Note the current value of a counter."""
        now = self._clock()
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = Observed(value, now)
        elif seen.value != value:
            seen.value, seen.unchanged_s, seen.rose = value, 0.0, True
        else:
            seen.unchanged_s += min(now - seen.last_s, self._longest_gap_s)
        seen.last_s = now
        return seen

    def unchanged_s(self, name: str, value: Any) -> float:
        """Note the current value; for how many seconds it has been the same."""
        return self.observe(name, value).unchanged_s

    def start_over(self) -> None:
        """Forget how long values have been the same, when the observer itself could not read them."""
        for seen in self._seen.values():
            seen.unchanged_s = 0.0


def longest_beat_s(info: PodInfo, mount: Mount) -> float:
    """For how long this host may see the same heartbeat of a live dispatcher on this mount: the only answer to that."""
    return _MISSED_HEARTBEATS * info.heartbeat_s + mount.delay_s


def heartbeat_rises(layout: Layout, info: PodInfo, longest_s: float) -> bool:
    """Wait, at most `longest_s`, for a heartbeat of that pod; whether one was seen."""
    watch = Watch()
    end_s = time.monotonic() + min(longest_s, longest_beat_s(info, mount_of(layout.pods_dir)))
    while time.monotonic() < end_s:
        now = read_pod(layout, info.pod)
        if now is not None and watch.observe("pod", (now.pid, now.heartbeat)).rose:
            return True
        time.sleep(info.heartbeat_s / 4)
    return False


def pod_is_alive(
    layout: Layout, info: PodInfo, watch: Watch, lost_after_s: float, *, mount: Mount | None = None
) -> bool:
    """Whether that dispatcher is alive, as far as this host can know; in doubt it is.

    With `mount`, that of the run state, for callers that act on the answer: on a network filesystem a free lock counts
    only when the heartbeat has stopped, too, because a file server takes the locks of a host away that it has not heard
    from for a while, and the host may come back.
    """
    if info.phase == "ended" or info.process_is_gone():
        return False
    try:
        held = is_held(layout.pod_lock(info.pod))
    except StorageError:
        held = None
    if held is False and info.lock != LockKind.HARDLINK:
        if mount is None or not mount.is_network:
            return False
        lost_after_s = min(lost_after_s, longest_beat_s(info, mount))
    # Else the lock is held, maybe only by a file server that still waits for a dead host, or does not work.
    return watch.unchanged_s(f"pod:{info.pod}", (info.pid, info.heartbeat)) < lost_after_s
