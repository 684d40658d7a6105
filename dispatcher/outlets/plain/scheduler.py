"""A host without a scheduler, as the engine of batch outlets sees it.

A submission is a launch: the agent starts the wrapper, which then runs without a connection. A query tells for each
attempt whether a process of it lives. Attempts that ask for GPUs get such as nobody uses; while there are too few, they
wait, and the agent is asked again.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import OutletError
from dispatcher.hosts.types import Cluster, PlainHost
from dispatcher.outlets.base import Key, Request
from dispatcher.outlets.batch.scheduler import (
    Accepted,
    Doubtful,
    JobState,
    Limits,
    NoRoom,
    Refused,
    Submission,
    Submitted,
)
from dispatcher.outlets.plain.states import handle_of, state_of
from dispatcher.outlets.remote.agent.names import LAUNCH_LOG
from dispatcher.outlets.remote.operations import (
    Check,
    CheckResult,
    Failed,
    Launch,
    Launched,
    Operation,
    Signal,
    Signalled,
)

# The longest part of a log's name; a file name has 255 bytes at most.
_LONGEST_LABEL: Final = 60


class PlainScheduler:
    """One host. `root` is the workspace's root on this machine: where the host sees it too, logs stay in it."""

    programs: Sequence[str] = ("bash",)
    makes_arrays = False
    makes_packs = False

    def __init__(self, host: PlainHost, cluster: Cluster, root: Path) -> None:
        self._host = host
        self._cluster = cluster
        self._root = root

    def refuses(self, request: Request) -> str:
        if request.nodes > 1:
            return f"{self._host.name} is one machine, and {request.nodes} nodes are asked for"
        wanted = request.gpus or 0
        if request.chip and request.chip not in self._host.chips:
            return f"{self._host.name} has no {request.chip}" + _listed(self._host.chips)
        has = self._host.chips[request.chip] if request.chip else sum(self._host.chips.values())
        if wanted > has:
            return f"{self._host.name} has {has} GPUs, and {wanted} are asked for" + _listed(self._host.chips)
        return ""

    def scripts(self, submission: Submission) -> Mapping[str, bytes]:
        return {}

    def launcher(self, request: Request) -> Sequence[str]:
        return ()

    def submit(self, submission: Submission) -> Operation:
        """The launch of its attempt: without arrays a submission has one."""
        (bundle,), (directory,) = submission.bundles, submission.directories
        root = submission.layout.root
        return Launch(
            directory=directory,
            root=str(root),
            environment=bundle.environment,
            gpus=self._gpus(submission.request),
            only=visible_gpus(self._host),
            chip=submission.request.chip,
            chips=tuple(self._host.chips),
            log=self._log(bundle.labels),
            needs_shared_log=root == self._root,
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
        return {attempt.key: state_of(one) for attempt, one in found if one.was_launched or one.is_alive or one.error}

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

    def _gpus(self, request: Request) -> int:
        """An entry that does not say gets a GPU where there are some."""
        if request.gpus is not None:
            return request.gpus
        return 1 if self._host.chips else 0

    def _log(self, labels: Mapping[str, str]) -> str:
        """Where its log is to be: `LOG_DIR/{project}_{group}_{name}`, to which the agent adds the time."""
        if self._cluster.log is None:
            return ""
        words = [_as_file_name(labels[word]) for word in ("project", "group", "name") if word in labels]
        return posixpath.join(self._cluster.log, "_".join(words))


def visible_gpus(host: PlainHost) -> tuple[int, ...] | None:
    """The GPUs that a CUDA_VISIBLE_DEVICES in the host's `env` leaves; None: all."""
    words = [word.strip() for word in host.env.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return tuple(map(int, words)) if all(word.isdecimal() for word in words) else None


def _listed(chips: Mapping[str, int]) -> str:
    shown = ", ".join(f"{count} {chip}" for chip, count in chips.items())
    return f" (`chips` of the host: {shown or 'none'})"


def _as_file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", label)[:_LONGEST_LABEL].lstrip(".-") or "_"
