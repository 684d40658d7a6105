"""One dispatcher: set up, turn after turn of the loop, and away."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import Final

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.base.values import is_name
from dispatcher.config import Config
from dispatcher.doctor.fitness import refuse_unfit_host
from dispatcher.doctor.prove_locks import (
    prove_locks,
    refuse_other_hosts_on_sshfs,
    switch_to_hardlink,
    wait_until_all_follow,
)
from dispatcher.doctor.prove_view import prove_view
from dispatcher.errors import DispatcherError, LockError, PodError, StaleViewError, StorageError, UsageError
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.gpu_monitor import GpuMonitor
from dispatcher.pod.offers import own_offer, published
from dispatcher.pod.options import PodOptions
from dispatcher.pod.reconciler import Turn
from dispatcher.pod.registration import Registration, refuse_shared_slots
from dispatcher.pod.wake import FileWatch, Signals, Wait
from dispatcher.run_state.adoption import neglected_text
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.lock_choice import locks_refused
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

Say = Callable[[str], None]

RUNNING: Final = "running"
DRAINING: Final = "draining"
STOPPING: Final = "stopping"
LEAVING: Final = "leaving"
_AFTER = {
    RUNNING: "claims go on",
    DRAINING: "no new claims, running jobs finish. Again: stop them (TERM, then KILL) and put them back",
    STOPPING: "running jobs are stopped and put back. Again: leave at once, the jobs run on",
    LEAVING: "the jobs run on, a dispatcher of this name finds them again",
}
_FIRST = {"drain": DRAINING, "stop": STOPPING, "leave": LEAVING}
_NEXT = {DRAINING: STOPPING, STOPPING: LEAVING, LEAVING: LEAVING}
# A pid is recorded with the next transaction, or by itself when none comes in this time.
_PID_DELAY_S: Final = 0.02
# While strays are stopped, nothing but a look tells when they are gone.
_STRAY_LOOK_S: Final = 0.05
# What runs on the slots is shown at once, but short jobs do not make the pod's file change all the time.
_SHOW_S: Final = 0.5
# After a step that failed (disk full, file server away).
_TRY_AGAIN_S: Final = 2.0


def run_pod(layout: Layout, config: Config, options: PodOptions, say: Say) -> int:
    """Run a dispatcher until it is told to end or, with `until_empty`, until nothing is left; the exit code."""
    if not is_name(options.pod):
        raise UsageError(
            f"--pod {options.pod!r}: a pod's name has letters, digits, '.', '_' and '-', and names its files"
        )
    refuse_unfit_host(layout)
    processes.adopt_orphans()
    store = Store(
        layout,
        by=options.pod,
        lock=config.lock,
        lost_after_s=config.lost_after_s,
        manifests=(config.matrix, options.matrix or config.matrix),
        manifest_jobs=ManifestJobs(config, options.matrix).ids,
    )
    gpus = GpuMonitor(options.gpus, options.cpu_slots, options.jobs_per_gpu, say)
    registration = Registration(layout, options.pod, config.heartbeat_s)
    registration.describe(**published(own_offer(options, {LOCAL: gpus.capacity})))
    try:
        _make_sure_of_locks(store, config, registration, gpus, say)
        prove_view(store, options.pod)
        return Pod(store, config, options, registration, gpus, say).run()
    finally:
        registration.release()
        gpus.close()
        store.close()


def _make_sure_of_locks(store: Store, config: Config, registration: Registration, gpus: GpuMonitor, say: Say) -> None:
    layout = config.layout
    store.prepare()
    useless = registration.take()
    registration.refuse_if_alive(config.lost_after_s, locks_work=useless is None and store.lock_kind != "hardlink")
    refuse_shared_slots(layout, registration.info, gpus.slot_infos({}), config.lost_after_s)

    def beat() -> None:
        registration.beat(lock=store.lock_kind)

    registration.beat(force=True, slots=gpus.slot_infos({}), lock=store.lock_kind)
    if store.lock_kind == "hardlink":
        if useless is not None and config.lock == "auto":
            say(_instead(useless, layout))
        refuse_other_hosts_on_sshfs(layout, registration.info.pod, config.lost_after_s)
        # Somebody else may have gone over just now, and others may not have followed yet.
        wait_until_all_follow(layout, registration.info.pod, beat, "the hard-link lock is in use")
        return
    if useless is None:
        proof = prove_locks(layout, registration.info.pod, beat, say)
        useless = proof.message if proof.unprotected else None
    elif store.lock_kind == "lockf":
        say(f"warning: {useless}, so nothing proves that lockf excludes here: run `dispatcher doctor` on two hosts")
        return
    if useless is None:
        return
    if config.lock != "auto":
        raise locks_refused(useless, layout.run_state, config.lock)
    say(_instead(useless, layout))
    switch_to_hardlink(store, layout, registration.info.pod, beat, useless)


def _instead(useless: str, layout: Layout) -> str:
    cure = mount_of(layout.run_state).cure
    return f"warning: {useless}. Using the hard-link lock (lock: hardlink) instead, which is slower. Cure: {cure}"


class Pod:
    """The loop of one dispatcher."""

    def __init__(
        self, store: Store, config: Config, options: PodOptions, registration: Registration, gpus: GpuMonitor, say: Say
    ) -> None:
        self.store = store
        self.options = options
        self.config = config
        self.registration = registration
        self.say = say
        self.phase = RUNNING
        self.poll_interval_s = options.poll_interval_s or config.poll_interval_s
        self.projector = Projector(store)
        self.turn = Turn(store, config, options, gpus, say)
        # A script that goes by the status file cannot wait for somebody who has it open.
        self.turn.show_claims = functools.partial(self.projector.write, over_editors=True)
        store.while_waiting = registration.beat
        self._next_poll_s = 0.0
        self._next_show_s = 0.0
        self._signals = Signals()
        self._signals_heard = 0
        self._told_to_drain = False
        self._failed_before: str | None = None
        self._noted = False

    def run(self) -> int:
        layout = self.config.layout
        with self._signals:
            files.remove_leftovers(layout.pods_dir)
            self.turn.begin()
            self.projector.take_in_leftovers()
            self._say_hello()
            watch = FileWatch()
            for path in (layout.status_file, layout.lock_file, self.turn.manifest.path):
                watch.add(path)
            wait = Wait(self._signals, watch)
            try:
                while not self._is_over():
                    self._step(wait, watch)
            finally:
                watch.close()
                self._finish()
        if self.phase == RUNNING:
            for line in self.turn.last_words():
                self.say(line)
        return self.turn.exit_code()

    def _step(self, wait: Wait, watch: FileWatch) -> None:
        pause_s: float | None = _TRY_AGAIN_S
        try:
            # A file server in trouble answers with any error to any call: none of them may end the loop.
            with files.storing("looking after the jobs in", self.config.layout.run_state):
                pause_s = self._work()
            self._failed_before = None
        except (StorageError, LockError, PodError, StaleViewError) as error:
            self._say_once(error)
            self.turn.recovery.start_over()
            # Whatever is wrong, others must see that this dispatcher lives.
            with contextlib.suppress(StorageError, LockError, OSError):
                self._beat()
        if pause_s is None or self._is_over():
            return
        if any(watch.add(template) for template in self.turn.startable.templates()):
            # They may have changed since they were looked at.
            self.turn.something_changed = True
            return
        idle = self.phase == RUNNING and self.turn.has_free_slots()
        if wait.wait(pause_s, self.turn.flights.outlet.wait_descriptors(), for_changes=idle or bool(self.turn.flights)):
            self.turn.something_changed = True

    def _work(self) -> float | None:
        """One turn and what goes with it; the seconds to wait then, None when the next turn has work already."""
        due = time.monotonic() >= self._next_poll_s
        if due:
            self._next_poll_s = time.monotonic() + self.poll_interval_s
        self.turn.take(claiming=self.phase == RUNNING, look_around=due)
        if self.phase == STOPPING:
            self.turn.stop_all()
        self._beat()
        if self.turn.can_claim_more():
            return None
        self.turn.show_claims_to_script()
        # Readers can wait for a moment longer than a free slot can.
        self.projector.look_at_retired()
        self.projector.write_when_due()
        self._say_what_keeps_the_status_file()
        self.turn.complaint.say_when_due()
        if due:
            self.store.rotate_if_worthwhile()
        return self._pause_s()

    def _pause_s(self) -> float:
        turn = self.turn
        pause_s = min(self._next_poll_s - time.monotonic(), self.registration.due_in_s())
        for due_s in (self.projector.due_in_s(), turn.complaint.due_in_s()):
            if due_s is not None:
                pause_s = min(pause_s, due_s)
        if turn.has_unrecorded_pids():
            pause_s = min(pause_s, _PID_DELAY_S)
        if turn.flights.outlet.needs_polling():
            pause_s = min(pause_s, _STRAY_LOOK_S)
        deadline_s = turn.flights.next_deadline_in_s()
        if deadline_s is not None:
            pause_s = min(pause_s, deadline_s)
        retry_s = turn.next_retry_in_s()
        if retry_s is not None and self.phase == RUNNING:
            pause_s = min(pause_s, retry_s)
        return max(0.0, pause_s)

    def _beat(self) -> None:
        if self.registration.due_in_s() > 0 and (time.monotonic() < self._next_show_s or not self.turn.slots_changed()):
            return
        self._next_show_s = time.monotonic() + _SHOW_S
        self.registration.keep_lock()
        self.turn.flights.note_oom_kills()
        layout = self.config.layout
        self._obey_drain(files.read_fresh(layout.pod_drain(self.options.pod)) is not None)
        self.registration.beat(
            force=True,
            phase=self.phase,
            lock=self.store.lock_kind,
            journal=self.store.position,
            slots=self.turn.slot_infos(),
            notes=[*self.turn.notes(), *filter(None, (self.projector.note,))],
            matrix=os.fspath(self.turn.manifest.path),
            **self.turn.published_offer(),
        )
        # A dispatcher that has nothing to write must not be the one that the others wait for.
        self.store.follow_lock_kind()

    def _obey_drain(self, wanted: bool) -> None:
        if wanted and self.phase == RUNNING:
            self._told_to_drain = True
            self._enter(DRAINING, "asked by `dispatcher drain`")
        elif not wanted and self.phase == DRAINING and self._told_to_drain:
            self._told_to_drain = False
            self._enter(RUNNING, "asked by `dispatcher undrain`")

    def _is_over(self) -> bool:
        while self._signals_heard < self._signals.count:
            self._signals_heard += 1
            self._enter(_NEXT.get(self.phase, _FIRST[self.options.on_exit]), "")
        if self._signals.hung_up and self.phase != LEAVING:
            self._enter(LEAVING, "the terminal is gone")
        if self.phase == LEAVING:
            return True
        if self.turn.flights:
            return False
        if self.phase in (DRAINING, STOPPING) or self.turn.enough():
            return True
        return self.options.until_empty and self.turn.is_finished()

    def _finish(self) -> None:
        """Leave nothing unsaid: pids and endings that are not recorded yet, and a status file that is current."""
        # Others may end at the same moment, so nobody is left to write it later.
        last_projection = functools.partial(self.projector.write, over_editors=True)
        last_words = functools.partial(self.turn.complaint.say_when_due, at_once=True)
        steps = (
            self._record_the_last,
            last_projection,
            self.turn.give_script_lock_back,
            self.projector.close,
            last_words,
        )
        for step in steps:
            try:
                with files.storing("ending the work in", self.config.layout.run_state):
                    step()
            except (StorageError, LockError, PodError, StaleViewError) as error:
                self.say(f"warning: {error}")

    def _record_the_last(self) -> None:
        if self.phase != LEAVING:
            self.turn.take(claiming=False, look_around=False)
        else:
            self.turn.record_pids()

    def _enter(self, phase: str, why: str) -> None:
        self.phase = phase
        self.say(f"{phase}{f' ({why})' if why else ''}: {_AFTER[phase]}")

    def _say_hello(self) -> None:
        counts = self.turn.manifest.counts()
        self.say(
            f"pod {self.options.pod} on {self.registration.info.host}, pid {os.getpid()}: "
            f"{self.turn.describe_slots()}; {self.turn.manifest.path.name}: {counts}; "
            f"poll interval {self.poll_interval_s:g} s"
        )
        neglected = neglected_text(self.config.layout, (self.config.matrix, self.turn.manifest.path))
        if neglected:
            self.say(f"warning: {neglected}")
        unknown = self.turn.manifest.unknown_methods(self.options.methods)
        if unknown:
            self.say(f"warning: --methods: {self.turn.manifest.path.name} has no entries of {unknown}")

    def _say_what_keeps_the_status_file(self) -> None:
        if self.projector.note and not self._noted:
            self.say(f"note: {self.projector.note}")
        self._noted = bool(self.projector.note)

    def _say_once(self, error: DispatcherError) -> None:
        """A fault that lasts is said once, not at every try."""
        if str(error) != self._failed_before:
            self._failed_before = str(error)
            self.say(f"warning: {error}; trying again")
