"""Finding out how attempts are: the scheduler's states, what they report, and how they ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base import files
from dispatcher.base.host import boot_time_s
from dispatcher.errors import OutletError, StorageError
from dispatcher.outlets.base import NOT_REACHED, PREEMPTED, SUPERSEDED, Ended, GpuUse, Key, Unknown
from dispatcher.outlets.batch import mirror
from dispatcher.outlets.batch.agent_session import Step
from dispatcher.outlets.batch.ends import end_of, needs_detail, why_superseded
from dispatcher.outlets.batch.gpu_use import ReportedGpuUse
from dispatcher.outlets.batch.mirror import Mirror
from dispatcher.outlets.batch.provisioning import HostLoss
from dispatcher.outlets.batch.scheduler import JobState, Phase, Scheduler
from dispatcher.outlets.batch.sending import Sender
from dispatcher.outlets.batch.tracked import Stop, Tracked
from dispatcher.outlets.context import BatchTimes
from dispatcher.outlets.remote.operations import Failed, Operation, Read, Tail, TailRead
from dispatcher.outlets.wrapper import read_exit
from dispatcher.run_state.liveness import is_held

_TAIL_BYTES: Final = 2000
# Attempts in one call about details: some programs tell of one job at a time, and are started for each.
_MOST_DETAILED: Final = 200


class Watcher:
    """Asks how attempts are, all with one call, and concludes how those ended that the scheduler has let go.

    `sender` is told of submissions that the scheduler names, or surely does not know. `stop` (Stopper.ask) stops an
    attempt that the scheduler has preempted, or that has ended and cannot write its exit status for `lost_after_s`.
    `fence(keys)` marks attempts as superseded, also where they run: until `Tracked.marked_s` shows that this has
    worked, none of them counts as ended, because its job might be started anew. One that the scheduler may never have
    been given must not be named by it for `times.absent_s`. Of any other nothing must be known for `lost_after_s`
    before it is superseded; then it has `guard_s` to notice that, and counts as lost.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sender: Sender,
        stop: Callable[..., None],
        fence: Callable[[Sequence[Key]], None],
        *,
        times: BatchTimes,
        lost_after_s: float,
        guard_s: float,
        use: ReportedGpuUse,
    ) -> None:
        self._scheduler = scheduler
        self._sender = sender
        self._stop = stop
        self._fence = fence
        self._absent_s = times.absent_s
        self._lost_after_s = lost_after_s
        self._guard_s = guard_s
        self._use = use
        # The copies of attempts whose files are on the host alone.
        self._mirrors: dict[Key, Mirror] = {}
        self.problem = ""
        # Attempts that are to be asked about in detail.
        self._open: set[Key] = set()
        # What of an attempt's directory could not be read, by attempt.
        self._unread: dict[Key, str] = {}
        # Whether more of a log is to be fetched at once.
        self.has_more = False

    def forget(self, key: Key) -> None:
        self._open.discard(key)
        self._use.forget(key)
        self._mirrors.pop(key, None)

    def problem_of(self, key: Key) -> str:
        """Why it cannot be told how an attempt is; empty when it can."""
        copy = self._mirrors.get(key)
        problem = "" if copy is None else copy.problem
        return self.problem or self._unread.get(key, "") or problem or self._unwritten(key)

    def gpu_use(self, key: Key) -> GpuUse | None:
        """What it has told of its GPUs; None: unknown."""
        return self._use.of(key, boot_time_s())

    def conclude_lost(self, one: Tracked, loss: HostLoss) -> None:
        """End an attempt whose host is gone, with its own exit status if that has come home."""
        if (copy := self._mirrors.get(one.key)) is not None:
            copy.settle()
        found = read_exit(one.paths.directory)
        own = Ended(None) if isinstance(found, Unknown) else found
        if own.exit_code is None and not (one.is_known or self._has_begun(one)):
            one.end(Ended(None, one.stop.reason if one.stop else NOT_REACHED, error=loss.why, by_scheduler=True))
            return
        was_preempted = loss.reason == PREEMPTED
        told = JobState(phase=Phase.ENDED, why=loss.why, was_preempted=was_preempted)
        ended = self._asked_end(own, told, one.stop) if one.stop else end_of(own, told, has_begun=True)
        one.end(ended or Ended(None, error=loss.why))

    def has_questions(self) -> bool:
        """Whether details are to be asked for at once."""
        return bool(self._open) or self.has_more

    def steps(self, tracked: Mapping[Key, Tracked], *, is_due: bool) -> list[Step]:
        """What to ask now; `is_due`: the states of all."""
        steps = []
        if is_due:
            self._look_elsewhere(tracked)
            # Accounting lags: what was not known of an end may be known now.
            self._open |= {key for key, one in tracked.items() if one.was_detailed and not _is_end(one.detail)}
        asked = [tracked[key] for key in self._open if key in tracked and tracked[key].is_asked_about]
        # The others are asked about with the next call, which is due at once.
        details = asked[:_MOST_DETAILED]
        if details:
            steps.append(self._detail_step(details))
        if is_due or self.has_more:
            attempts = [one for one in tracked.values() if one.is_asked_about]
            if attempts and is_due:
                steps.append(self._query_step(attempts))
            if away := [one for one in attempts if one.is_away]:
                steps.append(self._read_step(away))
        return [*steps, *([Step((), lambda _: self._conclude_all(tracked))] if steps else [])]

    def _look_elsewhere(self, tracked: Mapping[Key, Tracked]) -> None:
        """Of attempts that this host does not know, only what they leave in the workspace tells anything."""
        for one in tracked.values():
            if one.elsewhere and not one.has_ended:
                with contextlib.suppress(StorageError):
                    own = self._own_end(one)
                    if own is not None and own.exit_code is not None:
                        one.end(end_of(own, None, has_begun=True) or own)

    def _query_step(self, attempts: list[Tracked]) -> Step:
        submitted = [one.submitted for one in attempts]
        return Step(self._scheduler.query(submitted), lambda answers: self._take_in_states(attempts, answers))

    def _take_in_states(self, attempts: list[Tracked], answers: Sequence[Any]) -> None:
        try:
            states = self._scheduler.states([one.submitted for one in attempts], answers)
        except OutletError as error:
            # That a question failed says nothing about any attempt.
            self.problem = str(error)
            return
        self.problem = ""
        now = time.monotonic()
        for one in attempts:
            state = states.get(one.key)
            if state is not None:
                if not one.is_known:
                    self._sender.found(one.name)
                one.see(state)
            elif one.absent_since_s is None:
                one.absent_since_s = now if self._has_begun(one) else now - one.given_before_s

    def _read_step(self, attempts: list[Tracked]) -> Step:
        mirrors = [self._mirrors.setdefault(one.key, Mirror(one.paths, one.directory)) for one in attempts]
        read = Read(looks=[one.look() for one in mirrors], names=mirror.NAMES)
        return Step([read], lambda answers: self._take_in_files(mirrors, answers[0]))

    def _take_in_files(self, mirrors: list[Mirror], answer: Any) -> None:
        if isinstance(answer, Failed):
            self.problem = answer.error
            return
        self.has_more = False
        for one, seen in zip(mirrors, answer.seen, strict=True):
            self.has_more |= one.take_in(seen)

    def _detail_step(self, attempts: list[Tracked]) -> Step:
        submitted = [one.submitted for one in attempts]
        asked = list(self._scheduler.detail(submitted))
        logs = [(one, log) for one in attempts if (log := self._scheduler.error_log(one.submitted))]
        tails: list[Operation] = [Tail(path=log, most_bytes=_TAIL_BYTES) for _, log in logs]

        def take_in(answers: Sequence[Any]) -> None:
            try:
                found = self._scheduler.details(submitted, answers[: len(asked)])
            except OutletError as error:
                # Asked again after the next states.
                self.problem = str(error)
                self._open.difference_update(one.key for one in attempts)
                return
            for one, tail in zip([one for one, _ in logs], answers[len(asked) :], strict=True):
                if isinstance(tail, TailRead) and tail.content:
                    one.tail = tail.content.decode(errors="replace").strip()
            for one in attempts:
                one.detail = found.get(one.key, one.detail)
                one.was_detailed = True
                self._open.discard(one.key)

        return Step([*asked, *tails], take_in)

    def _conclude_all(self, tracked: Mapping[Key, Tracked]) -> None:
        for one in tracked.values():
            if not one.has_ended and one.state is not None and one.state.host is not None:
                one.look_for_wrapper()
                self._use.look(one.key, one.paths.gpu_use, boot_time_s())
        # What failed above is no absence.
        if self.problem:
            return
        self._unread.clear()
        for one in tracked.values():
            if not one.has_ended:
                try:
                    if one.is_asked_about:
                        self._conclude(one, tracked)
                except StorageError as error:
                    # What its job has done to its directory concerns no other attempt.
                    self._unread[one.key] = str(error)

    def _conclude(self, one: Tracked, tracked: Mapping[Key, Tracked]) -> None:
        state = one.state if one.absent_since_s is None else None
        if state is not None and state.phase is not Phase.ENDED:
            if (
                state.was_preempted
                and one.stop is None
                and (state.phase is Phase.RUNNING or not files.is_missing(one.paths.taken))
            ):
                # Its grace period runs, of which the scheduler tells the job nothing; or it was put back in the queue,
                # where it would be started a second time.
                self._stop(one, PREEMPTED, by_scheduler=True)
            self._end_unwritten(one)
            if not ((one.is_packed or state.phase is Phase.UNKNOWN) and self._has_own_end(one)):
                return
        own = self._own_end(one)
        if own is None:
            return
        if own.exit_code is None and state is None and not one.is_known:
            self._never_seen(one, tracked)
            return
        # One that was told to stop by a dispatcher needs no explanation.
        if needs_detail(own) and not one.was_detailed and (own.exit_code is None or one.stop is None):
            self._open.add(one.key)
            return
        # A program that could not be asked for details does not change what was told before.
        told = one.detail if one.state is None or _is_end(one.detail) else one.state
        own = why_superseded(own, told)
        may_still_run = own.exit_code is None and told is not None and told.may_still_run
        if own.exit_code is None and not may_still_run and self._is_twin(one):
            return
        ended = (
            self._asked_end(own, told, one.stop)
            if one.stop
            else end_of(own, told, one.tail, has_begun=_was_taken(one), is_packed=one.is_packed)
        )
        if ended is not None and ended.exit_code is None and (unwritten := self._unwritten(one.key)):
            ended = msgspec.structs.replace(ended, error=unwritten)
        if ended is None or may_still_run:
            self._wait_for(one, own, ended)
        else:
            one.end(ended)

    def _unwritten(self, key: Key) -> str:
        copy = self._mirrors.get(key)
        return "" if copy is None else copy.unwritten

    def _end_unwritten(self, one: Tracked) -> None:
        """End a wrapper that only waits until it can write its exit status: TERM means nothing to it any more."""
        if not self._unwritten(one.key):
            return
        waits_s = time.monotonic() - self._mirrors[one.key].unwritten_since_s
        if one.stop is not None or waits_s >= self._lost_after_s:
            self._stop(one, "", force=True)

    def _has_own_end(self, one: Tracked) -> bool:
        """Whether the attempt has ended although its job goes on with another one."""
        own = self._own_end(one)
        return own is not None and own.exit_code is not None

    def _asked_end(self, own: Ended, told: JobState | None, stop: Stop) -> Ended | None:
        """The end of an attempt that was asked to stop: the scheduler's word for it is only our own request."""
        if own.exit_code is not None:
            # One of a pack is superseded, because the scheduler can only stop all of it. A signal may arrive before
            # the file that says why: SLURM sends its own when it preempts.
            is_ours = own.exit_reason == SUPERSEDED or (own.told_by_signal and not own.exit_reason)
            reason = (is_ours and stop.reason) or own.exit_reason
            # One that was done before it heard of it ended by itself.
            return msgspec.structs.replace(own, exit_reason=reason, by_scheduler=stop.by_scheduler and bool(reason))
        ended = end_of(own, told, has_begun=True)
        if ended is None:
            return None
        return msgspec.structs.replace(
            ended, exit_reason=stop.reason, by_scheduler=stop.by_scheduler or not stop.reason
        )

    def _own_end(self, one: Tracked) -> Ended | None:
        """Its own exit status, without one if there is none; None when that cannot be told yet."""
        if (copy := self._mirrors.get(one.key)) is not None and copy.is_waiting:
            return None
        own = read_exit(one.paths.directory)
        return None if isinstance(own, Unknown) else own

    def _never_seen(self, one: Tracked, tracked: Mapping[Key, Tracked]) -> None:
        """The scheduler answers and does not name an attempt that it may never have been given."""
        if self._has_begun(one):
            one.is_known = True
            return
        if one.absent_since_s is None or time.monotonic() - one.absent_since_s <= self._absent_s:
            return
        if not one.is_superseded:
            if self._submits_again(one, tracked):
                one.absent_since_s = None
                return
            self._fence([one.key])
        if one.marked_s is None:
            return
        # A wrapper takes its attempt before it looks whether that is superseded.
        if not _was_taken(one) and not self._has_begun(one):
            one.end(_never_submitted(one.stop))

    def _submits_again(self, one: Tracked, tracked: Mapping[Key, Tracked]) -> bool:
        """Whether this dispatcher has the submission, and it is still wanted."""
        if one.stop is None:
            return self._sender.absent(one.name)
        members = (other for other in tracked.values() if other.name == one.name and not other.has_ended)
        if any(other.stop is None for other in members):
            return self._sender.absent(one.name)
        self._sender.drop(one.name)
        return False

    def _has_begun(self, one: Tracked) -> bool:
        return one.handle is not None or not files.is_missing(one.paths.taken)

    def _is_twin(self, one: Tracked) -> bool:
        """Whether what has ended is a second run of an attempt whose first one is alive."""
        if not one.is_away:
            return is_held(one.paths.alive) is True
        copy = self._mirrors.get(one.key)
        return copy is not None and copy.is_alive is True

    def _wait_for(self, one: Tracked, own: Ended, ended: Ended | None) -> None:
        """Nothing tells surely that no process of it is left: it is superseded, and counts when that has had time."""
        now = time.monotonic()
        if not one.is_superseded:
            since_s = one.absent_since_s or now
            # What a person wants stopped need not wait for the scheduler to remember it.
            if ended is None and one.stop is None and now - since_s < self._lost_after_s:
                return
            self._fence([one.key])
        if one.marked_s is None:
            return
        # A wrapper takes its attempt before it looks whether that is superseded: one that was not taken is over.
        if now - one.marked_s >= self._guard_s or not _was_taken(one):
            one.end(ended or _forgotten(own))


def _forgotten(own: Ended) -> Ended:
    """The end of one without an exit status, of which the scheduler knows nothing any more."""
    if own.told_by_signal:
        # If a person has requested a state, the job takes that state.
        return msgspec.structs.replace(own, exit_reason=PREEMPTED, by_scheduler=True)
    return Ended(None, error="the scheduler does not know it any more")


def _was_taken(one: Tracked) -> bool:
    """Whether a wrapper has begun it; also where the attempt itself has removed its directory."""
    with contextlib.suppress(OSError):
        files.refresh_names(one.paths.directory)
    return not files.is_missing(one.paths.taken) or files.is_missing(one.paths.directory)


def _is_end(state: JobState | None) -> bool:
    return state is not None and state.phase is Phase.ENDED


def _never_submitted(stop: Stop | None) -> Ended:
    if stop is not None:
        return Ended(None, stop.reason, error="cancelled before the scheduler had accepted it", by_scheduler=True)
    error = "the scheduler has never had it: the call that was to submit it did not get so far, or its dispatcher died"
    return Ended(None, NOT_REACHED, error=error)
