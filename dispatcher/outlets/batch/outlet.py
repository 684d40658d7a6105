"""Attempts that a scheduler, or another host, runs: what is common to all of these kinds.

Everything that is done on the host goes through one conversation (conversation.py), so that a host that hangs holds up
nobody else, and one call serves all attempts in flight. sending.py submits, watching.py finds out how attempts are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.messages import counted
from dispatcher.config import CodeMode
from dispatcher.errors import StorageError
from dispatcher.hosts.types import ConnectedHost
from dispatcher.outlets.base import (
    CANNOT_START,
    NOT_REACHED,
    PREEMPTED,
    Bundle,
    Ended,
    Key,
    Orphan,
    Pending,
    Placement,
    Report,
    Site,
    Slot,
    Status,
    Unknown,
)
from dispatcher.outlets.batch.capacity import Submissions
from dispatcher.outlets.batch.conversation import Conversation, Step
from dispatcher.outlets.batch.landing import Landing
from dispatcher.outlets.batch.preparing import LAUNCHER, Preparer
from dispatcher.outlets.batch.scheduler import Scheduler, Submission
from dispatcher.outlets.batch.sending import Sender
from dispatcher.outlets.batch.shipping import Shipping
from dispatcher.outlets.batch.status import status_of
from dispatcher.outlets.batch.stopping import Stopper
from dispatcher.outlets.batch.tracked import Tracked
from dispatcher.outlets.batch.watching import Watcher
from dispatcher.outlets.code.snapshot import Snapshot
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.node.setup import code_file
from dispatcher.outlets.remote.connection import Connection
from dispatcher.outlets.solver.free import FreeHardware
from dispatcher.outlets.wrapper import read_exit, watch_interval_s
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.states import State

# After a submission or a stop its effect is looked for sooner than at the next poll interval.
_SOON_S: Final = 2.0
# For how long the first answer of a host is awaited before what prefers it goes elsewhere.
_FIRST_ANSWER_S: Final = 10.0


class BatchOutlet:
    """One configured host. `limit` is the number of attempts that this pod has in flight there at most."""

    first_state = State.SUBMITTED

    def __init__(
        self, host: ConnectedHost, scheduler: Scheduler, connection: Connection, context: PodContext, limit: int
    ) -> None:
        config = context.config
        self.name = host.name
        self._layout = config.layout
        self._pod = context.pod
        self._scheduler = scheduler
        self._interval_s = context.poll_interval_s
        most = limit if host.max_in_flight is None else min(limit, host.max_in_flight)
        self._free = FreeHardware(host, config.hosts) if context.by_hardware and most else None
        packs = scheduler.makes_packs
        self.capacity = Submissions(most, host.chips, scheduler.refuses, packs=packs, free=self._free)
        self._landing = Landing(config.layout, context.pod, host, config.hosts.cluster_of(host), scheduler)
        self._preparer = Preparer(host.name, config.layout, self._landing)
        self._tracked: dict[Key, Tracked] = {}
        # Submitted before the host was reached.
        self._waiting: dict[Key, Bundle] = {}
        # Attempts that were never submitted, to be marked as superseded before that is reported.
        self._unfenced: list[Key] = []
        self._sender = Sender(
            scheduler, host.submits_per_minute, self._accepted, self._cannot_start, context.poll_interval_s
        )
        self._stopper = Stopper(scheduler, self._landing, self._tracked)
        guard_s = 2 * watch_interval_s(config) + config.kill_grace_s
        self._watcher = Watcher(scheduler, self._sender, self._make_room, self.fence, config.lost_after_s, guard_s)
        self._conversation = Conversation(connection, self._plan, self._call_was_lost)
        self._shipping = Shipping(config.layout, connection, self._code_shipped, self._code_failed)
        self._config, self._asked_code = config, context.code
        self._knows_code = False
        self._asked_s = -self._interval_s
        self._log = context.log
        # The problem that was last reported to people.
        self._told = ""
        # An entry that prefers this host does not go elsewhere because the pod has just begun.
        self._awaited_until_s = time.monotonic() + _FIRST_ANSWER_S
        self.capacity.is_awaited = bool(self.capacity.limit)
        self._note_problem()

    def site(self, slot: Slot) -> Site:
        layout = self._landing.layout()
        return Site(
            layout=layout,
            group_may_write=self._landing.is_shared and files.group_may_write(layout.root),
            launcher=LAUNCHER,
            is_shared=self._landing.is_shared,
            directories=self._landing.directories(),
            node=self._landing.node(),
        )

    def submit(self, bundles: Sequence[Bundle]) -> None:
        for bundle in bundles:
            if bundle.key in self._tracked or bundle.key in self._waiting:
                continue
            try:
                if self._preparer.found(bundle.key) is None:
                    self._waiting[bundle.key] = bundle
                else:
                    self._track_again(bundle.key, Placement())
            except StorageError as error:
                self._cannot_be_found(bundle.key, error)
        self._work()

    def poll(self, keys: Sequence[Key]) -> Mapping[Key, Report]:
        self._sender.refresh()
        self._work()
        self._note_problem()
        return {key: self._report(key) for key in keys}

    def cancel(self, keys: Sequence[Key], *, reason: str = "", force: bool = False) -> None:
        # Of submissions that are taken back, those that go on without the others.
        rest: dict[Key, Bundle] = {}
        for key in keys:
            if self._waiting.pop(key, None) is not None:
                self._tracked[key] = Tracked(key, "", 0, "", self._preparer.paths(key))
            one = self._tracked.get(key)
            if one is None or one.has_ended:
                continue
            rest |= {bundle.key: bundle for bundle in self._sender.withdraw(one.name)}
            if rest.pop(key, None) is not None or not one.name:
                one.end(Ended(None, reason, error="cancelled before it was submitted", by_scheduler=True))
            else:
                self._stopper.ask(one, reason, force=force)
                self._asked_s = min(self._asked_s, time.monotonic() - self._interval_s + _SOON_S)
        self._submit(list(rest.values()))
        self._work()

    def fence(self, keys: Sequence[Key]) -> None:
        for key in keys:
            with contextlib.suppress(OSError):
                files.write_new(self._preparer.paths(key).superseded, self._pod.encode() + b"\n")
            one = self._tracked.get(key)
            if one is not None:
                self._stopper.supersede(one)

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._tracked.pop(key, None)
            self._watcher.forget(key)

    def adopt(self, attempts: Mapping[Key, Placement]) -> Mapping[Key, Slot]:
        adopted = {}
        for key, placement in attempts.items():
            # One whose files cannot be read is recovered when they can be.
            with contextlib.suppress(StorageError):
                self._track_again(key, placement)
                self.capacity.adopt(Slot())
                adopted[key] = Slot()
        return adopted

    def recover(self, orphans: Sequence[Orphan]) -> Mapping[Key, Report]:
        wanted = {orphan.key for orphan in orphans}
        self.forget([key for key, one in self._tracked.items() if one.is_orphan and key not in wanted])
        unreadable: dict[Key, Report] = {}
        for orphan in orphans:
            one = self._tracked.get(orphan.key)
            if one is None:
                try:
                    one = self._track_again(orphan.key, orphan.placement)
                except StorageError as error:
                    unreadable[orphan.key] = Report(Unknown(str(error)))
                    continue
                one.is_orphan = True
            if orphan.is_unwanted and one.stop is None and not one.has_ended:
                self.cancel([orphan.key])
        return {**self.poll([orphan.key for orphan in orphans if orphan.key not in unreadable]), **unreadable}

    def inspect(self, orphans: Sequence[Orphan]) -> Mapping[Key, Status]:
        found: dict[Key, Status] = {}
        for orphan in orphans:
            paths = self._preparer.paths(orphan.key)
            unknown = Unknown(f"{self.name} was not asked")
            found[orphan.key] = read_exit(paths.directory) if paths.exit.exists() else unknown
        return found

    def refresh_capacity(self) -> None:
        """Whether there is room follows from what `poll` takes in."""

    def capacity_due_in_s(self) -> float | None:
        """Until attempts go elsewhere, because the host does not answer or does not tell what is free."""
        first_s = self._awaited_until_s - time.monotonic() if self.capacity.is_awaited else None
        free_s = None if self._free is None else self._free.awaited_for_s()
        return min((max(0.0, wait_s) for wait_s in (first_s, free_s) if wait_s is not None), default=None)

    def hold(self, scopes: Mapping[str, str]) -> None:
        """Scopes are GPUs of this host, of which this outlet has none."""

    def slot_infos(self) -> list[SlotInfo]:
        jobs = sorted(str(key) for key, one in self._tracked.items() if not one.has_ended)
        room = self.capacity.limit
        note = self._problem() or self._sender.waiting_text()
        return [SlotInfo(name=self.name, outlet=self.name, jobs=jobs, room=room, note=note)]

    def describe(self) -> str:
        return f"{counted(self.capacity.limit, 'submission')} to {self.name}" if self.capacity.limit else ""

    def is_up_to_date(self) -> bool:
        if self._conversation.is_busy or self._shipping.is_busy:
            return False
        next_s = self._next_in_s()
        return bool(self._conversation.problem or self._landing.problem) or next_s is None or next_s > 0

    def wait_fds(self) -> list[int]:
        return [*self._conversation.wait_fds(), *self._shipping.wait_fds()]

    def due_in_s(self) -> float | None:
        waits = (self._conversation.due_in_s(self._next_in_s()), self._shipping.due_in_s())
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def close(self) -> None:
        self._shipping.close()
        self._conversation.close()
        self._landing.close()

    def _submit(self, bundles: Sequence[Bundle]) -> None:
        """Prepare these attempts and hand them to the sender; of a submission that cannot be prepared, the others."""
        for group in self._sender.group(bundles):
            submission, attempts, deliveries = self._preparer.prepare(group)
            self._tracked.update({one.key: one for one in attempts})
            well = [bundle for bundle, one in zip(group, attempts, strict=True) if not one.has_ended]
            if len(well) == len(group):
                self._sender.add(submission, deliveries, is_held=self._shipping.is_wanted)
                if self._shipping.is_wanted:
                    self._shipping.want(submission.name)
            else:
                self._submit(well)

    def _track_again(self, key: Key, placement: Placement) -> Tracked:
        """Watch an attempt that an earlier dispatcher was about to submit, or had submitted."""
        one = self._preparer.found(key)
        if one is None:
            one = Tracked(key, "", 0, "", self._preparer.paths(key))
            self._unfenced.append(key)
            error = "its dispatcher died before it was submitted"
            one.end(Ended(None, NOT_REACHED, error=error))
        one.handle = placement.handle
        one.given_before_s = _age_s(one.paths.submission) or 0.0
        if one.paths.superseded.exists():
            # Who wrote that may have died before the host was told.
            self._stopper.supersede(one)
        self._tracked[key] = one
        self._asked_s = -self._interval_s
        return one

    def _work(self) -> None:
        """Take in what was answered, and begin what is due; never waits."""
        unfenced, self._unfenced = self._unfenced, []
        self.fence(unfenced)
        if self._landing.has_landed and self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._submit(list(waiting.values()))
        self._shipping.work(one.code.rpartition(" ")[2] for one in self._tracked.values() if one.code)
        self._conversation.work()
        if self._landing.has_landed and self.capacity.limit and not self._knows_code:
            # Before anything is claimed.
            self._knows_code = True
            self._shipping.begin(self._code_mode(), self._landing.share)
            self._shipping.work(())

    def _plan(self) -> list[Step]:
        """What the next call of the agent has to do."""
        if not self._landing.has_landed:
            is_needed = bool(self.capacity.limit or self._tracked or self._waiting)
            return self._landing.steps() if is_needed else []
        if self._landing.limits is not None:
            self._sender.limits = self._landing.limits
            self.capacity.keep_to(self._landing.limits.in_flight)
        if not self._landing.is_shared:
            self._watcher.mirror_all()
        steps = [*self._stopper.steps(), *self._sender.steps()]
        is_due = self._is_asked_now() or any(step.operations for step in steps)
        if is_due:
            self._asked_s = time.monotonic()
        return [*steps, *self._watcher.steps(self._tracked, is_due=is_due), *self._hardware_steps()]

    def _hardware_steps(self) -> list[Step]:
        """What is asked when attempts are to be placed; after the states, which tell what runs by then."""
        asked = self._free.questions() if self._free is not None else []
        return [Step(asked, self._take_in_hardware)] if asked else []

    def _take_in_hardware(self, answers: Sequence[Any]) -> None:
        assert self._free is not None
        jobs = {
            (one.name, one.index): one.request
            for one in self._tracked.values()
            if one.request is not None and not one.has_ended and not one.is_running
        }
        waiting = [*jobs.values(), *(bundle.request for bundle in self._waiting.values())]
        self._free.take_in(answers, [request for request in waiting if request is not None])

    def _is_asked_now(self) -> bool:
        return self._is_waiting() and time.monotonic() - self._asked_s >= self._interval_s

    def _is_waiting(self) -> bool:
        return any(not one.has_ended for one in self._tracked.values())

    def _next_in_s(self) -> float | None:
        """Seconds until the next call has something to do."""
        if not self._landing.has_landed:
            return self._landing.due_in_s() if self.capacity.limit or self._tracked or self._waiting else None
        if self._watcher.has_questions() or self._stopper.has_work():
            return 0.0
        waits = [self._sender.due_in_s(), None if self._free is None else self._free.due_in_s()]
        if self._is_waiting():
            waits.append(max(0.0, self._asked_s + self._interval_s - time.monotonic()))
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def _call_was_lost(self) -> None:
        """Whatever the call was to do may have been done: the scheduler is asked before anything is repeated."""
        self._asked_s = -self._interval_s
        self._stopper.repeat()

    def _code_mode(self) -> CodeMode:
        """Which code attempts run there: what the host sees of the workspace, unless a person asks otherwise."""
        if self._asked_code is not None:
            return self._asked_code
        return CodeMode.NONE if self._landing.is_shared else self._config.code

    def _code_shipped(self, names: Sequence[str], snapshot: Snapshot, archive: str) -> None:
        """The host has the code of these submissions, so they can go."""
        content = code_file(snapshot.digest, snapshot.commit_text, archive)
        for name in names:
            submission = self._sender.held(name)
            if submission is None:
                continue
            try:
                deliveries = [
                    delivery
                    for bundle in submission.bundles
                    for delivery in self._preparer.add_code(self._tracked[bundle.key], content, snapshot.label)
                ]
            except StorageError as error:
                self._sender.give_up(name, str(error))
            else:
                self._sender.release(name, deliveries)

    def _code_failed(self, names: Sequence[str], why: str) -> None:
        for name in names:
            self._sender.give_up(name, why)

    def _make_room(self, one: Tracked) -> None:
        self._stopper.ask(one, PREEMPTED, by_scheduler=True)

    def _accepted(self, submission: Submission, handle: str) -> None:
        for bundle in submission.bundles:
            one = self._tracked.get(bundle.key)
            if one is not None:
                one.is_known = True
                one.handle = handle

    def _cannot_be_found(self, key: Key, error: StorageError) -> None:
        """It may have been submitted by an earlier dispatcher, under a name that cannot be read."""
        one = self._tracked[key] = Tracked(key, "", 0, "", self._preparer.paths(key))
        one.end(Ended(None, CANNOT_START, error=str(error), blames_host=True))
        self._unfenced.append(key)

    def _cannot_start(self, key: Key, ended: Ended) -> None:
        one = self._tracked.get(key)
        if one is not None:
            one.end(ended)

    def _note_problem(self) -> None:
        """What keeps anything from being submitted now: the loop claims nothing for this outlet meanwhile."""
        landed = "" if self._landing.has_landed else (self._landing.problem or "not reached yet")
        self.capacity.problem = self._conversation.problem or landed or self._shipping.problem or self._sender.problem
        wrong = self._conversation.problem or self._landing.problem or self._shipping.failure or self._sender.problem
        if wrong != self._told and self.capacity.limit:
            self._log(f"warning: {self.name}: {wrong}" if wrong else f"{self.name} can be used again")
            self._told = wrong
        self.capacity.place = self._landing.place
        self.capacity.gpus_are_taken = bool(self._sender.waiting_text())
        if wrong or not self.capacity.problem or time.monotonic() >= self._awaited_until_s:
            self.capacity.is_awaited = False

    def _problem(self) -> str:
        found = self.capacity.problem or self._watcher.problem or self._stopper.problem
        return found or (self._free.problem if self._free is not None else "")

    def _report(self, key: Key) -> Report:
        one = self._tracked.get(key)
        if one is None:
            return Report(Pending(self._landing.problem or "the host was not reached yet"))
        problem = self._conversation.problem or self._landing.problem or self._watcher.problem_of(key)
        return one.report or Report(status_of(one, problem, self._sender.why_unsent(one.name)), one.placement())


def _age_s(path: Path) -> float | None:
    """How long ago a file was written, by the clocks of its server and of this host; None when there is none."""
    found = files.stat(path)
    return None if found is None else max(0.0, time.time() - found.st_mtime)
