"""How attempts of dead dispatchers ended: any dispatcher on any host may record it, there is no owner to wait for.

The processes of this host decide for attempts that ran here; elsewhere an attempt's liveness lock does, where locks can
be trusted. Where neither can tell, as after a restart of the file server, the heartbeat of the attempt's dispatcher
must have been still for `lost_after`. An attempt that may still live is marked as
`superseded` in its directory, and its wrapper gets time to find that, before its job can be claimed again.
"""

from __future__ import annotations

from collections.abc import Set

from dispatcher.base import files, host
from dispatcher.base.times import duration_text
from dispatcher.config import Config
from dispatcher.outlets.base import Ended, Key, Orphan, Running, Slot, Status, Unknown
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.cgroups import remove_of
from dispatcher.outlets.local.tree import Tree
from dispatcher.outlets.wrapper import read_exit, watch_interval_s
from dispatcher.run_state import liveness
from dispatcher.run_state.observer import Observer
from dispatcher.workspace import AttemptPaths


def claimed_here(paths: AttemptPaths) -> bool:
    """Whether a dispatcher of this host, boot and PID namespace claimed the attempt, so that its pids mean something.

    Its directory says it: the record has only the host's name, and the pod may have been started again elsewhere.
    """
    _, _, place = (files.read_fresh_small(paths.claimant) or b"").decode(errors="replace").partition("\n")
    return place.strip() == host.here()


class LocalRecovery:
    """Finds out how attempts ended whose dispatcher is dead, and stops what they have left behind on this host."""

    def __init__(self, config: Config, pod: str, observer: Observer) -> None:
        self._layout = config.layout
        self._pod = pod
        self._observer = observer
        # Two looks of the wrapper and its grace period, by this process's own clock.
        self._guard_s = 2 * watch_interval_s(config) + config.kill_grace_s
        self._superseded: set[Key] = set()
        # What dead dispatchers have left running on this host.
        self._trees: dict[Key, Tree] = {}

    def keep(self, keys: Set[Key]) -> None:
        """Stop watching all attempts but these."""
        for key in self._trees.keys() - keys:
            self._trees.pop(key).close()

    def recover(self, orphan: Orphan) -> Status:
        """How it is by now. Unknown: it may still live, or it was superseded and its wrapper may not have noticed."""
        paths = self._paths(orphan)
        if claimed_here(paths):
            return self._recover_here(orphan, paths)
        if self._observer.trusts_locks:
            held = liveness.is_held(paths.alive)
            if held is False:
                return self._recover_free(orphan, paths)
            if held and not orphan.is_unwanted and not self._pod_lock_is_held(orphan):
                return Running("its dispatcher has died")
        # Its lock cannot tell, or a file server keeps the locks of a host that is gone.
        return self._take_away(orphan, paths)

    def inspect(self, orphan: Orphan) -> Status:
        """How it is as far as its files and its lock tell; changes nothing."""
        paths = self._paths(orphan)
        status = read_exit(paths.directory) if paths.directory.is_dir() else Unknown("its directory is missing")
        return Running() if isinstance(status, Ended) and liveness.is_held(paths.alive) else status

    def _paths(self, orphan: Orphan) -> AttemptPaths:
        return self._layout.attempt(orphan.key.job_id, orphan.key.number)

    def _pod_lock_is_held(self, orphan: Orphan) -> bool:
        # Our own name's lock is ours: its former holder has died, or a file server took its lock away.
        if orphan.pod == self._pod or liveness.read_pod(self._layout, orphan.pod) is None:
            return False
        return bool(liveness.is_held(self._layout.pod_lock(orphan.pod)))

    def _recover_here(self, orphan: Orphan, paths: AttemptPaths) -> Status:
        """By the processes of this host; what a job has left behind is stopped, as its dispatcher would have."""
        tree = self._trees.get(orphan.key)
        if tree is None:
            pid = orphan.placement.pid or processes.first_of(paths.directory)
            is_wrapper = bool(pid) and processes.is_of_attempt(pid, paths.directory)
            tree = self._trees[orphan.key] = Tree(orphan.key, paths, pid if is_wrapper else 0, Slot())
        status = tree.status(self._trees.values())
        if isinstance(status, Ended):
            del self._trees[orphan.key]
            if self._observer.trusts_locks and liveness.is_held(paths.alive):
                # Processes that this user cannot see, or a lock that a file server never gave back.
                why = f"{paths.alive} is locked, and no process of this host is known to hold it"
                return self._take_away(orphan, paths) if orphan.is_unwanted else Unknown(why)
            remove_of(paths)
            return self._ended(paths)
        if orphan.force:
            tree.kill()
        elif orphan.is_unwanted:
            tree.terminate()
        return status

    def _recover_free(self, orphan: Orphan, paths: AttemptPaths) -> Status:
        """By its free liveness lock: it has ended, or a file server has taken its lock away."""
        files.refresh_names(paths.directory)
        if not self._observer.is_network or files.is_there(paths.exit):
            return self._ended(paths)
        if not orphan.is_unwanted and self._observer.free_locks_prove_nothing():
            return Unknown("the file server has restarted and may have forgotten its lock")
        return self._take_away(orphan, paths)

    def _ended(self, paths: AttemptPaths) -> Status:
        files.refresh_names(paths.directory)
        status = read_exit(paths.directory)
        if isinstance(status, Ended) and status.exit_code is None:
            # Its host may only be cut off: when it comes back, its wrapper must find that it was superseded.
            self._mark(paths)
        return status

    def _take_away(self, orphan: Orphan, paths: AttemptPaths) -> Status:
        if orphan.key not in self._superseded:
            self._mark(paths)
            self._superseded.add(orphan.key)
        if self._observer.unchanged_s(f"superseded:{orphan.key}", True) < self._guard_s:
            left = f"its wrapper has {duration_text(self._guard_s)} to notice, stop it and kill what is left"
            return Unknown(f"superseded; {left}")
        files.refresh_names(paths.directory)
        return read_exit(paths.directory)

    def _mark(self, paths: AttemptPaths) -> None:
        with files.storing("marking as superseded", paths.directory):
            files.write_new(paths.superseded, self._pod.encode() + b"\n")
            if self._observer.is_network:
                files.stamp(paths.directory)
