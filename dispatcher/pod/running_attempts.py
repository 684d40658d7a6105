"""The attempts that this pod has in flight: started, watched, stopped, collected."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.config import Config
from dispatcher.errors import DispatcherError, OutletError, StorageError
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import CANNOT_START, TIME_LIMIT, Ended, Slot
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.outlet import LocalOutlet, make_handle
from dispatcher.outlets.local.processes import boot_time_s
from dispatcher.pod import outcome
from dispatcher.pod.launch import prepare
from dispatcher.pod.limits import MARGIN_S, Limits, read_limits
from dispatcher.run_state import liveness
from dispatcher.run_state.states import Record
from dispatcher.workspace import AttemptPaths, Layout

# 128 and SIGKILL, as shells say it.
_KILLED: Final = 137
_ASKED: Final = "asked"


class Flight:
    """One attempt of this pod. `ending` is set when it has ended and is kept until that is recorded."""

    def __init__(self, job: str, number: int, slot: Slot, paths: AttemptPaths) -> None:
        self.job = job
        self.number = number
        self.slot = slot
        self.paths = paths
        self.handle: str | None = None
        self.pid: int | None = None
        self.pid_recorded = False
        self.ending: Ended | None = None
        self.stopping = ""
        self.released = False
        self.started_s = time.monotonic()
        # By the clock of the kernel's boot, which a restarted dispatcher can read too.
        self.begun_s = boot_time_s()
        self.limits = Limits()
        self.asked_to_stop_s: float | None = None
        # Whether it was killed because its wrapper could not do so.
        self.killed = False

    def deadline_s(self) -> float | None:
        """When its wrapper should have ended it, with some margin, by the same clock; None when it may go on."""
        if self.killed or self.ending is not None or self.handle is None:
            return None
        if self.asked_to_stop_s is not None:
            return self.asked_to_stop_s + self.limits.grace_s + MARGIN_S
        return self.begun_s + self.limits.time_limit_s + MARGIN_S if self.limits.time_limit_s else None


class Flights:
    """All flights of one pod by job id."""

    def __init__(self, config: Config, pod: str) -> None:
        self._config = config
        self._layout: Layout = config.layout
        self._pod = pod
        self.outlet = LocalOutlet()
        self.by_job: dict[str, Flight] = {}
        self._oom_kills = _oom_kills()

    def __len__(self) -> int:
        return len(self.by_job)

    def start(self, entry: Entry, number: int, slot: Slot, paths: AttemptPaths) -> Flight:
        """Start a claimed entry; what keeps it from starting is its ending, never an exception."""
        flight = Flight(entry.job_id, number, slot, paths)
        self.by_job[entry.job_id] = flight
        liveness_fd: int | None = None
        try:
            attempt = prepare(self._config, self._pod, entry, number, slot, paths)
            with files.shared_umask(self._layout.root):
                liveness_fd = _take_liveness_lock(paths.alive)
            flight.handle = self.outlet.submit(attempt, liveness_fd)
            flight.pid = int(flight.handle.partition(":")[0])
            flight.limits = self._limits(paths)
        except DispatcherError as error:
            # What cannot be rendered is the entry's fault; a disk or a bash that fails is not.
            blames_host = isinstance(error, (StorageError, OutletError))
            flight.ending = Ended(None, CANNOT_START, error=str(error), blames_host=blames_host)
        finally:
            if liveness_fd is not None:
                # The tree has inherited it; what keeps it locked from now on is the tree alone.
                os.close(liveness_fd)
        return flight

    def adopt(self, job: str, record: Record, slot: Slot) -> Flight:
        """Watch an attempt that the dispatcher of this name had started before it was restarted."""
        paths = self._layout.attempt(job, record.attempt)
        flight = Flight(job, record.attempt, slot, paths)
        # The dispatcher may have been killed before it could record the pid.
        pid = record.pid or processes.first_of(paths.directory)
        flight.handle = make_handle(pid, paths.directory)
        flight.pid, flight.pid_recorded = pid or None, record.pid is not None
        oldest = pid if processes.is_of_attempt(pid, paths.directory) else processes.first_of(paths.directory)
        flight.begun_s = processes.begun_s(oldest) or flight.begun_s
        flight.limits = self._limits(paths)
        self.by_job[job] = flight
        self.outlet.adopt(flight.handle)
        return flight

    def collect(self) -> list[Flight]:
        """The flights that have ended and are not recorded yet."""
        waiting = {f.handle: f for f in self.by_job.values() if f.handle is not None and f.ending is None}
        for handle, result in self.outlet.poll([h for h in waiting if h]).items():
            if isinstance(result, Ended):
                waiting[handle].ending = self._judge(waiting[handle], result)
        return [flight for flight in self.by_job.values() if flight.ending is not None]

    def _judge(self, flight: Flight, ended: Ended) -> Ended:
        if flight.killed and ended.exit_code is None:
            # What its wrapper would have written.
            ended = Ended(_KILLED, "" if flight.stopping == _ASKED else flight.stopping)
        oom_killed = ended.exit_code in (_KILLED, None) and _oom_kills() > self._oom_kills
        ended = msgspec.structs.replace(ended, oom_killed=oom_killed, ran_s=boot_time_s() - flight.begun_s)
        return outcome.judge(ended, flight.paths)

    def note_oom_kills(self) -> None:
        """Remember how many processes the kernel has killed up to now; called at every heartbeat.

        A SIGKILL that is noticed after the count has risen since was the kernel's.
        """
        self._oom_kills = _oom_kills()

    def drop(self, flight: Flight) -> None:
        """Forget an attempt whose end is recorded; one without an exit status is marked as over for everybody."""
        del self.by_job[flight.job]
        if not flight.paths.exit.exists():
            with contextlib.suppress(OSError):
                files.write_new(flight.paths.superseded, self._pod.encode() + b"\n")

    def stop(self, flight: Flight, reason: str) -> None:
        """Ask an attempt to end; `reason` is what its exit status will say beside the number."""
        if flight.stopping or flight.handle is None or flight.ending is not None:
            return
        flight.stopping = reason or _ASKED
        flight.asked_to_stop_s = boot_time_s()
        if reason:
            # On a full disk the attempt is stopped all the same; only why is then not written.
            with contextlib.suppress(OSError):
                files.write_new(flight.paths.stop, reason.encode() + b"\n")
        self.outlet.cancel(flight.handle)

    def kill(self, flight: Flight) -> None:
        """End an attempt that has no right to run any more, at once."""
        if flight.handle is not None:
            self.outlet.cancel(flight.handle, force=True)

    def enforce_limits(self) -> None:
        """End what its wrapper should have ended and cannot: it stands still (SIGSTOP).

        A wrapper that does not stand still may have good reasons, such as an exit status for which there is no room.
        """
        now = boot_time_s()
        for flight in self.by_job.values():
            deadline_s = flight.deadline_s()
            if deadline_s is None or now < deadline_s or not processes.is_stopped(flight.pid or 0):
                continue
            if flight.asked_to_stop_s is None:
                self.stop(flight, TIME_LIMIT)
            else:
                flight.killed = True
                self.kill(flight)

    def next_deadline_in_s(self) -> float | None:
        """Seconds until `enforce_limits` has something to look at; what is overdue is looked at in every turn."""
        now = boot_time_s()
        waits = [at - now for flight in self.by_job.values() if (at := flight.deadline_s()) is not None and at > now]
        return min(waits, default=None)

    def _limits(self, paths: AttemptPaths) -> Limits:
        return read_limits(paths, Limits(grace_s=self._config.kill_grace_s))

    def is_ours(self, pid: int) -> bool:
        """Whether a process belongs to one of these attempts."""
        directory = processes.attempt_of(pid)
        return directory is not None and any(os.fspath(f.paths.directory) == directory for f in self.by_job.values())


def _take_liveness_lock(path: Path) -> int | None:
    """The locked descriptor; None where flock does not work, and heartbeats must do."""
    try:
        fd = liveness.take_patiently(path)
    except OSError as error:
        if error.errno in liveness.CANNOT_LOCK:
            return None
        raise files.storage_error(error, "taking the liveness lock", path) from error
    if fd is None:
        # Without its liveness lock it would run, and count as lost when this dispatcher dies.
        raise OutletError(f"{path}: somebody holds the liveness lock of this attempt, which has not begun; requeue it")
    return fd


def _oom_kills() -> int:
    """How many processes this host's kernel has killed for want of memory since it started."""
    try:
        for line in Path("/proc/vmstat").read_bytes().splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    except OSError:
        return 0
    return 0
