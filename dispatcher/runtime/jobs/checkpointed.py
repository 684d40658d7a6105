"""CheckpointedJob: pytrees saved and loaded by name, each with the job and the configuration that made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Generic, NoReturn, TypeVar

from dispatcher import contract
from dispatcher.base import yaml_text
from dispatcher.errors import UsageError
from dispatcher.runtime import collectives
from dispatcher.runtime.checkpoint import CheckpointManager, CheckpointRef, Contents, Restored, Retention
from dispatcher.runtime.checkpoint.storage import SCRATCH
from dispatcher.runtime.configuration import to_dict
from dispatcher.runtime.execution import ExecutionSpec
from dispatcher.runtime.jobs.basic import RESULT, BasicJob, Row
from dispatcher.runtime.places import layout
from dispatcher.runtime.preemption import BOUND_S, Preemption, watch
from dispatcher.runtime.registry import key_of, name_of

C = TypeVar("C")


class CheckpointedJob(BasicJob[C], Generic[C]):
    """A job that saves and loads pytrees. The user writes what a BasicJob asks for.

    Every operation has two forms: by `suffix`, for this job's own checkpoints (`project/group/name/suffix`), and
    `..._from_path`, for any below the checkpoints. All processes of a job call them together. Saving goes on in the
    background, one at a time; a call of the job ends when everything is committed. What goes on where it was:

        def run(self):
            state, step = self.begin(), 0
            resumed = self.resume(state)
            if resumed is not None:
                state, step = resumed.tree, resumed.ref.step
            while step < self.args.steps:
                state, step = self.update(state), step + 1
                leaving = self.preempted
                if leaving or step % 100 == 0 or step == self.args.steps:
                    self.save(f"step-{step:08d}", state, step=step, resumable=True)
                if leaving:
                    self.leave()

    A job that never asks whether it is `preempted` ends at once when it is told to leave, with what was saved last.
    """

    # How many seconds a job that asks `preempted` may take to save and leave; four fifths of kill_grace bound it too.
    PREEMPTION_S: float = BOUND_S

    def __init__(self, spec: ExecutionSpec) -> None:
        super().__init__(spec)
        self._managers: dict[str, CheckpointManager] = {}
        self._preemption: Preemption | None = None
        self._back_to: str | None = None

    @classmethod
    def model_classes(cls) -> tuple[type[Any], ...]:
        """Those of `config_classes` that say what a model computes, so that a checkpoint needs the same ones."""
        return ()

    def _run_once(self) -> Row | None:
        with watch() as preemption:
            self._preemption = preemption
            try:
                # Inside: what is being saved is committed before a signal ends the process.
                with self._committed():
                    if self._back_to is not None:
                        self._manager(self.path_of(self._back_to))[0].go_back(self._back_to)
                        if self.main_process():
                            # It tells of what came after, and a job with a row may count as done.
                            self.spec.result_path(RESULT).unlink(missing_ok=True)
                        # A later run of this object goes on from what this one saves.
                        self._back_to = None
                    return super()._run_once()
            finally:
                self._preemption = None

    def go_back(self, suffix: str) -> None:
        """Begin the next run at this job's own checkpoint `suffix`; what was saved after it is set aside then.

        Not before: only when it runs nobody else does under this name.
        """
        manager, name = self._manager(self.path_of(suffix))
        self._back_to = manager.find(name).name

    @property
    def preempted(self) -> bool:
        """Whether this job was told to leave (SIGTERM, or a scheduler's early warning): then save, and `leave`.

        From the first time that a job asks, a signal no longer ends it at once: it has PREEMPTION_S seconds. Of
        several processes all ask together, and all hear it when one of them was told.
        """
        if self._preemption is None:
            return False
        if not self._preemption.holding:
            self._preemption.hold(self.PREEMPTION_S)
        return any(collectives.all_gather(self._preemption.requested))

    def leave(self) -> NoReturn:
        """Wait until what was saved is committed, and exit with 75: the job goes back to the queue."""
        self.wait()
        raise SystemExit(contract.EXIT_PREEMPTED)

    def retention(self) -> Retention | None:
        """Which of the job's resumable checkpoints stay; by default the last three. What was not resumable stays."""
        return Retention()

    def save(self, suffix: str, pytree: Any, **how: Any) -> CheckpointRef:
        """Begin to save `pytree` as this job's `suffix`, in the place of an older one. See `save_from_path`."""
        return self.save_from_path(self.path_of(suffix), pytree, **how)

    def save_from_path(
        self,
        rel_path: str,
        pytree: Any,
        *,
        step: int = 0,
        metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        beside: Contents | None = None,
        resumable: bool = False,
    ) -> CheckpointRef:
        """Begin to save `pytree`, with the job and its configuration beside it.

        With `resumable` it becomes what `resume` and `latest` find. The rest is as CheckpointManager.save has it.
        """
        manager, name = self._manager(rel_path)
        return manager.save(
            pytree,
            step,
            name=name,
            metadata=metadata,
            metrics=metrics,
            beside=self.described(beside),
            resumable=resumable,
        )

    def resume(self, target: Any, *, partial: bool = False) -> Restored | None:
        """This job's latest checkpoint, as `load`; None when nothing was ever saved. See CheckpointManager.resume."""
        manager, _ = self._manager(self.path_of("latest"))
        return manager.resume(target, partial=partial)

    def load(self, suffix: str, target: Any, *, partial: bool = False) -> Restored:
        """This job's `suffix`, with `target`'s structure and on its devices. See CheckpointManager.load."""
        return self.load_from_path(self.path_of(suffix), target, partial=partial)

    def load_from_path(self, rel_path: str, target: Any, *, partial: bool = False) -> Restored:
        """As `load`, from any place below the checkpoints."""
        manager, name = self._manager(rel_path)
        manager.wait()
        return manager.load(target, manager.find(name), partial=partial)

    def contents(self, suffix: str) -> Contents:
        """What lies beside the arrays of this job's `suffix`: metadata, configuration, random state, position."""
        return self.contents_from_path(self.path_of(suffix))

    def contents_from_path(self, rel_path: str) -> Contents:
        """As `contents`, of any checkpoint below the checkpoints."""
        manager, name = self._manager(rel_path)
        manager.wait()
        return manager.contents(manager.find(name))

    def metadata(self, suffix: str) -> Mapping[str, Any]:
        """The metadata that this job's `suffix` was saved with."""
        return self.contents(suffix).metadata

    def metadata_from_path(self, rel_path: str) -> Mapping[str, Any]:
        """As `metadata`, of any checkpoint below the checkpoints."""
        return self.contents_from_path(rel_path).metadata

    def wait(self) -> None:
        """Wait until everything that was saved is committed; raises what went wrong with it."""
        for manager in self._managers.values():
            manager.wait()

    def path_of(self, suffix: str) -> str:
        """Where this job's `suffix` stands below the checkpoints: `project/group/name/suffix`."""
        return f"{self.spec.relative_path}/{suffix}"

    def described(self, beside: Contents | None = None) -> Contents:
        """`beside` with this job's key, place and configuration in it."""
        key = key_of(type(self))
        hardware = self.spec.hardware
        model: tuple[type, ...] = self.model_classes()
        job = {
            "job": key,
            "class": name_of(type(self)),
            "name": self.spec.name,
            "project": self.spec.project,
            "group": self.spec.group,
            "model_fields": sorted(layout(*model)),
            "hardware": {"chip": hardware.chip, "devices": hardware.devices, "processes": hardware.processes},
        }
        config = {} if self._config is None else to_dict(self._config)
        # With the key on top `dispatcher job run` takes the file as it is.
        text = yaml_text.dump({**({"job": key} if key else {}), **config})
        return replace(beside or Contents(), job=job, config=text)

    def _manager(self, rel_path: str) -> tuple[CheckpointManager, str]:
        """Who keeps the checkpoint at `rel_path`, and its name there."""
        series, name = place_of(rel_path, self.spec)
        if series not in self._managers:
            own = series == str(self.spec.relative_path)
            self._managers[series] = manager_at(series, self.spec, self.retention() if own else None)
        return self._managers[series], name

    @contextmanager
    def _committed(self) -> Iterator[None]:
        """Commit what the block saves, also when it ends with an error; such an error is not covered by another."""
        try:
            yield
        except BaseException as error:
            for manager in self._managers.values():
                manager.__exit__(type(error), error, error.__traceback__)
            raise
        for manager in self._managers.values():
            manager.close()


def place_of(rel_path: str, spec: ExecutionSpec) -> tuple[str, str]:
    """The series in which a checkpoint stands, as a path below the checkpoints, and its name in it."""
    path = PurePosixPath(rel_path)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2:
        raise UsageError(
            f"checkpoint {rel_path!r}: expected a path below {spec.hardware.cluster.checkpoints}, "
            "such as project/group/name/best"
        )
    own = spec.relative_path
    if path.is_relative_to(own) and path != own:
        return str(own), str(path.relative_to(own))
    return str(path.parent), path.name


def manager_at(series: str, spec: ExecutionSpec, retention: Retention | None = None) -> CheckpointManager:
    """The checkpoints in the folder `series` below those of the cluster."""
    cluster = spec.hardware.cluster
    # All processes of a job see its own directory; what is on its way to an object store is put together there.
    scratch = cluster.root / SCRATCH if spec.distributed else None
    return CheckpointManager(f"{cluster.checkpoints.rstrip('/')}/{series}", retention=retention, scratch=scratch)
