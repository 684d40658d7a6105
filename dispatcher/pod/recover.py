"""Recording how attempts of dead dispatchers ended: any dispatcher on any host may, there is no owner to wait for.

The processes of this host decide for attempts that ran here; elsewhere an attempt's liveness lock does, where locks can
be trusted. Where neither can tell, as after a restart of the file server, the heartbeat of the attempt's dispatcher
must have been still for `lost_after`. Whoever takes an entry away from an attempt that may still live leaves
`superseded` in its directory first, and then gives its wrapper time to look.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from dispatcher.base import files, host
from dispatcher.base.mounts import mount_of
from dispatcher.config import Config
from dispatcher.outlets.base import Ended
from dispatcher.outlets.local import outlet, processes
from dispatcher.pod.launch import watch_interval_s
from dispatcher.run_state import liveness, nfs
from dispatcher.run_state.external import Presence, presence
from dispatcher.run_state.states import Record
from dispatcher.workspace import AttemptPaths, Layout

# Beyond the time between two looks, for a look that is slow.
_SLACK_S: Final = 10.0
# For how long a pod's file must be missing before its dispatcher counts as gone.
_MISSING_S: Final = 60.0


class Found(msgspec.Struct, frozen=True):
    """An attempt of a dead dispatcher that has ended."""

    job: str
    attempt: int
    ended: Ended


def claimed_here(paths: AttemptPaths) -> bool:
    """Whether a dispatcher of this host, boot and PID namespace claimed the attempt, so that its pids mean something.

    Its directory says it: the record has only the host's name, and the pod may have been started again elsewhere.
    """
    _, _, place = (files.read_fresh(paths.claimant) or b"").decode(errors="replace").partition("\n")
    return place.strip() == host.here()


class Recovery:
    """Looks after attempts in flight that no live dispatcher looks after."""

    def __init__(self, config: Config, me: str, *, trust_locks: Callable[[], bool], look_every_s: float) -> None:
        self._layout: Layout = config.layout
        self._config = config
        self._me = me
        # Asked anew at every look: the kind of lock may change while dispatchers run.
        self._locks_are_trusted = trust_locks
        self._mount = mount_of(config.layout.run_state)
        self._network = self._mount.is_network
        # The server as it was when this dispatcher first looked.
        self._first_server: nfs.Server | None = None
        self._watch = liveness.Watch(longest_gap_s=look_every_s + _SLACK_S)
        self._superseded: set[tuple[str, int]] = set()
        # What dead dispatchers have left running on this host, by job and attempt.
        self._outlet = outlet.LocalOutlet()
        self._handles: dict[tuple[str, int], str] = {}

    @property
    def trust_locks(self) -> bool:
        return self._locks_are_trusted()

    def start_over(self) -> None:
        """Begin all waiting anew: who could not write or lock itself cannot blame others for being still."""
        self._watch.start_over()

    def pod_is_alive(self, pod: str | None) -> bool:
        """Whether a dispatcher of that name lives (or may, as far as this host can know)."""
        info = liveness.read_pod(self._layout, pod) if pod else None
        if info is None:
            # Network filesystems show "missing" for files that are there.
            return bool(pod) and self._network and self._watch.unchanged_s(f"pod:{pod}", None) < _MISSING_S
        return self._lives(info)

    def look(self, running: Iterable[tuple[str, Record]]) -> list[Found]:
        """Those of these attempts in flight, none this dispatcher's own, that have ended and nobody says so."""
        pods: dict[str, tuple[liveness.PodInfo | None, bool]] = {}
        found = []
        self._free_locks_prove_nothing()
        for job, record in running:
            pod = record.pod or ""
            if pod not in pods:
                info = liveness.read_pod(self._layout, pod) if pod else None
                pods[pod] = info, pod != self._me and self.pod_is_alive(pod)
            info, alive = pods[pod]
            paths = self._layout.attempt(job, record.attempt)
            if alive and not record.external:
                continue
            if not record.external and self._is_there(paths):
                ended = self._look_at(job, record, paths, info)
            else:
                # It is no attempt of ours, and nobody stops it from here: what a person wants of it waits for its end.
                lives = presence(record) is Presence.HERE
                ended = Ended(None) if record.desired is not None and not lives else None
            if ended is not None:
                found.append(Found(job, record.attempt, ended))
        return found

    def _is_there(self, paths: AttemptPaths) -> bool:
        if self._network:
            with contextlib.suppress(OSError):
                files.look_at(paths.directory.parent)
        return os.path.isdir(paths.directory)

    def _lives(self, info: liveness.PodInfo) -> bool:
        alive = self._is_alive(info)
        # Asked afterwards, so that a restart of the server between the two is noticed.
        return alive or (self._free_locks_prove_nothing() and self._is_alive(info, locks=False))

    def _is_alive(self, info: liveness.PodInfo, *, locks: bool = True) -> bool:
        if not (locks and self.trust_locks):
            info = msgspec.structs.replace(info, lock="hardlink")
        lost_after_s = self._config.lost_after_s
        return liveness.pod_is_alive(self._layout, info, self._watch, lost_after_s, patient=self._network)

    def _free_locks_prove_nothing(self) -> bool:
        """Whether the file server may have forgotten locks of processes that live, because it has restarted.

        A client that is still recovering, or was too late for the grace period, holds none. For `lost_after` from such
        a restart heartbeats alone decide; in the first lease of this dispatcher too, for the server may have
        restarted just before.
        """
        server = nfs.server_of(self._mount.point) if self._network else None
        if server is None:
            return False
        if self._first_server is None:
            self._first_server = server
        lost_after_s = self._config.lost_after_s
        has_restarted = server.connections != self._first_server.connections
        doubt_s = lost_after_s if has_restarted else min(lost_after_s, server.lease_s)
        return self._watch.unchanged_s("server", server.connections) < doubt_s

    def _look_at(self, job: str, record: Record, paths: AttemptPaths, info: liveness.PodInfo | None) -> Ended | None:
        if claimed_here(paths):
            return self._look_here(job, record, paths)
        if self.trust_locks:
            held = liveness.is_held(paths.alive)
            if held is False:
                return self._look_at_free(job, record, paths)
            # Our own name's lock is ours: whoever bore it before has died, or a file server took its lock away.
            others = info is not None and info.pod != self._me
            pod_lock_held = others and liveness.is_held(self._layout.pod_lock(record.pod or ""))
            if held and not pod_lock_held and record.desired is None:
                # Its dispatcher has died, the attempt has not: it runs on.
                return None
        # Nobody can tell, or a file server keeps the locks of a host that is gone.
        return self._take_away(job, record, paths)

    def _look_at_free(self, job: str, record: Record, paths: AttemptPaths) -> Ended | None:
        """Nobody holds the attempt's liveness lock: it has ended, or a file server has taken its lock away."""
        files.look_at(paths.directory)
        if not self._network or paths.exit.exists():
            return self._ended(paths)
        if record.desired is None and self._free_locks_prove_nothing():
            return None
        return self._take_away(job, record, paths)

    def _look_here(self, job: str, record: Record, paths: AttemptPaths) -> Ended | None:
        """The processes of this host say it; what a job has left behind is stopped, as its dispatcher would have."""
        key = (job, record.attempt)
        if key not in self._handles:
            pid = record.pid or processes.first_of(paths.directory)
            self._handles[key] = outlet.make_handle(pid, paths.directory)
        handle = self._handles[key]
        if isinstance(self._outlet.poll([handle])[handle], Ended):
            del self._handles[key]
            if self.trust_locks and liveness.is_held(paths.alive):
                # Processes that this user cannot see, or a lock that a file server never gave back.
                return None if record.desired is None else self._take_away(job, record, paths)
            return self._ended(paths)
        if record.desired is not None:
            self._outlet.cancel(handle)
        return None

    def _ended(self, paths: AttemptPaths) -> Ended | None:
        files.look_at(paths.directory)
        outcome = outlet.read_exit(paths.directory)
        if not isinstance(outcome, Ended):
            return None
        if outcome.exit_code is None:
            # Its host may only be cut off: when it comes back, its wrapper must find that it has no right any more.
            self._mark(paths)
        return outcome

    def _take_away(self, job: str, record: Record, paths: AttemptPaths) -> Ended | None:
        key = (job, record.attempt)
        if key not in self._superseded:
            self._mark(paths)
            self._superseded.add(key)
        # Two looks of the wrapper and its grace period, by this process's own clock.
        guard_s = 2 * watch_interval_s(self._config) + self._config.kill_grace_s
        if self._watch.unchanged_s(f"superseded:{job}/{record.attempt}", True) < guard_s:
            return None
        files.look_at(paths.directory)
        outcome = outlet.read_exit(paths.directory)
        return outcome if isinstance(outcome, Ended) else None

    def _mark(self, paths: AttemptPaths) -> None:
        with files.storing("marking as superseded", paths.directory):
            files.write_new(paths.superseded, self._me.encode() + b"\n")
            if self._network:
                files.stamp(paths.directory)
