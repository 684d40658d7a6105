"""A TPU VM as the engine of batch outlets sees it: launches, checks and signals on all its workers.

The transport carries every operation to all workers and makes one answer of theirs. An attempt that asks for chips has
the VM to itself, because the workers' chips belong to one process each; one that asks for none runs beside others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.base import PREEMPTED, Request
from dispatcher.outlets.batch.scheduler import JobState, Phase, Submission, Submitted
from dispatcher.outlets.plain.launched import LaunchingScheduler
from dispatcher.outlets.remote.operations import Checked, Launch, Operation
from dispatcher.outlets.tpu.accelerator import refusal
from dispatcher.outlets.tpu.workers import EXCLUSIVE

# Set for every attempt on a TPU VM: by this a script knows that its chips are TPUs without loading what looks for them.
MODE: Final = "DISPATCHER_TPU_MODE"


class TpuScheduler(LaunchingScheduler):
    """The VM of one host."""

    programs: Sequence[str] = ("bash", "gcloud")

    def __init__(self, host: TpuHost) -> None:
        super().__init__(host.name)
        self._host = host

    def refuses(self, request: Request) -> str:
        return refusal(self._host, request)

    def submit(self, submission: Submission) -> Operation:
        """The launch of its attempt: without arrays a submission has one."""
        (bundle,), (directory,) = submission.bundles, submission.directories
        return Launch(
            directory=directory,
            root=str(submission.layout.root),
            environment={MODE: "1", **bundle.environment},
            exclusive="" if submission.request.gpus == 0 else EXCLUSIVE,
        )

    def _state(self, attempt: Submitted, one: Checked) -> JobState | None:
        state = super()._state(attempt, one)
        if state is not None:
            # The workers are started together: one that was started anew has taken the attempt with it.
            was_preempted = one.was_rebooted and not one.has_exit and self._can_be_preempted()
            return msgspec.structs.replace(state, was_preempted=True) if was_preempted else state
        if attempt.handle is None:
            return None
        # It was accepted, and nothing removes what a launch leaves but a new disk.
        why = f"the TPU VM {self._host.name} was recreated while it ran"
        return JobState(phase=Phase.ENDED, why=why, reason=PREEMPTED if self._can_be_preempted() else "")

    def _can_be_preempted(self) -> bool:
        return self._host.spot or self._host.preemptible
