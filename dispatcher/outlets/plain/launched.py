"""What all hosts have in common whose attempts the agent launches, checks and signals itself, without a scheduler."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.errors import OutletError
from dispatcher.hosts.types import SlotType
from dispatcher.outlets.base import Key, Request
from dispatcher.outlets.batch.scheduler import (
    Accepted,
    Doubtful,
    JobState,
    Limits,
    LocationQuery,
    NoRoom,
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
    Launched,
    Operation,
    Signal,
    Signalled,
)


class LaunchingScheduler:
    """The part of a Scheduler that does not depend on the kind of host; `name` is what messages call the host.

    A kind adds `programs`, `refuses` and `submit`, which launches the one attempt of a submission.
    """

    makes_arrays = False
    makes_packs = False

    def __init__(self, name: str) -> None:
        self._name = name

    def default_gpus(self, request: Request) -> int:
        return 0

    def gpu_kind(self, request: Request) -> SlotType:
        return "cuda"

    def scripts(self, submission: Submission) -> Mapping[str, bytes]:
        return {}

    def launcher(self, request: Request) -> Sequence[str]:
        """The wrapper is started on every machine of the host."""
        return ()

    def accepted(self, submission: Submission, answer: Any) -> Accepted | Refused | NoRoom | Doubtful:
        if isinstance(answer, Failed):
            return Refused(why=f"{self._name}: {answer.error}")
        if not isinstance(answer, Launched):
            raise OutletError(f"{self._name}: unexpected answer to a launch: {answer!r}")
        if answer.outcome == "no_room":
            return NoRoom(why=f"{self._name}: {answer.why}")
        return Accepted(handle=handle_of(answer.host, answer.pid))

    def query(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        return [Check(directories=[one.directory for one in attempts])]

    def states(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        (answer,) = answers
        if not isinstance(answer, CheckResult):
            raise OutletError(f"{self._name}: {getattr(answer, 'error', answer)}")
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
        return "" if isinstance(answer, Signalled) else f"{self._name}: {getattr(answer, 'error', answer)}"

    def error_log(self, attempt: Submitted) -> str:
        return posixpath.join(attempt.directory, LAUNCH_LOG)

    def where(self) -> LocationQuery | None:
        """None: every call names the host."""
        return None

    def limits_query(self) -> Sequence[Operation]:
        return ()

    def limits(self, answers: Sequence[Any]) -> Limits:
        return Limits()

    def _state(self, attempt: Submitted, one: Checked) -> JobState | None:
        """None: no trace of it is there, and it may never have been launched."""
        return state_of(one) if one.was_launched or one.is_alive or one.error else None
