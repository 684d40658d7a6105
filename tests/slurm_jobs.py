"""Submissions to SLURM made by hand, for tests of the scheduler without the engine that calls it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beds.bed import wait_for
from beds.slurm import SlurmBed

from dispatcher import contract
from dispatcher.hosts.types import Hosts, SlurmHost
from dispatcher.outlets.base import Bundle, Key, Request, Slot
from dispatcher.outlets.batch.scheduler import Accepted, JobState, Phase, Submission, Submitted
from dispatcher.outlets.remote.agent import programs
from dispatcher.outlets.remote.operations import Operation, Ran, Run
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.workspace import Layout


def submission(
    root: Path, name: str, count: int = 1, *, request: Request | None = None, groups: Sequence[Sequence[int]] = (),
    time_limit_s: float | None = None,
) -> Submission:  # fmt: skip
    """`count` attempts of the jobs `j0`, `j1` ... in the workspace at `root`."""
    layout = Layout(root)
    request = request or Request(gpus=0)
    keys = [Key(f"j{index}", 1) for index in range(count)]
    return Submission(
        name=name,
        bundles=tuple(Bundle(key=key, request=request, slot=Slot(), files={}) for key in keys),
        directories=tuple(str(layout.attempt(key.job_id, key.number).directory) for key in keys),
        layout=layout,
        request=request,
        time_limit_s=time_limit_s,
        groups=tuple(map(tuple, groups)) if groups else tuple((index,) for index in range(count)),
    )


class Jobs:
    """A scheduler, the host that it is for, and what was submitted."""

    def __init__(self, bed: SlurmBed, root: Path, *, user: str | None = None, grace_s: float = 5, **keys: Any) -> None:
        self.bed = bed
        self.root = root
        self.user = user
        self.host = SlurmHost(name="hpc", cluster="hpc", **{"slot_type": "cpu", **keys})
        self.scheduler = SlurmScheduler(self.host, Hosts(hosts={"hpc": self.host}), Layout(root), grace_s)
        self.attempts: dict[Key, Submitted] = {}

    def submit(self, name: str, *commands: str, **words: Any) -> str:
        """Submit attempts whose wrappers are these shell commands; the handle."""
        given = submission(self.root, name, len(commands), **words)
        for directory, command in zip(given.directories, commands, strict=True):
            Path(directory).mkdir(parents=True)
            Path(directory, contract.WRAPPER_FILE).write_text(f'cd -- "$DISPATCHER_ATTEMPT_DIR"\n{command}\n')
        for path, content in self.scheduler.scripts(given).items():
            Path(path).parent.mkdir(parents=True)
            Path(path).write_bytes(content)
        self.open_to_all()
        accepted = self.scheduler.accepted(given, self.carry_out(self.scheduler.submit(given)))
        assert isinstance(accepted, Accepted), accepted
        for index, group in enumerate(given.groups):
            for member in group:
                key = given.bundles[member].key
                self.attempts[key] = Submitted(
                    key=key, name=name, index=index, directory=given.directories[member], handle=accepted.handle
                )
        return accepted.handle

    def open_to_all(self) -> None:
        """An ordinary user writes here, too."""
        for directory, _, _ in os.walk(self.root):
            os.chmod(directory, 0o777)

    def directory(self, job: str) -> Path:
        return Path(self.attempts[Key(job, 1)].directory)

    def carry_out(self, operation: Operation) -> Ran:
        assert isinstance(operation, Run)
        words = list(operation.words)
        if self.user is not None:
            words = self.bed.command(*words, user=self.user)
        found = programs.run(
            {
                "words": words,
                "stdin": operation.stdin,
                "environment": {**operation.environment, **self.bed.env},
                "directory": operation.directory,
                "timeout_s": operation.timeout_s,
            },
            None,
        )
        return Ran(**found)

    def states(self) -> Mapping[Key, JobState]:
        attempts = list(self.attempts.values())
        return self.scheduler.states(attempts, [self.carry_out(one) for one in self.scheduler.query(attempts)])

    def details(self) -> Mapping[Key, JobState]:
        attempts = list(self.attempts.values())
        return self.scheduler.details(attempts, [self.carry_out(one) for one in self.scheduler.detail(attempts)])

    def state(self, job: str = "j0") -> JobState | None:
        return self.states().get(Key(job, 1))

    def wait(self, phase: Phase, job: str = "j0", limit_s: float = 40) -> JobState:
        """The state of a job as soon as it is in this phase."""
        seen: list[JobState | None] = []

        def is_there() -> bool:
            seen.append(self.state(job))
            return seen[-1] is not None and seen[-1].phase is phase

        # Each look is a run of squeue.
        wait_for(
            is_there, lambda: f"{job} to be {phase.value}: {seen[-1]}\n{self.log(job)}", limit_s=limit_s, every_s=0.1
        )
        found = seen[-1]
        assert found is not None
        return found

    def cancel(self, *jobs: str, force: bool = False) -> None:
        attempts = [self.attempts[Key(job, 1)] for job in jobs]
        for operation in self.scheduler.cancel(attempts, force=force):
            assert self.scheduler.cancelled(self.carry_out(operation)) == ""

    def log(self, job: str) -> str:
        """What the batch script itself has printed."""
        path = Path(self.scheduler.error_log(self.attempts[Key(job, 1)]))
        return path.read_text() if path.exists() else ""
