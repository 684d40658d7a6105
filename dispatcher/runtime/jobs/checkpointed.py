"""CheckpointedJob: saves and loads pytrees by name, each with the job and the configuration that made it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from dispatcher import contract
from dispatcher.base import yaml_text
from dispatcher.checkpoints.storage import SCRATCH
from dispatcher.errors import CheckpointMismatchError, UsageError
from dispatcher.runtime import collectives
from dispatcher.runtime.checkpoint import CheckpointManager, CheckpointRef, Contents, Restored, Retention
from dispatcher.runtime.checkpoint.tree import Leaf
from dispatcher.runtime.configuration import to_dict
from dispatcher.runtime.execution import ExecutionSpec
from dispatcher.runtime.jobs.basic import BasicJob, Row
from dispatcher.runtime.jobs.saved_config import tell_changed_settings
from dispatcher.runtime.places import layout
from dispatcher.runtime.preemption import SAVE_TIMEOUT_S, Preemption, watch
from dispatcher.runtime.registry import key_of, name_of

C = TypeVar("C")


class CheckpointedJob(BasicJob[C], Generic[C]):
    """A job that saves and loads pytrees. The user writes the methods of a BasicJob.

    Every operation has two forms: by `suffix`, for this job's own checkpoints (`project/group/name/suffix`), and
    `..._from_path`, for any checkpoint. All processes of a job call them together. Saving happens in the background,
    one checkpoint at a time; a call of the job returns when everything is committed. A job that resumes:

        def run(self):
            state, step = self.begin(), 0
            resumed = self.resume(state)
            if resumed is not None:
                state, step = resumed.tree, resumed.ref.step
            while step < self.args.steps:
                state, step = self.update(state), step + 1
                preempted = self.preempted
                if preempted or step % 100 == 0 or step == self.args.steps:
                    self.save(f"step-{step:08d}", state, step=step, resumable=True)
                if preempted:
                    self.exit_preempted()

    A job that never reads `preempted` exits at once on a SIGTERM, with what it saved last.
    """

    # Seconds in which a job that reads `preempted` has to save and exit; four fifths of kill_grace if that is less.
    PREEMPTION_TIMEOUT_S: float = SAVE_TIMEOUT_S
    # Former names of arrays, or of the layers above them, by their names now: older checkpoints can still be loaded.
    RENAMED_FROM: ClassVar[Mapping[str, str]] = {}

    def __init__(self, spec: ExecutionSpec) -> None:
        super().__init__(spec)
        self._managers: dict[str, CheckpointManager] = {}
        self._preemption: Preemption | None = None
        self._rewind_to: str | None = None
        # Whether a resume goes on with data that differ from those of the checkpoint.
        self.accept_changes = False

    @classmethod
    def model_classes(cls) -> tuple[type[Any], ...]:
        """Those of `config_classes` that describe the model; a checkpoint has to have the same fields of them."""
        return ()

    def _run_once(self) -> Row | None:
        with watch() as preemption:
            self._preemption = preemption
            try:
                # Inside `watch`: a save in progress is committed before a signal ends the process.
                with self._committed():
                    if self._rewind_to is not None:
                        self._manager(self.path_of(self._rewind_to))[0].rewind(self._rewind_to)
                        if self.main_process():
                            # The row belongs to the later steps, and with one the job may count as done.
                            self.spec.result_path(contract.RESULT_FILE).unlink(missing_ok=True)
                        # A second call of this object resumes from what this one saves.
                        self._rewind_to = None
                    return super()._run_once()
            finally:
                self._preemption = None

    def rewind(self, suffix: str) -> None:
        """Resume the next run from this job's own checkpoint `suffix`; then later ones are moved to `set-aside/`.

        They are moved when it runs and no earlier: only then does it hold the lock of its name.
        """
        manager, name = self._manager(self.path_of(suffix))
        self._rewind_to = manager.find(name).name

    @property
    def preempted(self) -> bool:
        """Whether this job was preempted (SIGTERM, or a scheduler's early warning): save, then `exit_preempted`.

        After the first read a signal no longer ends the job at once: it has PREEMPTION_TIMEOUT_S seconds. Collective:
        true on all processes when any of them got a signal.
        """
        if self._preemption is None:
            return False
        if not self._preemption.exit_deferred:
            self._preemption.defer_exit(self.PREEMPTION_TIMEOUT_S)
        return any(collectives.all_gather(self._preemption.requested))

    def exit_preempted(self) -> NoReturn:
        """Wait until every save is committed, then exit with 75: the job is requeued."""
        self.wait()
        raise SystemExit(contract.EXIT_PREEMPTED)

    def retention(self) -> Retention | None:
        """Which of the job's resumable checkpoints are kept, by default the last three; all others are always kept."""
        return Retention()

    def save(self, suffix: str, pytree: Any, **how: Any) -> CheckpointRef:
        """Begin to save `pytree` as this job's `suffix`; it replaces an older one. See `save_from_path`."""
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
        """Begin to save `pytree` with the job and its configuration; `resume` and `latest` find it if `resumable`.

        For the other parameters see CheckpointManager.save.
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
        """Load this job's latest checkpoint; None when there is none. See CheckpointManager.resume.

        Settings that differ from the checkpoint's are logged.
        """
        manager, _ = self._manager(self.path_of("latest"))
        try:
            restored = manager.resume(target, partial=partial)
        except CheckpointMismatchError:
            # They say why: another optimizer, say, or another width.
            if (latest := manager.latest()) is not None:
                self._tell_changed_settings(manager.contents(latest), latest)
            raise
        if restored is not None:
            self._tell_changed_settings(restored.contents, restored.ref)
        return restored

    def _tell_changed_settings(self, saved: Contents, ref: CheckpointRef) -> None:
        if self._config is not None and self.main_process():
            tell_changed_settings(type(self), self._config, saved, ref.url)

    def load(self, suffix: str, target: Any, *, partial: bool = False) -> Restored:
        """Load this job's `suffix` with the structure and shardings of `target`. See CheckpointManager.load."""
        return self.load_from_path(self.path_of(suffix), target, partial=partial)

    def load_from_path(self, rel_path: str, target: Any, *, partial: bool = False) -> Restored:
        """As `load`, for any checkpoint."""
        manager, name = self._manager(rel_path)
        manager.wait()
        return manager.load(target, manager.find(name), partial=partial)

    def contents(self, suffix: str) -> Contents:
        """The contents of this job's `suffix` beside its arrays: metadata, configuration, random state, position."""
        return self.contents_from_path(self.path_of(suffix))

    def contents_from_path(self, rel_path: str) -> Contents:
        """As `contents`, for any checkpoint."""
        manager, name = self._manager(rel_path)
        manager.wait()
        return manager.contents(manager.find(name))

    def leaves_from_path(self, rel_path: str) -> Mapping[str, Leaf]:
        """The shapes and types of the tree in any checkpoint, by name, such as `model/dense/kernel`."""
        manager, name = self._manager(rel_path)
        manager.wait()
        return manager.leaves(manager.find(name))

    def metadata(self, suffix: str) -> Mapping[str, Any]:
        """The metadata of this job's `suffix`."""
        return self.contents(suffix).metadata

    def metadata_from_path(self, rel_path: str) -> Mapping[str, Any]:
        """As `metadata`, for any checkpoint."""
        return self.contents_from_path(rel_path).metadata

    def wait(self) -> None:
        """Wait until every save is committed; raises the errors of background saves."""
        for manager in self._managers.values():
            manager.wait()

    @property
    def saving(self) -> bool:
        """Whether a save of this process is still in progress."""
        return any(manager.saving for manager in self._managers.values())

    def path_of(self, suffix: str) -> str:
        """The path of this job's `suffix` below the checkpoints: `project/group/name/suffix`."""
        return f"{self.spec.relative_path}/{suffix}"

    def described(self, beside: Contents | None = None) -> Contents:
        """`beside` with this job's key, names, hardware and configuration."""
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
        # With the key on top, the file works with `dispatcher job run` unchanged.
        text = yaml_text.dump({**({"job": key} if key else {}), **config})
        return replace(beside or Contents(), job=job, config=text)

    def _manager(self, rel_path: str) -> tuple[CheckpointManager, str]:
        """The manager of the series that has the checkpoint `rel_path`, and the checkpoint's name in it."""
        series, name = place_of(rel_path, self.spec)
        if series not in self._managers:
            own = series == str(self.spec.relative_path)
            retention = self.retention() if own else None
            self._managers[series] = manager_at(series, self.spec, retention, self.RENAMED_FROM)
        return self._managers[series], name

    @contextmanager
    def _committed(self) -> Iterator[None]:
        """Commit what the block saves, also when it raises; its error is never replaced by one of the commit."""
        try:
            yield
        except BaseException as error:
            for manager in self._managers.values():
                manager.__exit__(type(error), error, error.__traceback__)
            raise
        for manager in self._managers.values():
            manager.close()


def place_of(rel_path: str, spec: ExecutionSpec) -> tuple[str, str]:
    """The series of a checkpoint, as a path below the checkpoints, and its name in the series."""
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


def manager_at(
    series: str,
    spec: ExecutionSpec,
    retention: Retention | None = None,
    renamed_from: Mapping[str, str] | None = None,
) -> CheckpointManager:
    """The manager of the checkpoints in `series`, a folder below the cluster's checkpoints."""
    cluster = spec.hardware.cluster
    # Several processes assemble an upload to an object store in a directory that all of them see.
    scratch = cluster.root / SCRATCH if spec.distributed else None
    return CheckpointManager(
        f"{cluster.checkpoints.rstrip('/')}/{series}", retention=retention, scratch=scratch, renamed_from=renamed_from
    )
