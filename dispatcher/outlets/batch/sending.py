"""Submissions on their way: grouped, delivered, given to the scheduler, and tried again when that is safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dispatcher.errors import OutletError, TemplateError
from dispatcher.outlets.base import CANNOT_START, Bundle, Ended, Key
from dispatcher.outlets.batch.agent_session import Step
from dispatcher.outlets.batch.backoff import SubmissionBackoff
from dispatcher.outlets.batch.grouping import submissions_of
from dispatcher.outlets.batch.scheduler import Accepted, Limits, NoRoom, Refused, Scheduler, Submission
from dispatcher.outlets.context import BatchTimes
from dispatcher.outlets.remote.operations import Deliver, Failed, Operation


class PendingSubmission:
    """One submission that is not known to the scheduler yet, or not all of it.

    `is_held`: it waits for its code. `is_tried`: the scheduler may have accepted it. `waits_for` is why the scheduler
    has no room for it now, and `not_before_s` when it is asked again.
    """

    def __init__(self, submission: Submission, operations: Sequence[Operation]) -> None:
        self.submission = submission
        self.operations = operations
        self.is_held = False
        self.is_tried = False
        self.waits_for = ""
        self.not_before_s = 0.0

    @property
    def is_ready(self) -> bool:
        return not (self.is_held or self.is_tried)


class Sender:
    """Gives submissions to the scheduler. `ended(key, how)` is told of attempts that cannot be submitted.

    `accepted(submission, handle)` is told of those that were. `room_again_s` is after how long a scheduler that had no
    room for a submission is given it again.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        submits_per_minute: int | None,
        accepted: Callable[[Submission, str], None],
        ended: Callable[[Key, Ended], None],
        *,
        room_again_s: float,
        times: BatchTimes,
    ) -> None:
        self._scheduler = scheduler
        self._per_minute = submits_per_minute
        self._accepted = accepted
        self._ended = ended
        self._room_again_s = room_again_s
        self._unsent: dict[str, PendingSubmission] = {}
        self.limits = Limits()
        self._backoff = SubmissionBackoff(times.refusal_pause_s)
        self._submitted_s: list[float] = []

    @property
    def problem(self) -> str:
        """Why nothing is submitted now, or was accepted last; empty when nothing is wrong."""
        return self._backoff.problem

    def group(self, bundles: Sequence[Bundle]) -> list[list[Bundle]]:
        """These bundles by submission."""
        return submissions_of(bundles, self.limits.array_size, makes_arrays=self._scheduler.makes_arrays)

    def add(self, submission: Submission, deliveries: Sequence[Operation], *, is_held: bool = False) -> None:
        """Submit these attempts after these deliveries; what cannot be rendered ends.

        `is_held`: not before `release`.
        """
        try:
            directory = str(submission.layout.submission_script(submission.name).parent)
            scripts = Deliver(directory=directory, files={}, shared=self._scheduler.scripts(submission))
            operations = [*deliveries, scripts, self._scheduler.submit(submission)]
        except (TemplateError, OutletError) as error:
            self._end(submission, str(error))
            return
        sending = self._unsent[submission.name] = PendingSubmission(submission, operations)
        sending.is_held = is_held

    def held(self, name: str) -> Submission | None:
        """The submission that is held under this name; None when it was withdrawn meanwhile."""
        sending = self._unsent.get(name)
        return sending.submission if sending is not None and sending.is_held else None

    def release(self, name: str, deliveries: Sequence[Operation]) -> None:
        """Submit one that was held, after these further deliveries."""
        sending = self._unsent[name]
        sending.is_held = False
        sending.operations = [*deliveries, *sending.operations]

    def give_up(self, name: str, why: str) -> None:
        """End the attempts of a submission that was held."""
        sending = self._unsent.pop(name, None)
        if sending is not None:
            self._end(sending.submission, why)

    def withdraw(self, name: str) -> Sequence[Bundle]:
        """Take a submission back that was not tried yet; its bundles, none when it is too late."""
        sending = self._unsent.get(name)
        if sending is None or sending.is_tried or sending.submission.accepted:
            return ()
        del self._unsent[name]
        return sending.submission.bundles

    def why_unsent(self, name: str) -> str | None:
        """Why this submission was not accepted yet, empty when it is on its way; None when none is left to be sent."""
        sending = self._unsent.get(name)
        return None if sending is None else self.problem or sending.waits_for

    def waiting_text(self) -> str:
        """How many submissions there is no room for, and why for the first one; empty for none."""
        reasons = [sending.waits_for for sending in self._unsent.values() if sending.waits_for]
        return f"{len(reasons)} waiting: {reasons[0]}" if reasons else ""

    def found(self, name: str) -> None:
        """The scheduler knows this one, although its answer was lost or doubtful."""
        sending = self._unsent.get(name)
        if sending is not None and not sending.submission.accepted:
            del self._unsent[name]
            self._backoff.accepted()

    def drop(self, name: str) -> None:
        """The scheduler surely does not know this one, and it is not wanted any more."""
        self._unsent.pop(name, None)

    def absent(self, name: str) -> bool:
        """The scheduler surely does not know it: it is submitted again, if this dispatcher has it. Whether it has."""
        sending = self._unsent.get(name)
        if sending is None:
            return False
        sending.is_tried = False
        return True

    def steps(self) -> list[Step]:
        """What is to be submitted now, with one call."""
        self._backoff.begin_call()
        return [self._step(sending) for sending in self._due()]

    def due_in_s(self) -> float | None:
        """Seconds until something is to be submitted; None when there is nothing."""
        waiting = [sending.not_before_s for sending in self._unsent.values() if sending.is_ready]
        if not waiting:
            return None
        now = time.monotonic()
        return max(0.0, min(waiting) - now, self._backoff.wait_s(now), self._rate_wait_s())

    def refresh(self) -> None:
        """When a pause is over and nothing waits that could be the test, something new may be."""
        if self.problem and not any(sending.is_ready or sending.is_tried for sending in self._unsent.values()):
            self._backoff.lift(time.monotonic())

    def _due(self) -> list[PendingSubmission]:
        now = time.monotonic()
        if self._backoff.wait_s(now) > 0 or self._rate_wait_s() > 0:
            return []
        waiting = [each for each in self._unsent.values() if each.is_ready and each.not_before_s <= now]
        most = self._backoff.most_at_once
        if self._per_minute is not None:
            most = min(most, max(1, self._per_minute - len(self._submitted_s)))
        return waiting[:most]

    def _rate_wait_s(self) -> float:
        """Seconds until the limit of submissions per minute allows another one."""
        if self._per_minute is None:
            return 0.0
        now = time.monotonic()
        self._submitted_s = [at for at in self._submitted_s if now - at < 60]
        return 0.0 if len(self._submitted_s) < self._per_minute else 60 - (now - self._submitted_s[0])

    def _step(self, sending: PendingSubmission) -> Step:
        sending.is_tried = True
        *deliveries, submit = sending.operations
        # What is incomplete is not submitted.
        operations = [*deliveries, msgspec.structs.replace(submit, only_after=len(deliveries))]
        self._submitted_s.append(time.monotonic())
        return Step(operations, lambda answers: self._take_in(sending, answers))

    def _take_in(self, sending: PendingSubmission, answers: Sequence[Any]) -> None:
        *deliveries, answer = answers
        failed = next((one for one in deliveries if isinstance(one, Failed)), None)
        if failed is not None:
            # So it was not submitted.
            self._refused(sending, Refused(why=failed.error))
            return
        meant = self._scheduler.accepted(sending.submission, answer)
        if isinstance(meant, Accepted):
            self._unsent.pop(sending.submission.name, None)
            self._backoff.accepted()
            self._accepted(sending.submission, meant.handle)
        elif isinstance(meant, Refused):
            self._refused(sending, meant)
        elif isinstance(meant, NoRoom):
            sending.submission = msgspec.structs.replace(sending.submission, accepted=meant.accepted)
            # What was delivered is there.
            sending.operations = [self._scheduler.submit(sending.submission)]
            sending.waits_for = meant.why
            sending.not_before_s = time.monotonic() + self._room_again_s
            sending.is_tried = False
        else:
            # It stays tried: the next answer of the scheduler shows whether it is there.
            self._backoff.doubted(meant.why)

    def _refused(self, sending: PendingSubmission, refused: Refused) -> None:
        # What an entry or a method says itself to the scheduler is no fault of the outlet.
        is_own = not refused.is_transient and sending.submission.request.has_own_options
        if not is_own:
            self._backoff.refused(refused.why, time.monotonic(), is_transient=refused.is_transient)
        if refused.is_transient:
            sending.is_tried = False
            return
        self._unsent.pop(sending.submission.name, None)
        self._end(sending.submission, refused.why, blames_host=not is_own)

    def _end(self, submission: Submission, why: str, *, blames_host: bool = True) -> None:
        for bundle in submission.bundles:
            self._ended(bundle.key, Ended(None, CANNOT_START, error=why, blames_host=blames_host))
