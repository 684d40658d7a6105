"""Attempts as processes of this host."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.host import host_name
from dispatcher.base.messages import counted, first_names
from dispatcher.errors import OutletError, StorageError
from dispatcher.hosts.types import Location
from dispatcher.outlets.base import (
    TIME_LIMIT,
    Bundle,
    Ended,
    GpuUse,
    Key,
    Orphan,
    Placement,
    Report,
    Request,
    Running,
    Site,
    Slot,
    Status,
    cannot_start,
)
from dispatcher.outlets.bundle import deliver
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.idle_times import sampling_interval_s
from dispatcher.outlets.local import NAME, processes
from dispatcher.outlets.local.budget import Amounts
from dispatcher.outlets.local.cgroups import Cgroups
from dispatcher.outlets.local.gpu_monitor import GpuMonitor
from dispatcher.outlets.local.gpu_sampler import Publisher
from dispatcher.outlets.local.gpu_users import in_container, is_believable
from dispatcher.outlets.local.host_amounts import host_amounts
from dispatcher.outlets.local.oom import OomCounter
from dispatcher.outlets.local.recovery import LocalRecovery, claimed_here
from dispatcher.outlets.local.slot_file import read_slot, with_slot
from dispatcher.outlets.local.slot_variables import defaults, told
from dispatcher.outlets.local.spawn import Spawner
from dispatcher.outlets.local.tree import Tree
from dispatcher.outlets.wrapper import Limits, read_limits
from dispatcher.run_state.facets.pauses import gpu_scope
from dispatcher.run_state.gpu_hour import PodGpus, read_gpus, write_gpus
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.states import State
from dispatcher.workspace import AttemptPaths

# While strays are being stopped, only another look shows when they are gone.
_STRAY_INTERVAL_S: Final = 0.05
_SIGKILL_STATUSES: Final = (137, None)


class LocalOutlet:
    """Runs attempts on the GPUs and CPU slots of this host. Their identity is the attempt's directory."""

    name = NAME
    first_state = State.RUNNING

    def __init__(self, context: PodContext) -> None:
        self._config = context.config
        self._layout = context.config.layout
        self._pod = context.pod
        there = host_amounts()
        of_host = Amounts(context.cpus or there.cpus, context.memory_mib or there.memory_mib)
        self._monitor = GpuMonitor(
            context.gpus,
            context.cpu_slots,
            context.jobs_per_gpu,
            context.log,
            sampling_interval_s(context.config),
            self._attempt_of,
            Publisher(self._load_gpus, self._save_gpus),
            of_host,
        )
        self.capacity = self._monitor.capacity
        self._spawner = Spawner(self._layout)
        self._recovery = LocalRecovery(context.config, context.pod, context.observer)
        self._oom = OomCounter(context.config.heartbeat_s)
        self._cgroups = Cgroups()
        # Those that ask for memory of a GPU, and have one that is not shared by it.
        self._unshared: set[Key] = set()
        self._trees: dict[Key, Tree] = {}
        self._ended: dict[Key, Report] = {}

    def site(self, slot: Slot, request: Request) -> Site:
        return Site(
            layout=self._layout,
            group_may_write=files.group_may_write(self._layout.root),
            environment={**self._monitor.visible(slot.gpus), **told(slot)},
            defaults=defaults(slot),
            host=self._monitor.facts(slot.gpus),
        )

    def submit(self, bundles: Sequence[Bundle]) -> None:
        # Strays must become children of this process, or they are not noticed.
        processes.adopt_orphans()
        # Before the first wrapper starts: it begins where this process is.
        self._cgroups.open()
        for bundle in bundles:
            if bundle.key not in self._trees and bundle.key not in self._ended:
                self._start(bundle)

    def poll(self, keys: Sequence[Key]) -> Mapping[Key, Report]:
        self._enforce_limits()
        kills = self._oom.due()
        reports = {key: self._ended.get(key) or self._report(self._trees[key]) for key in keys}
        self._oom.note(kills)
        if self._monitor.samples:
            self._monitor.watch({key: tree.slot.gpus for key, tree in self._trees.items() if tree.slot.gpus})
        return reports

    def cancel(self, keys: Sequence[Key], *, reason: str = "", force: bool = False) -> None:
        for tree in (self._trees[key] for key in keys if key in self._trees):
            if force:
                tree.kill()
            else:
                self._stop(tree, reason)

    def fence(self, keys: Sequence[Key]) -> None:
        for key in keys:
            with contextlib.suppress(OSError):
                files.write_new(self._paths(key).superseded, self._pod.encode() + b"\n")

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._ended.pop(key, None)

    def adopt(self, attempts: Mapping[Key, Placement]) -> Mapping[Key, Slot]:
        slots = {}
        for key, placement in attempts.items():
            paths = self._paths(key)
            oldest = processes.first_of(paths.directory) if claimed_here(paths) else 0
            if not oldest:
                continue
            # The dispatcher may have been killed before it could record the pid.
            pid = placement.pid or oldest
            is_wrapper = processes.is_of_attempt(pid, paths.directory)
            slots[key] = msgspec.structs.replace(read_slot(paths), gpus=tuple(sorted(placement.gpus)))
            self.capacity.adopt(slots[key])
            self._cgroups.adopt(key, paths)
            tree = self._watch(Tree(key, paths, pid if is_wrapper else 0, slots[key]))
            tree.begun_s = processes.begun_s(pid if is_wrapper else oldest) or tree.begun_s
        return slots

    def recover(self, orphans: Sequence[Orphan]) -> Mapping[Key, Report]:
        self._recovery.keep({orphan.key for orphan in orphans})
        return {orphan.key: Report(self._recovery.recover(orphan), orphan.placement) for orphan in orphans}

    def inspect(self, orphans: Sequence[Orphan]) -> Mapping[Key, Status]:
        return {orphan.key: self._recovery.inspect(orphan) for orphan in orphans}

    def leads_to(self, location: Location) -> bool:
        return True

    def refresh_capacity(self) -> None:
        self._monitor.refresh(self._is_ours)

    def capacity_due_in_s(self) -> float | None:
        return self._monitor.due_in_s()

    def hold(self, scopes: Mapping[str, str]) -> None:
        mine = gpu_scope(host_name(), "")
        self._monitor.hold({int(s.removeprefix(mine)): why for s, why in scopes.items() if s.startswith(mine)})

    def slot_infos(self) -> list[SlotInfo]:
        jobs: dict[int | None, list[str]] = {}
        for tree in self._trees.values():
            for index in tree.slot.gpus or (None,):
                jobs.setdefault(index, []).append(str(tree.key))
        return self._monitor.slot_infos(jobs)

    def describe(self) -> str:
        parts = [f"GPUs {','.join(map(str, self.capacity.gpus))}"] if self.capacity.gpus else []
        if self.capacity.cpu_slots:
            parts.append(counted(self.capacity.cpu_slots, "CPU slot"))
        return " and ".join(parts)

    def notes(self) -> Sequence[str]:
        return [*self._not_enforced(), *self._not_shared()]

    def is_up_to_date(self) -> bool:
        return True

    def wait_fds(self) -> list[int]:
        return [tree.pidfd for tree in self._trees.values() if tree.pidfd >= 0 and not tree.wrapper_gone]

    def due_in_s(self) -> float | None:
        """Until strays may be gone, or a wrapper misses its deadline; one that has missed it is checked at any poll."""
        now = processes.boot_time_s()
        waits = [_STRAY_INTERVAL_S for tree in self._trees.values() if tree.needs_polling()]
        deadlines = [at for tree in self._trees.values() if (at := tree.deadline_s()) is not None and at > now]
        return min((*waits, *(at - now for at in deadlines)), default=None)

    def close(self) -> None:
        for tree in self._trees.values():
            tree.close()
        self._monitor.close()

    def _paths(self, key: Key) -> AttemptPaths:
        return self._layout.attempt(key.job_id, key.number)

    def _start(self, bundle: Bundle) -> None:
        child, pid = None, 0
        earliest_s = processes.boot_time_s()
        try:
            if deliver(with_slot(bundle), self._layout):
                child = self._spawner.spawn(self._in_cgroup(bundle))
                pid = child.pid
            else:
                # A second wrapper would end as a twin, and the first one would count as a stray of it.
                pid = processes.first_of(self._paths(bundle.key).directory)
        except (StorageError, OutletError) as error:
            self._ended[bundle.key] = Report(cannot_start(error))
            self._cgroups.remove(bundle.key)
            return
        tree = Tree(bundle.key, self._paths(bundle.key), pid, bundle.slot, child)
        if child is None:
            self._watch(tree)
            return
        # Those that the wrapper was rendered with.
        tree.limits = Limits(bundle.time_limit_s or 0.0, math.ceil(self._config.kill_grace_s))
        tree.earliest_s = earliest_s
        self._trees[bundle.key] = tree
        if bundle.request.gpu_memory_mib and len(bundle.slot.gpus) == 1 and not bundle.slot.gpu_memory_mib:
            self._unshared.add(bundle.key)

    def _in_cgroup(self, bundle: Bundle) -> Bundle:
        """The bundle, its wrapper told of the cgroup that its job is to enter. A container has cgroups of its own."""
        paths = self._paths(bundle.key)
        made = None if contract.NODE_FILE in bundle.files else self._cgroups.make(bundle.key, paths, bundle.slot)
        if made is None:
            return bundle
        return msgspec.structs.replace(bundle, environment={**bundle.environment, contract.CGROUP: os.fspath(made)})

    def _watch(self, tree: Tree) -> Tree:
        """Watch what was started before, perhaps with other limits than those of today."""
        tree.limits = read_limits(tree.paths, Limits(grace_s=self._config.kill_grace_s))
        self._trees[tree.key] = tree
        return tree

    def _report(self, tree: Tree) -> Report:
        status = tree.status(self._trees.values())
        if isinstance(status, Running):
            idle_s = self._monitor.idle_s(tree.key)
            if idle_s is None:
                return Report(status, tree.placement)
            # A sample is of the second before it, in which the attempt may have begun.
            idle_s = min(idle_s, processes.boot_time_s() - tree.begun_s)
            return Report(Running(status.note, GpuUse(idle_s, len(tree.placement.gpus))), tree.placement)
        if isinstance(status, Ended):
            oom_killed = status.exit_code in _SIGKILL_STATUSES and self._oom.has_risen()
            ran_s = processes.boot_time_s() - tree.begun_s
            status = msgspec.structs.replace(status, oom_killed=oom_killed, ran_s=ran_s)
            del self._trees[tree.key]
            self._cgroups.remove(tree.key)
            self._unshared.discard(tree.key)
            self._ended[tree.key] = Report(status, tree.placement)
        return Report(status, tree.placement)

    def _stop(self, tree: Tree, reason: str) -> None:
        if tree.stop_reason is None:
            # Its wrapper looks for this file from time to time: a signal that comes while it is being started may be
            # lost. On a full disk the attempt is stopped by the signal; then only its exit status lacks the reason.
            with contextlib.suppress(OSError):
                files.write_new(tree.paths.stop, reason.encode() + b"\n")
        tree.ask_to_stop(reason)

    def _enforce_limits(self) -> None:
        """End attempts that their wrapper should have ended and cannot, because it is stopped (SIGSTOP).

        A wrapper that is not stopped may have good reasons, such as an exit status for which there is no room.
        """
        now = processes.boot_time_s()
        for tree in self._trees.values():
            deadline_s = tree.deadline_s()
            if deadline_s is None or now < deadline_s or not processes.is_stopped(tree.pid):
                continue
            if tree.stop_reason is None:
                self._stop(tree, TIME_LIMIT)
            else:
                tree.kill_overdue()

    def _load_gpus(self) -> PodGpus | None:
        with contextlib.suppress(OSError, StorageError):
            return read_gpus(self._layout, self._pod)
        return None

    def _save_gpus(self, found: PodGpus) -> None:
        # For those who look; what cannot be written now is with the next minute.
        with contextlib.suppress(OSError, StorageError):
            write_gpus(self._layout, self._pod, found)

    def _not_enforced(self) -> list[str]:
        """Which attempts ask for CPUs or memory of this host and are not held to them, by the reason."""
        jobs: dict[str, list[str]] = {}
        for tree in self._trees.values():
            if tree.slot.cpus or tree.slot.memory_mib:
                has_container = (tree.paths.directory / contract.NODE_FILE).exists()
                why = "containers have cgroups of their own" if has_container else self._cgroups.why_not(tree.key)
                if why:
                    jobs.setdefault(why, []).append(tree.key.job_id)
        return [f"cpus and memory of {first_names(ids)} are counted, not enforced: {why}" for why, ids in jobs.items()]

    def _not_shared(self) -> list[str]:
        unshared = self._monitor.unshared() if self._unshared else {}
        found = {index for key in self._unshared if key in self._trees for index in self._trees[key].slot.gpus}
        return [
            f"GPU {index} is not shared by gpu_memory: its memory is not known ({unshared[index]})"
            for index in sorted(found & unshared.keys())
        ]

    def _is_ours(self, pid: int) -> bool:
        """Whether a process belongs to one of these attempts."""
        directory = processes.attempt_of(pid)
        return directory is not None and any(os.fspath(t.paths.directory) == directory for t in self._trees.values())

    def _attempt_of(self, pid: int) -> Key | None:
        """The attempt of this pod to which a process on a GPU belongs; None where that cannot be told."""
        directory = processes.attempt_of(pid) if is_believable(pid, in_container()) else None
        trees = list(self._trees.values())
        return next((tree.key for tree in trees if os.fspath(tree.paths.directory) == directory), None)
