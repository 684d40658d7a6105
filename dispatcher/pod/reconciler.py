"""One pass of the loop: record what has ended and claim what comes next, in one transaction; then start it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dispatcher.errors import LockLostError
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.options import PodOptions
from dispatcher.pod.participant import Pass, Shared
from dispatcher.pod.participants.listed import participants_of
from dispatcher.pod.pod_outlets import PodOutlets
from dispatcher.pod.running_attempts import RunningAttempts
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.store import Store, Transaction

# How often a pod that starts tries its first transaction where the lock is lost on the way.
_START_TRIES: Final = 3


class _RolledBackError(Exception):
    """What a rehearsal was for has been seen."""


class Reconciler:
    """Brings the attempts of one pod and the run state in step, one `reconcile` at a time: see participant.py.

    `show_claims` brings the status file up to date. `is_dry`: it does not act.
    """

    def __init__(
        self,
        store: Store,
        config: CurrentConfig,
        options: PodOptions,
        outlets: PodOutlets,
        observer: Observer,
        log: Callable[[str], None],
        show_claims: Callable[[], None] = lambda: None,
        *,
        is_dry: bool = False,
    ) -> None:
        self.shared = Shared(
            store=store,
            config=config,
            options=options,
            outlets=outlets,
            observer=observer,
            attempts=RunningAttempts(config.now.layout, outlets, outlets.without_slots),
            log=log,
            show_claims=show_claims,
            is_dry=is_dry,
        )
        self.backlog = Backlog(self.shared)
        self.participants = participants_of(self.shared, self.backlog)

    def prepare(self) -> None:
        """Raise what keeps the pod from starting."""
        for one in self.participants.all:
            one.prepare()

    def begin(self, note_start: Callable[[Transaction], None] = lambda _: None) -> None:
        """Read everything, queue what is new, find the own running attempts again.

        `note_start` writes into the first transaction.
        """
        self._write_start(note_start)
        self.backlog.read_all(self.participants.all)
        self.participants.orphans.adopt()
        for one in self.participants.all if not self.shared.is_dry else ():
            one.begin()

    def _write_start(self, note_start: Callable[[Transaction], None]) -> None:
        """The first transaction may wait for what a dead holder of the lock has left, and so lose the lock itself."""
        for last in (*[False] * (_START_TRIES - 1), True):
            try:
                with self.shared.store.transaction() as tx:
                    note_start(tx)
                return
            except LockLostError:
                if last:
                    raise

    def reconcile(self, *, claiming: bool, poll_is_due: bool) -> int:
        """Record endings and, when `claiming`, take new entries; how many were started.

        `poll_is_due`: the poll interval is over, so the manifest and the attempts of dead dispatchers are checked too.
        """
        now = Pass(claiming=claiming, poll_is_due=poll_is_due)
        everyone = self.participants.all
        if self._look(now):
            self._transact(now)
        for one in everyone:
            one.after(now)
        return self.participants.claims.started

    def rehearse(self, then: Callable[[Pass], None]) -> None:
        """The first pass of a pod, whose transaction is rolled back after `then` was called in it."""
        now = Pass(claiming=True, poll_is_due=True)
        self._look(now)
        with contextlib.suppress(_RolledBackError):
            self._transact(now, then)

    def _look(self, now: Pass) -> bool:
        """Everything that is done outside the lock; whether a transaction is due."""
        shared, backlog, everyone = self.shared, self.backlog, self.participants.all
        # Even where the run state cannot be read, it is known what has ended.
        if not shared.is_dry:
            shared.attempts.collect()
        has_read = backlog.follow(now)
        for one in everyone:
            one.look(now)
            if not shared.is_dry:
                one.act(now)
        now.claiming = now.claiming and all(one.may_claim() for one in everyone) and self._has_free_slots()
        if has_read or (now.claiming and backlog.has_ready()):
            backlog.follow_templates()
        # Where something is freed, only the transaction itself can tell what is ready then.
        now.claiming = now.claiming and (now.may_free or backlog.has_ready())
        if now.claiming:
            for outlet in shared.outlets.values():
                outlet.refresh_capacity()
        return now.claiming or any(one.has_news() for one in everyone)

    def _transact(self, now: Pass, rehearsed: Callable[[Pass], None] | None = None) -> None:
        everyone = self.participants.all
        with contextlib.ExitStack() as held:
            for one in everyone:
                one.hold(now, held)
            try:
                with self.shared.store.transaction() as tx:
                    for one in everyone:
                        one.record(now, tx)
                    if rehearsed is not None:
                        rehearsed(now)
                        raise _RolledBackError
            except BaseException:
                # Nothing has happened: what has ended stays to be recorded, what was chosen is still queued.
                for one in reversed(everyone):
                    one.roll_back()
                raise
            for one in everyone:
                one.commit(tx)

    def record_rest(self, *, leaving: bool) -> None:
        """Record what is not recorded yet; `leaving`: attempts run on without this dispatcher."""
        if leaving:
            if self.shared.attempts.unrecorded():
                self._transact(Pass(claiming=False))
            return
        self.reconcile(claiming=False, poll_is_due=False)
        # Else jobs would get the code of a later time.
        while any(one.has_news() and one.has_more() for one in self.participants.all):
            self.reconcile(claiming=False, poll_is_due=False)

    def close(self) -> None:
        """Record what the last attempts ran from, and end what is under way beside the attempts."""
        for one in self.participants.all:
            one.close()

    def files_to_watch(self) -> list[Path]:
        """The files whose changes `backlog.note_change` is called for; new templates may join them at any time."""
        backlog = self.backlog
        return [backlog.manifest.path, *self.shared.config.files(), *backlog.startable.templates()]

    def wait_fds(self) -> list[int]:
        """Descriptors that become readable when an attempt or a participant has news."""
        return [*self.shared.attempts.wait_fds(), *(fd for one in self.participants.all for fd in one.wait_fds())]

    def wants_changes(self, *, claiming: bool) -> bool:
        """Whether a change of a watched file matters now: attempts can be stopped, and free slots filled."""
        return bool(self.shared.attempts) or (claiming and self._has_free_slots())

    def due_in_s(self, *, claiming: bool) -> float | None:
        """Seconds until `reconcile` is due although nothing has happened; None when never."""
        waits = [self.shared.attempts.due_in_s(), *(one.due_in_s(claiming=claiming) for one in self.participants.all)]
        return min((max(0.0, wait_s) for wait_s in waits if wait_s is not None), default=None)

    def has_more_to_do(self) -> bool:
        """Whether `reconcile` is to be called again before anything else."""
        return any(one.has_more() for one in self.participants.all)

    @property
    def is_adding(self) -> bool:
        """Whether new jobs are still to be queued."""
        return self.participants.adding.is_busy()

    def is_up_to_date(self) -> bool:
        """Whether each attempt was accepted or refused, and no outlet has anything under way that could be news."""
        if any(one.is_busy() for one in self.participants.all):
            return False
        return all(outlet.is_up_to_date() for outlet in self.shared.outlets.with_orphans())

    def is_finished(self) -> bool:
        """Whether the pod ends by itself: `--max-jobs` are claimed, or with `--until-empty` nothing is left for it."""
        if self.participants.claims.has_enough:
            return True
        if not self.shared.options.until_empty or self.shared.attempts.unrecorded():
            return False
        is_final = any(obstacle.is_final for obstacle in self.backlog.obstacles())
        return is_final or self.backlog.queue.is_finished(now_text(time.time()))

    def must_drain(self) -> str:
        """Why this pod is to drain; empty when it is not."""
        return next((obstacle.why for obstacle in self.backlog.obstacles() if obstacle.drains), "")

    def _has_free_slots(self) -> bool:
        """Whether some outlet has room, or may have when it is asked to look."""
        outlets = self.shared.outlets.values()
        return any(not outlet.capacity.is_full or outlet.capacity_due_in_s() == 0.0 for outlet in outlets)
