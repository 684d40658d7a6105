"""The fence before a commit: only the current attempt of a job may commit."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.host import host_name
from dispatcher.base.storing import storage_error, storing
from dispatcher.checkpoints import reported
from dispatcher.checkpoints.manifest import Manifest, seal_of
from dispatcher.checkpoints.retention import Retention
from dispatcher.errors import CheckpointError, SupersededError


@dataclass(frozen=True)
class Run:
    """The run that saves: an attempt of a job, or a process started by hand (`job` empty, `attempt` 0)."""

    id: str
    job: str
    attempt: int
    directory: Path | None
    root: Path | None = None

    @classmethod
    def current(cls) -> Run:
        """The run of this process, from the environment that the dispatcher sets."""
        directory = contract.attempt_dir()
        job, attempt = os.environ.get(contract.JOB_ID, ""), os.environ.get(contract.ATTEMPT, "")
        if directory is None or not job or not attempt.isdigit():
            return cls(_by_hand(), "", 0, None)
        root = os.environ.get(contract.ROOT)
        return cls(f"{job}/{attempt}", job, int(attempt), directory, Path(root) if root else None)

    def check(self, doing: str) -> None:
        """Raise a SupersededError when the attempt's directory marks it as superseded."""
        if self.directory is None:
            return
        mark = self.directory / contract.SUPERSEDED_FILE
        try:
            superseded = files.exists_fresh(mark)
        except FileNotFoundError:
            raise CheckpointError(
                f"{doing}: the attempt's directory {self.directory} is gone, so it is unknown whether attempt "
                f"{self.attempt} of {self.job} is still the current one; nothing was committed. Requeue the job"
            ) from None
        except OSError as error:
            raise storage_error(error, f"{doing}: cannot check for {mark}") from error
        if superseded:
            raise SupersededError(
                f"{doing}: attempt {self.attempt} of {self.job} was superseded ({mark} exists): a newer attempt "
                "continues from the last checkpoint. Nothing was committed; this attempt must stop"
            )

    def report(self, series: str, name: str, manifest: Manifest, retention: Retention | None) -> None:
        """Report to the dispatcher, if there is one, that the checkpoint `name` of `series` is committed."""
        if self.directory is None:
            return
        path = self.directory / contract.CHECKPOINT_FILE
        place = reported.seen_from(self.root, series)
        found = reported.Reported(manifest.step, place, name, seal_of(manifest), retention)
        with storing(f"{path}: cannot report to the dispatcher that step {manifest.step} is saved"):
            reported.write(self.directory, found)

    def is_superseded_by(self, job: str, attempt: int) -> bool:
        """Whether `attempt` of `job` is a newer attempt of this run's job."""
        return bool(self.job) and job == self.job and attempt > self.attempt


@cache
def _by_hand() -> str:
    return f"{host_name()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
