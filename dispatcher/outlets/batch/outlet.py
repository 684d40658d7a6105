"""Attempts that a scheduler, or another host, runs: what is common to all of these kinds.

Everything that is done on the host goes through one session (agent_session.py), so that a host that hangs holds up
no other, and one call serves all attempts in flight. sending.py submits, watching.py finds out how attempts are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.messages import counted, first_texts
from dispatcher.errors import OutletError, StorageError
from dispatcher.hosts.types import AnyHost, Location
from dispatcher.outlets.base import (
    NOT_REACHED,
    Bundle,
    Ended,
    Key,
    Orphan,
    Pending,
    Placement,
    Report,
    Request,
    Site,
    Slot,
    Status,
    Unknown,
    cannot_start,
)
from dispatcher.outlets.batch.agent_session import AgentSession, Step
from dispatcher.outlets.batch.capacity import Submissions
from dispatcher.outlets.batch.code_delivery import CodeDelivery
from dispatcher.outlets.batch.gpu_use import ReportedGpuUse
from dispatcher.outlets.batch.hardware import HardwareQuestions
from dispatcher.outlets.batch.preparing import LAUNCHER, Preparer
from dispatcher.outlets.batch.problems import Problems
from dispatcher.outlets.batch.provisioning import HostLoss, PendingDemand, Provisioning, UnmanagedHost
from dispatcher.outlets.batch.remote_host import RemoteHost
from dispatcher.outlets.batch.scheduler import Scheduler, Submission
from dispatcher.outlets.batch.sending import Sender
from dispatcher.outlets.batch.status import status_of
from dispatcher.outlets.batch.stopping import Stopper
from dispatcher.outlets.batch.tracked import Tracked
from dispatcher.outlets.batch.watching import Watcher
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.remote.connection import Connection, NoAnswer
from dispatcher.outlets.remote.operations import Failed, Remove, Removed
from dispatcher.outlets.solver.free import FreeHardware
from dispatcher.outlets.wrapper import read_exit, watch_interval_s
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.states import State

# After a submission or a stop its effect is looked for sooner than at the next poll interval.
_SOON_S: Final = 2.0


class BatchOutlet:
    """One configured host. `limit` is the number of attempts that this pod has in flight there at most."""

    first_state = State.SUBMITTED

    def __init__(
        self,
        host: AnyHost,
        scheduler: Scheduler,
        connection: Connection,
        context: PodContext,
        limit: int,
        provisioning: Provisioning | None = None,
    ) -> None:
        config = context.config
        self.name = host.name
        self._layout = config.layout
        self._pod = context.pod
        self._host = provisioning or UnmanagedHost()
        self._interval_s = context.poll_interval_s
        most = limit if host.max_in_flight is None else min(limit, host.max_in_flight)
        knows_hardware = context.by_hardware and most
        free = FreeHardware(host, config.hosts, config.layout.root, scheduler.default_gpus) if knows_hardware else None
        # Every live dispatcher looks for room at each poll interval.
        self._demand = PendingDemand(3 * self._interval_s + _SOON_S)
        self.capacity = Submissions(
            most, scheduler.refuses, packs=scheduler.makes_packs, default_gpus=scheduler.default_gpus,
            free=free, demand=self._demand,
        )  # fmt: skip
        self._remote = RemoteHost(config.layout, context.pod, host, config.hosts.cluster_of(host), scheduler)
        self._preparer = Preparer(host, config.layout, self._remote)
        self._tracked: dict[Key, Tracked] = {}
        self._log = context.log
        # The attempts of each submission, until their ends are recorded; and submissions whose files are to be removed.
        self._members: dict[str, set[Key]] = {}
        self._over: list[str] = []
        # Submitted before the host was reached.
        self._waiting: dict[Key, Bundle] = {}
        self._hardware = HardwareQuestions(free, self._tracked, self._waiting)
        # Attempts that were never submitted, to be marked as superseded before that is reported.
        self._unfenced: list[Key] = []
        self._sender = Sender(
            scheduler, host.submits_per_minute, self._accepted, self._cannot_start,
            room_again_s=context.poll_interval_s, times=context.times,
        )  # fmt: skip
        self._stopper = Stopper(scheduler, self._tracked, context.times)
        guard_s = 2 * watch_interval_s(config) + config.kill_grace_s
        use = ReportedGpuUse(self._interval_s)
        self._watcher = Watcher(
            scheduler, self._sender, self._stopper.ask, self.fence,
            times=context.times, lost_after_s=config.lost_after_s, guard_s=guard_s, use=use,
        )  # fmt: skip
        self._session = AgentSession(connection, self._plan, self._call_was_lost)
        self._connection = connection
        self._code_delivery = CodeDelivery(
            config, connection, self._sender, self._preparer, self._tracked, context.code
        )
        self._shipping = self._code_delivery.shipping
        # The host that was last up, where several have the same name one after the other.
        self._identity = ""
        self._asked_s = -self._interval_s
        self._problems = Problems(
            self._host, self._session, self._remote, self._shipping, self._sender,
            lambda wrong: self._log(f"warning: {host.name}: {wrong}" if wrong else f"{host.name} can be used again"),
        )  # fmt: skip
        self.capacity.is_awaited = bool(self.capacity.limit)
        self._problems.note(self.capacity)

    def site(self, slot: Slot, request: Request) -> Site:
        layout = self._remote.layout()
        return Site(
            layout=layout,
            group_may_write=self._remote.is_shared and files.group_may_write(layout.root),
            launcher=LAUNCHER,
            is_shared=self._remote.is_shared,
            directories=self._remote.directories(),
            node=self._remote.node(request),
            gpus=self.capacity.gpus_of(request),
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
            except (StorageError, OutletError) as error:
                self._cannot_be_found(bundle.key, error)
        self._work()

    def poll(self, keys: Sequence[Key]) -> Mapping[Key, Report]:
        self._sender.refresh()
        self._work()
        self._problems.note(self.capacity)
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
            one = self._tracked.pop(key, None)
            self._watcher.forget(key)
            if one is None or one.name not in self._members:
                continue
            if not one.has_ended:
                # It goes on, with another dispatcher.
                del self._members[one.name]
                continue
            self._members[one.name].discard(key)
            if not self._members[one.name]:
                self._remove_files(one.name)

    def adopt(self, attempts: Mapping[Key, Placement]) -> Mapping[Key, Slot]:
        adopted = {}
        for key, placement in attempts.items():
            try:
                if self._track_again(key, placement).elsewhere:
                    del self._tracked[key]
                    continue
            except (StorageError, OutletError):
                # It is recovered when its files can be read, by an outlet that hears of it.
                continue
            self.capacity.adopt(Slot())
            adopted[key] = Slot()
        if len(adopted) < len(attempts):
            # The others may share their submissions.
            self._members.clear()
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
                except (StorageError, OutletError) as error:
                    unreadable[orphan.key] = Report(Unknown(str(error)))
                    continue
                one.is_orphan = True
            is_asked = one.stop is None or orphan.force > one.forced
            if orphan.is_unwanted and is_asked and not one.has_ended:
                one.forced = orphan.force
                self.cancel([orphan.key], force=bool(orphan.force))
        if unreadable:
            # They may be of any submission, whose files they need.
            self._members.clear()
        return {**self.poll([orphan.key for orphan in orphans if orphan.key not in unreadable]), **unreadable}

    def inspect(self, orphans: Sequence[Orphan]) -> Mapping[Key, Status]:
        found: dict[Key, Status] = {}
        for orphan in orphans:
            paths = self._preparer.paths(orphan.key)
            unknown = Unknown(f"{self.name} was not queried")
            found[orphan.key] = read_exit(paths.directory) if files.is_there(paths.exit) else unknown
        return found

    def leads_to(self, location: Location) -> bool:
        return self._remote.leads_to(location)

    def refresh_capacity(self) -> None:
        """Whether there is room follows from what `poll` takes in."""

    def capacity_due_in_s(self) -> float | None:
        """Until attempts go elsewhere, because the host does not answer or does not tell what is free."""
        first_s = self._problems.awaited_for_s() if self.capacity.is_awaited else None
        waits = (first_s, self._hardware.awaited_for_s(), self._demand.due_in_s())
        return min((max(0.0, wait_s) for wait_s in waits if wait_s is not None), default=None)

    def hold(self, scopes: Mapping[str, str]) -> None:
        """Scopes are GPUs of this host, of which this outlet has none."""

    def slot_infos(self) -> list[SlotInfo]:
        jobs = sorted(str(key) for key, one in self._tracked.items() if not one.has_ended)
        room = self.capacity.limit
        note = self._problem() or self._sender.waiting_text()
        return [SlotInfo(name=self.name, outlet=self.name, jobs=jobs, room=room, note=note)]

    def describe(self) -> str:
        return f"{counted(self.capacity.limit, 'submission')} to {self.name}" if self.capacity.limit else ""

    def notes(self) -> Sequence[str]:
        return ()

    def is_up_to_date(self) -> bool:
        if self._session.is_busy or self._shipping.is_busy or (self._is_needed() and self._host.is_busy):
            return False
        next_s = self._next_in_s()
        return bool(self._problems.unreached) or next_s is None or next_s > 0

    def wait_fds(self) -> list[int]:
        return [*self._session.wait_fds(), *self._shipping.wait_fds(), *self._host.wait_fds()]

    def due_in_s(self) -> float | None:
        host_s = self._host.due_in_s() if self._is_needed() or self._host.wait_fds() else None
        waits = (self._session.due_in_s(self._next_in_s()), self._shipping.due_in_s(), host_s)
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def close(self) -> None:
        self._shipping.close()
        self._session.finish()
        self._remove_last()
        self._session.close()
        self._host.close(is_used=self._is_waiting() or bool(self._waiting))
        self._remote.close()

    def _submit(self, bundles: Sequence[Bundle]) -> None:
        """Prepare these attempts and hand them to the sender; of a submission that cannot be prepared, the others."""
        for group in self._sender.group(bundles):
            submission, attempts, deliveries = self._preparer.prepare(group)
            self._tracked.update({one.key: one for one in attempts})
            well = [bundle for bundle, one in zip(group, attempts, strict=True) if not one.has_ended]
            if len(well) == len(group):
                self._members[submission.name] = {bundle.key for bundle in group}
                code = group[0].code
                # A host that sees this workspace sees the copies in it.
                is_held = self._shipping.is_wanted if code is None else not self._remote.is_shared
                self._sender.add(submission, deliveries, is_held=is_held)
                if is_held:
                    self._shipping.want(submission.name, code)
            else:
                self._submit(well)

    def _remove_files(self, name: str) -> None:
        """Of a submission whose attempts have all ended: at once, or on the host with the next call."""
        del self._members[name]
        if self._remote.is_shared:
            shutil.rmtree(self._layout.submission_script(name).parent, ignore_errors=True)
        elif self._remote.is_reached:
            self._over.append(name)

    def _removal(self) -> list[Step]:
        names = list(self._over)
        return [Step([self._remove(names)], lambda answers: self._removed(names, answers[0]))] if names else []

    def _remove(self, names: Sequence[str]) -> Remove:
        return Remove(directory=os.fspath(self._remote.layout().submissions_dir), names=names)

    def _removed(self, names: Sequence[str], answer: Removed | Failed) -> None:
        self._over = [name for name in self._over if name not in names]
        failed = answer.failed if isinstance(answer, Removed) else [answer.error]
        if failed:
            why = first_texts(failed, 1, ", ")
            self._log(f"warning: {self.name}: files of submissions cannot be removed: {why}")

    def _remove_last(self) -> None:
        """What no call has removed yet, before the pod ends; a host that does not answer is not waited for."""
        if not (self._over and self._remote.is_reached):
            return
        names = list(self._over)
        remove = self._remove(names)
        outcome = self._session.last([remove]) if self._host.is_up else NoAnswer(self._host.problem)
        if not isinstance(outcome, NoAnswer):
            self._removed(names, outcome[0])
            return
        left = f"the files of {counted(len(names), 'submission')} are left in {remove.directory} there"
        self._log(f"note: {self.name}: {left}: {outcome.why}. `dispatcher clean --hosts` removes them")

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
        if files.is_there(one.paths.superseded):
            # Who wrote that may have died before the host was told.
            self._stopper.supersede(one)
        if one.name and not one.elsewhere:
            self._members.setdefault(one.name, set()).add(key)
        self._tracked[key] = one
        self._asked_s = -self._interval_s
        return one

    def _work(self) -> None:
        """Take in what was answered, and begin what is due; never waits."""
        unfenced, self._unfenced = self._unfenced, []
        self.fence(unfenced)
        self._follow_host()
        self._keep_location()
        if self._remote.is_reached and self.capacity.limit:
            self._code_delivery.begin(self._remote)
        if self._remote.is_reached and self._waiting:
            waiting = list(self._waiting.values())
            self._waiting.clear()
            self._submit(waiting)
        self._code_delivery.work(one.code.rpartition(" ")[2] for one in self._tracked.values() if one.code)
        self._session.work()

    def _keep_location(self) -> None:
        """Where the first call has come to, all others go: what is elsewhere says nothing about these attempts."""
        if self._remote.confirm is None or self._connection.confirm is not None:
            return
        # Also the one that finds out the rest about the host.
        self._connection.confirm = self._remote.confirm
        self._connection.explain = self._remote.moved
        for one in self._tracked.values():
            if one.location is not None:
                one.elsewhere = self._remote.elsewhere(one.location)

    def _follow_host(self) -> None:
        """See whether the host is there; what ran on one that is gone has ended."""
        if not (self._is_needed() or self._host.wait_fds()):
            return
        is_used = self._is_waiting() or bool(self._waiting)
        self._host.work(is_wanted=self._demand.is_settled, is_used=is_used)
        self.capacity.can_be_made = self._host.can_be_made
        if self._host.loss is not None:
            self._lose(self._host.loss)
        elif self._host.identity and self._identity not in ("", self._host.identity):
            self._move(self._host.replaced)
        self._identity = self._host.identity or self._identity

    def _lose(self, loss: HostLoss) -> None:
        """The host is gone with all that was on it."""
        for key in self._waiting:
            self._tracked[key] = Tracked(key, "", 0, "", self._preparer.paths(key))
        self._waiting.clear()
        self._end_all(self._tracked.values(), loss)

    def _move(self, loss: HostLoss) -> None:
        """The host is another one now. It reports its attempts: they may have begun there, with other dispatchers.

        Those that were never sent were prepared for the old one.
        """
        unsent = {one.name for one in self._tracked.values() if not one.has_ended and self._sender.withdraw(one.name)}
        self._end_all([one for one in self._tracked.values() if one.name in unsent], loss)

    def _end_all(self, attempts: Iterable[Tracked], loss: HostLoss) -> None:
        """End attempts that were on a host which is gone, and forget what was known of it."""
        for one in attempts:
            if not (one.has_ended or one.elsewhere):
                self._sender.drop(one.name)
                self._watcher.conclude_lost(one, loss)
        if self._remote.is_reached or self._remote.confirm is not None:
            self._start_over()

    def _start_over(self) -> None:
        """The host is another one: nothing is known of it."""
        self._over.clear()
        self._members.clear()
        self._remote.start_over()
        self._code_delivery.start_over()
        self._session.start_over()
        self._connection.start_over()

    def _plan(self) -> list[Step]:
        """What the next call of the agent has to do."""
        if not (self._is_needed() and self._host.is_up):
            return []
        self._keep_location()
        if not self._remote.is_reached:
            return self._remote.steps()
        if self._remote.limits is not None:
            self._sender.limits = self._remote.limits
            self.capacity.keep_to(self._remote.limits.in_flight)
        steps = [*self._stopper.steps(), *self._sender.steps()]
        is_due = self._is_asked_now() or any(step.operations for step in steps)
        if is_due:
            self._asked_s = time.monotonic()
        last = [*self._host.steps()]
        if is_due and self._remote.confirm is not None and any(one.elsewhere for one in self._tracked.values()):
            # Without another question it would not be seen that the host leads to where they are again.
            last.append(Step([self._remote.confirm], lambda _: None))
        steps += self._removal()
        return [*steps, *self._watcher.steps(self._tracked, is_due=is_due), *self._hardware.steps(), *last]

    def _is_needed(self) -> bool:
        """Whether there is anything to be done on the host, now or later."""
        return bool(self.capacity.limit or self._tracked or self._waiting)

    def _is_asked_now(self) -> bool:
        return self._is_waiting() and time.monotonic() - self._asked_s >= self._interval_s

    def _is_waiting(self) -> bool:
        return any(not one.has_ended for one in self._tracked.values())

    def _next_in_s(self) -> float | None:
        """Seconds until the next call has something to do."""
        if not (self._is_needed() and self._host.is_up):
            return None
        if not self._remote.is_reached:
            return self._remote.due_in_s()
        if self._watcher.has_questions() or self._stopper.has_work() or self._host.steps():
            return 0.0
        if self._over and not self._is_waiting():
            # Otherwise they go with the next call.
            return 0.0
        waits = [self._sender.due_in_s(), self._hardware.due_in_s()]
        if self._is_waiting():
            waits.append(max(0.0, self._asked_s + self._interval_s - time.monotonic()))
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def _call_was_lost(self) -> None:
        """Whatever the call was to do may have been done: the scheduler is asked before anything is repeated."""
        self._asked_s = -self._interval_s
        self._stopper.repeat()
        self._host.doubt(self._session.problem)
        if self._connection.has_moved and all(one.has_ended or one.elsewhere for one in self._tracked.values()):
            # What is there now is as good as what was there, and may have those that were submitted elsewhere.
            self._start_over()

    def _accepted(self, submission: Submission, handle: str) -> None:
        for bundle in submission.bundles:
            one = self._tracked.get(bundle.key)
            if one is not None:
                one.is_known = True
                one.handle = handle

    def _cannot_be_found(self, key: Key, error: StorageError | OutletError) -> None:
        """It may have been submitted by an earlier dispatcher, under a name that cannot be read."""
        one = self._tracked[key] = Tracked(key, "", 0, "", self._preparer.paths(key))
        one.end(cannot_start(error))
        self._unfenced.append(key)

    def _cannot_start(self, key: Key, ended: Ended) -> None:
        one = self._tracked.get(key)
        if one is not None:
            one.end(ended)

    def _problem(self) -> str:
        found = self.capacity.problem or self._watcher.problem or self._stopper.problem
        return found or self._hardware.problem

    def _report(self, key: Key) -> Report:
        one = self._tracked.get(key)
        if one is None:
            return Report(Pending(self._problems.unreached or "the host was not reached yet"))
        problem = one.elsewhere or self._problems.unreached or self._watcher.problem_of(key)
        status = status_of(one, problem, self._sender.why_unsent(one.name), self._watcher.gpu_use(key))
        return one.report or Report(status, one.placement())


def _age_s(path: Path) -> float | None:
    """How long ago a file was written, by the clocks of its server and of this host; None when there is none."""
    found = files.stat(path)
    return None if found is None else max(0.0, time.time() - found.st_mtime)
