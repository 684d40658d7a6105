"""One dispatcher: set-up, the loop, and the end."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable
from typing import Final

from dispatcher.base import files
from dispatcher.base.times import duration_text
from dispatcher.base.values import is_name
from dispatcher.config import Config, LockKind
from dispatcher.doctor.fitness import refuse_unfit_host
from dispatcher.doctor.prove_view import prove_view
from dispatcher.errors import INTERRUPTED, LockError, PodError, StaleViewError, StorageError, UsageError
from dispatcher.outlets.base import PREEMPTED
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.lasting_fault import LastingFault
from dispatcher.pod.offers import DRAINING, own_offer, published
from dispatcher.pod.options import PodOptions, outlet_context
from dispatcher.pod.participant import Ending
from dispatcher.pod.pod_outlets import PodOutlets
from dispatcher.pod.reconciler import Reconciler
from dispatcher.pod.registration import Registration
from dispatcher.pod.reporting import PodReport
from dispatcher.pod.session import Session
from dispatcher.pod.short_lived import remove_ended
from dispatcher.pod.trusted_locks import register_with_trusted_locks
from dispatcher.pod.wake import FileWatch, LoopWait, Signals
from dispatcher.run_state import liveness
from dispatcher.run_state.adoption import refuse_old_script, refuse_unadopted
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

Log = Callable[[str], None]

RUNNING: Final = "running"
STOPPING: Final = "stopping"
LEAVING: Final = "leaving"
_AFTER = {
    RUNNING: "claiming jobs again",
    DRAINING: "no new claims, running jobs finish. Signal again to stop them (TERM, then KILL) and requeue them",
    STOPPING: "running jobs are stopped and requeued. Signal again to exit at once and leave them running",
    LEAVING: "the jobs keep running; a dispatcher started under this name continues with them",
}
_FIRST = {"drain": DRAINING, "stop": STOPPING, "leave": LEAVING}
_NEXT = {DRAINING: STOPPING, STOPPING: LEAVING, LEAVING: LEAVING}
# What runs on the slots is shown at once, but short jobs do not make the pod's file change all the time.
_SHOW_S: Final = 0.5
# Beyond the poll interval: how long a look at the other dispatchers may take.
_SLOW_LOOK_S: Final = 10.0
# How often a pod that drains says what it waits for.
_TELL_S: Final = 30.0
# After a step that failed (disk full, file server away).
_TRY_AGAIN_S: Final = 2.0


def run_pod(layout: Layout, config: Config, options: PodOptions, log: Log) -> int:
    """Run a pod until it is asked to end or, with `until_empty`, until no job is left. Returns the exit code.

    With `once`: until it has looked once, or a signal has told it to end, which it returns INTERRUPTED for.
    """
    if not is_name(options.pod):
        raise UsageError(f"--pod {options.pod!r}: use letters, digits, '.', '_' and '-': files are named after the pod")
    manifests = (config.matrix, options.matrix or config.matrix)
    refuse_unfit_host(layout)
    refuse_unadopted(layout, manifests)
    if not options.anyway:
        refuse_old_script(layout, manifests)
    store = Store(
        layout,
        by=options.pod,
        lock=config.lock,
        lost_after_s=config.lost_after_s,
        manifests=manifests,
        manifest_jobs=ManifestJobs(config, options.matrix).ids,
    )
    interval_s = options.poll_interval_s or config.poll_interval_s
    observer = Observer(
        layout,
        config.lost_after_s,
        lambda: store.lock_kind == LockKind.FLOCK,
        liveness.Watch(longest_gap_s=interval_s + _SLOW_LOOK_S),
    )
    outlets = PodOutlets(outlet_context(config, options, observer, log))
    slots = [info for outlet in outlets.values() for info in outlet.slot_infos()]
    registration = Registration(layout, options.pod, config.heartbeat_s)
    registration.describe(**published(own_offer(options, {name: one.capacity for name, one in outlets.items()})))
    registration.describe(is_short_lived=options.once)
    try:
        register_with_trusted_locks(store, config, registration, slots, log)
        prove_view(store, options.pod)
        return Pod(store, config, options, registration, outlets, observer, log).run()
    finally:
        registration.release()
        outlets.close()
        if options.once:
            remove_ended(layout, store.records.values())
        store.close()


class Pod:
    """The loop of one dispatcher."""

    def __init__(
        self,
        store: Store,
        config: Config,
        options: PodOptions,
        registration: Registration,
        outlets: PodOutlets,
        observer: Observer,
        log: Log,
    ) -> None:
        self.store = store
        self.options = options
        self.config = config
        self.registration = registration
        self.log = log
        self.phase = RUNNING
        self.poll_interval_s = options.poll_interval_s or config.poll_interval_s
        self.projector = Projector(store)
        # A script that goes by the status file cannot wait for an editor that has it open.
        show_claims = functools.partial(self.projector.write, over_editors=True)
        current = CurrentConfig(config, log, outlets.names)
        self.reconciler = Reconciler(store, current, options, outlets, observer, log, show_claims)
        self.attempts = self.reconciler.shared.attempts
        self.report = PodReport(self.reconciler)
        store.while_waiting = registration.beat
        self._session = Session(store, registration, options)
        self._observer = observer
        self._next_poll_s = 0.0
        self._next_show_s = 0.0
        self._next_tell_s = 0.0
        self._told_in_flight = 0
        self._begun_s = time.monotonic()
        self._signals = Signals()
        self._signals_heard = 0
        self._told_to_drain = False
        self._fault = LastingFault(time.monotonic)
        self._noted = False
        self._has_worked = False

    def run(self) -> int:
        layout = self.config.layout
        with self._signals:
            files.remove_leftovers(layout.pods_dir)
            with contextlib.suppress(FileNotFoundError):
                files.remove_leftovers(layout.prepared_dir)
            self.reconciler.prepare()
            self.reconciler.begin(self._session.begin)
            # Only now its outlets know what is asked for, and a pod with nothing to do may end before it shows that.
            self.registration.describe(**self.report.offered())
            self.projector.recover_leftovers()
            if not self.options.once:
                self._greet()
            watch = FileWatch()
            for path in (layout.status_file, layout.lock_file, *self.reconciler.files_to_watch()):
                watch.add(path)
            wait = LoopWait(self._signals, watch)
            try:
                while not self._is_over():
                    self._step(wait, watch)
            finally:
                watch.close()
                self._finish()
                self.reconciler.close()
        if self.phase == RUNNING:
            for line in self.report.closing_lines():
                self.log(line)
        if not self.options.once:
            self._say_what_was_done()
        if self.options.once and self._signals.count:
            return INTERRUPTED
        return self.report.exit_code()

    def _step(self, wait: LoopWait, watch: FileWatch) -> None:
        pause_s: float | None = _TRY_AGAIN_S
        try:
            # A file server in trouble answers with any error to any call: none of them may end the loop.
            with files.storing("looking after the jobs in", self.config.layout.run_state):
                pause_s = self._work()
            self._fault.clear()
        except (StorageError, LockError, PodError, StaleViewError) as error:
            if self.reconciler.is_adding:
                raise
            self._say(self._fault.report(str(error), self.report.unrecorded_ends()))
            self._observer.start_over()
            # Whatever is wrong, others must see that this dispatcher lives.
            with contextlib.suppress(StorageError, LockError, OSError):
                self._beat()
        if pause_s is None or self._is_over():
            return
        if any(watch.add(path) for path in self.reconciler.files_to_watch()):
            # It may have changed since it was read.
            self.reconciler.backlog.note_change()
            return
        for_changes = self.reconciler.wants_changes(claiming=self.phase == RUNNING)
        descriptors = self.reconciler.wait_fds()
        if wait.wait(pause_s, descriptors, for_changes=for_changes):
            self.reconciler.backlog.note_change()

    def _work(self) -> float | None:
        """One pass and what follows it; the seconds to wait then, None when the next pass has work already."""
        # One that ends at once looks at everything in each pass, until it knows all that there is to know.
        due = self.options.once or time.monotonic() >= self._next_poll_s
        if due:
            self._next_poll_s = time.monotonic() + self.poll_interval_s
        self.reconciler.reconcile(claiming=self.phase == RUNNING, poll_is_due=due)
        self._has_worked = True
        why = self.reconciler.must_drain()
        if why and self.phase == RUNNING:
            self._told_to_drain = False
            self._enter(DRAINING, why)
        if self.phase in (DRAINING, STOPPING):
            self._say_what_is_left()
        if self.phase == STOPPING:
            self.attempts.stop(self.attempts, PREEMPTED)
        self._beat()
        if self.reconciler.has_more_to_do():
            return None
        # Readers can wait for a moment longer than a free slot can.
        self.projector.check_replaced()
        self.projector.write_when_due()
        self._note_projection()
        return self._pause_s()

    def _pause_s(self) -> float:
        pause_s = min(self._next_poll_s - time.monotonic(), self.registration.due_in_s())
        steps_s = self.projector.due_in_s(), self.reconciler.due_in_s(claiming=self.phase == RUNNING)
        for due_s in (*steps_s, self.projector.check_due_in_s()):
            if due_s is not None:
                pause_s = min(pause_s, due_s)
        return max(0.0, pause_s)

    def _beat(self) -> None:
        may_show = time.monotonic() >= self._next_show_s
        if self.registration.due_in_s() > 0 and not (may_show and self.report.slots_changed()):
            return
        self._next_show_s = time.monotonic() + _SHOW_S
        self.registration.keep_lock()
        layout = self.config.layout
        self._obey_drain(files.read_fresh(layout.pod_drain(self.options.pod)) is not None)
        fields = self.report.describe()
        fields["notes"] += filter(None, (self.projector.note,))
        self.registration.beat(
            force=True,
            phase=self.phase,
            lock=self.store.lock_kind,
            journal=self.store.position,
            **fields,
        )
        # A dispatcher that has nothing to write must not be the one that the others wait for.
        self.store.follow_lock_kind()

    def _obey_drain(self, wanted: bool) -> None:
        if wanted and self.phase == RUNNING:
            self._told_to_drain = True
            self._enter(DRAINING, "requested by `dispatcher drain`")
        elif not wanted and self.phase == DRAINING and self._told_to_drain:
            self._told_to_drain = False
            self._enter(RUNNING, "requested by `dispatcher undrain`")

    def _is_over(self) -> bool:
        # A signal that comes when nothing is left to do is about what is told at the end: `_tells_the_rest` hears it.
        while not (is_over := self._has_nothing_left()) and self._signals_heard < self._signals.count:
            self._signals_heard += 1
            self._enter(_NEXT.get(self.phase, _FIRST[self.options.on_exit]), "")
        if self._signals.hung_up and self.phase != LEAVING:
            self._enter(LEAVING, "the terminal is gone")
        return is_over or self.phase == LEAVING

    def _has_nothing_left(self) -> bool:
        if self.phase == LEAVING:
            return True
        if self.options.once:
            # One that drains queues no new jobs any more.
            gives_up = self.phase in (DRAINING, STOPPING) and self.reconciler.is_adding
            return self._has_worked and (gives_up or self.reconciler.is_up_to_date())
        if self.attempts:
            return False
        return self.phase in (DRAINING, STOPPING) or self.reconciler.is_finished()

    def _finish(self) -> None:
        """Record and report what is not yet: placements, ends, complaints, and a status file that is current."""
        # Other pods may end at the same moment, so no other writer may be left.
        last_projection = functools.partial(self.projector.write, over_editors=True)
        ending = Ending(self._tells_the_rest, self.options.until_empty and self.phase == RUNNING)
        steps: tuple[Callable[[], object], ...] = (
            functools.partial(self.reconciler.record_rest, leaving=self.phase == LEAVING or self.options.once),
            self._session.end,
            last_projection,
            self.reconciler.participants.script.release,
            self.projector.close,
            *(functools.partial(one.finish, ending) for one in self.reconciler.participants.all),
        )
        for step in steps:
            try:
                with files.storing("ending the work in", self.config.layout.run_state):
                    step()
            except (StorageError, LockError, PodError, StaleViewError) as error:
                self.log(f"warning: {error}")

    def _tells_the_rest(self) -> bool:
        """Whether this pod waits until what it tells people has been sent, or it is known that it was not."""
        while self._signals_heard < self._signals.count:
            self._signals_heard += 1
            self.phase = LEAVING
        return self.phase != LEAVING and not self._signals.hung_up

    def _enter(self, phase: str, why: str) -> None:
        self.phase = phase
        self._session.claims(phase == RUNNING)
        self.log(f"{phase}{f' ({why})' if why else ''}: {_AFTER[phase]}")

        if phase == DRAINING:
            for line in self.report.still_running():
                self.log(line)
            self._note_told()
        if phase in (DRAINING, STOPPING):
            self._say(self._fault.ends_text(self.report.unrecorded_ends()))

    def _say_what_is_left(self) -> None:
        """Now and then, when some of what is waited for has ended."""
        in_flight = len(self.attempts)
        if 0 < in_flight < self._told_in_flight and time.monotonic() >= self._next_tell_s:
            self.log(self.report.still_running()[0])
            self._note_told()

    def _note_told(self) -> None:
        self._told_in_flight = len(self.attempts)
        self._next_tell_s = time.monotonic() + _TELL_S

    def _say_what_was_done(self) -> None:
        what = "left" if self.phase == LEAVING else "ended"
        self.log(f"{what} after {duration_text(time.monotonic() - self._begun_s)}: {self.report.summary()}")

    def _greet(self) -> None:
        slots_and_jobs, *warnings = self.report.opening_lines()
        self.log(
            f"pod {self.options.pod} on {self.registration.info.host}, pid {os.getpid()}: "
            f"{slots_and_jobs}; poll interval {self.poll_interval_s:g} s"
        )
        for line in warnings:
            self.log(line)

    def _note_projection(self) -> None:
        if self.projector.note and not self._noted:
            self.log(f"note: {self.projector.note}")
        self._noted = bool(self.projector.note)

    def _say(self, text: str) -> None:
        if text:
            self.log(text)
