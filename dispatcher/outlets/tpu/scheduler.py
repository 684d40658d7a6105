"""A TPU VM as the engine of batch outlets sees it: launches, checks and signals on all its workers.

The road carries every operation to all workers and makes one answer of theirs. An attempt that asks for chips has the
VM to itself, because the workers' chips belong to one process each; one that asks for none runs beside others.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.errors import OutletError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.base import PREEMPTED, Key, Request
from dispatcher.outlets.batch.scheduler import (
    Accepted,
    Doubtful,
    JobState,
    Limits,
    NoRoom,
    Phase,
    Refused,
    Submission,
    Submitted,
)
from dispatcher.outlets.plain.states import handle_of, state_of
from dispatcher.outlets.remote.agent.names import LAUNCH_LOG
from dispatcher.outlets.remote.operations import (
    Check,
    Checked,
    CheckResult,
    Failed,
    Launch,
    Launched,
    Operation,
    Signal,
    Signalled,
)
from dispatcher.outlets.tpu.accelerator import refusal
from dispatcher.outlets.tpu.workers import EXCLUSIVE


class TpuScheduler:
    """The VM of one host."""

    programs: Sequence[str] = ("bash", "gcloud")
    makes_arrays = False
    makes_packs = False

    def __init__(self, host: TpuHost) -> None:
        self._host = host

    def refuses(self, request: Request) -> str:
        return refusal(self._host, request)

    def scripts(self, submission: Submission) -> Mapping[str, bytes]:
        return {}

    def launcher(self, request: Request) -> Sequence[str]:
        """The wrapper is started on every worker."""
        return ()

    def submit(self, submission: Submission) -> Operation:
        """The launch of its attempt: without arrays a submission has one."""
        (bundle,), (directory,) = submission.bundles, submission.directories
        return Launch(
            directory=directory,
            root=str(submission.layout.root),
            environment=bundle.environment,
            exclusive="" if submission.request.gpus == 0 else EXCLUSIVE,
        )

    def accepted(self, submission: Submission, answer: Any) -> Accepted | Refused | NoRoom | Doubtful:
        if isinstance(answer, Failed):
            return Refused(why=f"{self._host.name}: {answer.error}")
        if not isinstance(answer, Launched):
            raise OutletError(f"{self._host.name}: unexpected answer to a launch: {answer!r}")
        if answer.outcome == "no_room":
            return NoRoom(why=f"{self._host.name}: {answer.why}")
        return Accepted(handle=handle_of(answer.host, answer.pid))

    def query(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        return [Check(directories=[attempt.directory for attempt in attempts])]

    def states(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        (answer,) = answers
        if not isinstance(answer, CheckResult):
            raise OutletError(f"{self._host.name}: {getattr(answer, 'error', answer)}")
        found = zip(attempts, answer.attempts, strict=True)
        return {attempt.key: state for attempt, one in found if (state := self._state(attempt, one)) is not None}

    def detail(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        """Nothing is known beyond the states."""
        return ()

    def details(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        return {}

    def cancel(self, attempts: Sequence[Submitted], *, force: bool) -> Sequence[Operation]:
        return [Signal(directory=attempt.directory, force=force) for attempt in attempts]

    def cancelled(self, answer: Any) -> str:
        """That no process was there to be told is no failure."""
        return "" if isinstance(answer, Signalled) else f"{self._host.name}: {getattr(answer, 'error', answer)}"

    def error_log(self, attempt: Submitted) -> str:
        return posixpath.join(attempt.directory, LAUNCH_LOG)

    def limits_query(self) -> Sequence[Operation]:
        return ()

    def limits(self, answers: Sequence[Any]) -> Limits:
        return Limits()

    def _state(self, attempt: Submitted, one: Checked) -> JobState | None:
        """None: no trace of it is there, and it may never have been launched."""
        if one.was_launched or one.is_alive or one.error:
            state = state_of(one)
            # The workers are started together: one that was started anew has taken the attempt with it.
            was_preempted = one.was_rebooted and not one.has_exit and self._can_be_preempted()
            return msgspec.structs.replace(state, was_preempted=True) if was_preempted else state
        if attempt.handle is None:
            return None
        # It was accepted, and nothing removes what a launch leaves but a new disk.
        why = f"the TPU VM {self._host.name} was created anew while it ran"
        return JobState(phase=Phase.ENDED, why=why, reason=PREEMPTED if self._can_be_preempted() else "")

    def _can_be_preempted(self) -> bool:
        return self._host.spot or self._host.preemptible
