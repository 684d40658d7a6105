"""The fence before a commit: is this attempt still its entry's current one?"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dispatcher import contract
from dispatcher.base import files
from dispatcher.errors import CheckpointError, SupersededError
from dispatcher.runtime.storing import storage_error, storing


@dataclass(frozen=True)
class Run:
    """Who saves: an attempt of an entry, or (job empty, attempt 0) a process that somebody started by hand."""

    id: str
    job: str
    attempt: int
    directory: Path | None

    @classmethod
    def current(cls) -> Run:
        """The run that this process belongs to, from the environment that the dispatcher gives."""
        directory = contract.attempt_dir()
        job, attempt = os.environ.get(contract.JOB_ID, ""), os.environ.get(contract.ATTEMPT, "")
        if directory is None or not job or not attempt.isdigit():
            return cls(_by_hand(), "", 0, None)
        return cls(f"{job}/{attempt}", job, int(attempt), directory)

    def check(self, doing: str) -> None:
        """Raise a SupersededError unless the attempt is still current, as far as its directory says."""
        if self.directory is None:
            return
        sign = self.directory / contract.SUPERSEDED_FILE
        try:
            superseded = files.exists_fresh(sign)
        except FileNotFoundError:
            raise CheckpointError(
                f"{doing}: the attempt's directory {self.directory} is gone, so nobody can say whether attempt "
                f"{self.attempt} of {self.job} is still the current one; nothing was committed. Requeue the entry"
            ) from None
        except OSError as error:
            raise storage_error(error, f"{doing}: cannot look for {sign}") from error
        if superseded:
            raise SupersededError(
                f"{doing}: attempt {self.attempt} of {self.job} was superseded ({sign} exists): the entry was given "
                "to a newer attempt, which goes on from the last checkpoint. Nothing was committed; this one must stop"
            )

    def report(self, step: int) -> None:
        """Tell the dispatcher, where there is one, that a checkpoint of `step` is committed from which to go on."""
        if self.directory is None:
            return
        path = self.directory / contract.CHECKPOINT_FILE
        with storing(f"{path}: the dispatcher is not told that step {step} is saved"):
            contract.write_json(path, {"step": step})

    def outrun_by(self, job: str, attempt: int) -> bool:
        """Whether `attempt` of `job` is a newer attempt of the entry that this run belongs to."""
        return bool(self.job) and job == self.job and attempt > self.attempt


@cache
def _by_hand() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
