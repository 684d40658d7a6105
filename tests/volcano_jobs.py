"""Submissions to Volcano made by hand, for tests of the scheduler without the engine and the helper that it uses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from beds.bed import wait_for
from beds.volcano import VolcanoBed
from slurm_jobs import submission

from dispatcher import contract
from dispatcher.errors import OutletError
from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.base import Key
from dispatcher.outlets.batch.scheduler import (
    Accepted,
    Doubtful,
    JobState,
    NoRoom,
    Phase,
    Refused,
    Submission,
    Submitted,
)
from dispatcher.outlets.remote.agent import programs
from dispatcher.outlets.remote.operations import Operation, Ran, Run
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout

# The volume in Kubernetes pods, and the workspace on it; its name has what shells and Kubernetes give a meaning.
MOUNT = "/data"
ROOT = PurePosixPath(MOUNT) / "a'; echo foo $(HOME) $$"
NAME = "d-0123456789ab-0123456789"


def make_host(**keys: Any) -> VolcanoHost:
    return VolcanoHost(
        **{"name": "k", "cluster": "k", "image": "img", "pvc_name": "data", "pvc_mount_path": MOUNT, **keys}
    )


def make_submission(name: str = NAME, count: int = 1, **words: Any) -> Submission:
    """`count` attempts whose environments are those that bundles have."""
    given = submission(Path(ROOT), name, count, **words)
    bundles = tuple(
        msgspec.structs.replace(bundle, environment={contract.ATTEMPT_DIR: directory})
        for bundle, directory in zip(given.bundles, given.directories, strict=True)
    )
    return msgspec.structs.replace(given, bundles=bundles)


class VolcanoJobs:
    """A scheduler, the host that it is for, and what was submitted. `layout` is the workspace of the dispatcher."""

    def __init__(self, bed: VolcanoBed, layout: Path, *, grace_s: float = 2, **keys: Any) -> None:
        self.bed = bed
        self.volume = Path(bed.make_volume("data"))
        self.host = make_host(namespace=bed.namespace, kubeconfig=str(bed.kubeconfig), **keys)
        self.scheduler = VolcanoScheduler(self.host, Layout(layout), grace_s)
        self.attempts: dict[Key, Submitted] = {}

    def there(self, path: str | os.PathLike[str]) -> Path:
        """Where this process finds a file of the volume."""
        return self.volume / PurePosixPath(path).relative_to(MOUNT)

    def prepare(self, name: str, *commands: str, **words: Any) -> Submission:
        """Attempts whose wrappers are these shell commands, delivered but not submitted."""
        given = make_submission(name, len(commands), **words)
        for directory, command in zip(given.directories, commands, strict=True):
            self.there(directory).mkdir(parents=True)
            wrapper = f'cd -- "$DISPATCHER_ATTEMPT_DIR"\n{command}\n'
            self.there(directory).joinpath(contract.WRAPPER_FILE).write_text(wrapper)
        for path, content in self.scheduler.scripts(given).items():
            self.there(path).parent.mkdir(parents=True, exist_ok=True)
            self.there(path).write_bytes(content)
        return given

    def send(self, given: Submission) -> Accepted | Refused | NoRoom | Doubtful:
        return self.scheduler.accepted(given, self.carry_out(self.scheduler.submit(given)))

    def submit(self, *commands: str, name: str = NAME, **words: Any) -> None:
        given = self.prepare(name, *commands, **words)
        accepted = self.send(given)
        assert isinstance(accepted, Accepted), accepted
        self.follow(given)

    def follow(self, given: Submission) -> None:
        for index, bundle in enumerate(given.bundles):
            self.attempts[bundle.key] = Submitted(
                key=bundle.key, name=given.name, index=index, directory=given.directories[index]
            )

    def job(self, job: str = "j0") -> str:
        attempt = self.attempts[Key(job, 1)]
        return f"{attempt.name}-{attempt.index}"

    def pod(self, index: int = 0, job: str = "j0") -> str:
        return f"{self.job(job)}-worker-{index}"

    def file(self, name: str, job: str = "j0") -> Path:
        """A file of the attempt's directory."""
        return self.there(self.attempts[Key(job, 1)].directory) / name

    def carry_out(self, operation: Operation) -> Ran:
        assert isinstance(operation, Run)
        found = programs.run(
            {
                "words": list(operation.words),
                "stdin": operation.stdin,
                "environment": dict(operation.environment),
                "directory": operation.directory,
                "timeout_s": operation.timeout_s,
            },
            None,  # type: ignore[arg-type]
        )
        return Ran(**found)

    def states(self) -> Mapping[Key, JobState]:
        attempts = list(self.attempts.values())
        return self.scheduler.states(attempts, [self.carry_out(one) for one in self.scheduler.query(attempts)])

    def state(self, job: str = "j0") -> JobState | None:
        return self.states().get(Key(job, 1))

    def details(self, job: str = "j0") -> JobState:
        attempts = list(self.attempts.values())
        answers = [self.carry_out(one) for one in self.scheduler.detail(attempts)]
        return self.scheduler.details(attempts, answers)[Key(job, 1)]

    def wait(self, phase: Phase | None, why: str = "", job: str = "j0", limit_s: float = 150) -> JobState:
        """The state of an attempt as soon as it is in this phase (None: nothing is left of it), with this in `why`.

        A question without an answer proves nothing, here as in a dispatcher.
        """
        seen: list[JobState | OutletError | None] = [None]
        known: list[object] = []

        def is_there() -> bool:
            # The bed's own look is cheap, and a program of kubectl is not.
            if known[-1:] == [now := self.bed.revisions()]:
                return False
            known.append(now)
            try:
                one = self.state(job)
            except OutletError as error:
                seen.append(error)
                known.clear()
                return False
            seen.append(one)
            return one is None if phase is None else one is not None and one.phase is phase and why in one.why

        wait_for(
            is_there,
            lambda: f"{job} to be {phase} {why!r}: {seen[-1]}\n{self.bed.tell(self.job(job))}",
            limit_s=limit_s,
        )
        found = seen[-1]
        return found if isinstance(found, JobState) else JobState(phase=Phase.UNKNOWN)

    def wait_for_file(self, name: str, job: str = "j0") -> str:
        """The content of a file of the attempt's directory as soon as it is there."""
        path = self.file(name, job)
        wait_for(path.exists, lambda: f"{path}: {self.state(job)}\n{self.bed.tell(self.job(job))}", limit_s=150)
        return path.read_text()

    def cancel(self, *jobs: str, force: bool = False) -> None:
        attempts = [self.attempts[Key(job, 1)] for job in jobs]
        for operation in self.scheduler.cancel(attempts, force=force):
            assert self.scheduler.cancelled(self.carry_out(operation)) == ""
