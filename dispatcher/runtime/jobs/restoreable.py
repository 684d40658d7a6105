"""RestoreableJob: a job that can be restored from a checkpoint."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from dispatcher.base.values import shown
from dispatcher.checkpoints.storage import LATEST, is_url, normal
from dispatcher.errors import CheckpointError, UsageError, nearest
from dispatcher.runtime import collectives
from dispatcher.runtime.checkpoint import CheckpointRef, Contents, Restored
from dispatcher.runtime.configuration import Config, check, configuration, defaults, merge, with_new_names
from dispatcher.runtime.execution import ExecutionSpec
from dispatcher.runtime.jobs.checkpointed import CheckpointedJob, manager_at, place_of
from dispatcher.runtime.jobs.saved_config import check_fields, warn_of_differences
from dispatcher.runtime.registry import find_job

C = TypeVar("C")


class RestoreableJob(CheckpointedJob[C], Generic[C]):
    """A job that starts from a checkpoint. The user writes `restore_from_path` beside the methods of a BasicJob:

    def restore_from_path(self, rel_path):
        self.state = self.load_from_path(rel_path, self.state).tree
    """

    @abstractmethod
    def restore_from_path(self, rel_path: str) -> None:
        """Restore the checkpoint at `rel_path`, a path below the checkpoints. Collective."""

    def restore(self, suffix: str) -> None:
        """Restore this job's own checkpoint `suffix`."""
        self.restore_from_path(self.path_of(suffix))

    def register(self, suffix: str) -> CheckpointRef:
        """Make this job's `suffix` its latest checkpoint, atomically. Collective."""
        manager, name = self._manager(self.path_of(suffix))
        return manager.register(name)

    @classmethod
    def latest(cls, spec: ExecutionSpec) -> CheckpointRef | None:
        """The checkpoint from which a job with this `spec` would resume; its `name` is the suffix. None without one."""
        with manager_at(str(spec.relative_path), spec) as manager:
            return manager.latest()

    @classmethod
    def checkpoints(cls, spec: ExecutionSpec) -> list[CheckpointRef]:
        """All committed checkpoints of a job with this `spec`, oldest first."""
        with manager_at(str(spec.relative_path), spec) as manager:
            return manager.checkpoints()

    @classmethod
    def from_checkpoint(
        cls, suffix: str, spec: ExecutionSpec, runtime_cfg: Config | Mapping[str, Any] | None = None
    ) -> Self:
        """As `from_checkpoint_path`, for the `suffix` of the job with this `spec`."""
        return cls.from_checkpoint_path(f"{spec.relative_path}/{suffix}", spec, runtime_cfg)

    @classmethod
    def from_checkpoint_path(
        cls, rel_path: str, spec: ExecutionSpec, runtime_cfg: Config | Mapping[str, Any] | None = None
    ) -> Self:
        """A job restored from the checkpoint at `rel_path`, with its configuration and `runtime_cfg` merged over it.

        The name `latest` means the run's latest checkpoint now.

        Its class is the one that saved the checkpoint if that is `cls` or a subclass, else `cls`: a job may start from
        another job's checkpoint. ConfigError when the checkpoint's configuration has values of the model (or of the
        job, if the same class saved it) that no field reads any more: see `renamed_from` of `field`.
        """
        rel_path = _named(rel_path, spec)
        saved, where = _contents_at(rel_path, spec)
        made_by = cls._class_for(saved, where)
        if saved.config is None:
            raise CheckpointError(f"{where}: there is no config.yaml in it, so no job can be made from it")
        config = check_fields(made_by, saved, where)
        kinds = made_by.config_classes()
        document = merge(merge(defaults(*kinds), config), with_new_names(runtime_cfg or {}, *kinds))
        # Keys that only the job that saved it knows are not faults.
        check(document, *kinds, where=f"{where}/config.yaml and the overrides", known=config)
        with configuration(document):
            made = made_by(spec)
            made.restore_from_path(rel_path)
        return made

    def check_model(self, restored: Restored) -> None:
        """Raise a ConfigError when the restored model has other configuration fields; other values are logged."""
        config = check_fields(type(self), restored.contents, restored.ref.url, model_only=True)
        warn_of_differences(type(self), self._config or {}, config, restored.ref.url)

    @classmethod
    def _class_for(cls, saved: Contents, where: str) -> type[Self]:
        """The class that saved a checkpoint if it is `cls` or a subclass, else `cls`."""
        key = (saved.job or {}).get("job")
        abstract = inspect.isabstract(cls)
        if key is None:
            if abstract:
                raise UsageError(f"{where}/job.json names no job: call this on a concrete job class")
            return cls
        if not isinstance(key, str):
            raise CheckpointError(f"{where}/job.json: job = {shown(key)}: expected the key of a job, or null")
        try:
            found = find_job(key)
        except UsageError:
            # The code of the job that saved the checkpoint may be absent.
            if abstract:
                raise
            return cls
        if isinstance(found, type) and issubclass(found, cls):
            return found
        if abstract:
            raise UsageError(f"{where} was saved by the job {key!r}, which is not a {cls.__qualname__}")
        return cls


def _contents_at(rel_path: str, spec: ExecutionSpec) -> tuple[Contents, str]:
    series, name = place_of(rel_path, spec)
    if not is_url(spec.hardware.cluster.checkpoints):
        _check_folder(Path(normal(spec.hardware.cluster.checkpoints)), series, name)
    with manager_at(series, spec) as manager:
        ref = manager.find(name)
        return manager.contents(ref), ref.url


def _named(rel_path: str, spec: ExecutionSpec) -> str:
    """`rel_path`, with the name of a checkpoint in place of `latest`: the same on all processes, and from now on."""
    series, name = place_of(rel_path, spec)
    if name != LATEST:
        return rel_path

    def latest() -> str | None:
        with manager_at(series, spec) as manager:
            found = manager.latest()
            return None if found is None else found.name

    found = collectives.broadcast_result(latest)
    return rel_path if found is None else f"{series}/{found}"


def _check_folder(checkpoints: Path, series: str, name: str) -> None:
    """CheckpointError for a path that cannot be that of a checkpoint, with what was most likely meant."""
    folder = checkpoints / series
    if not folder.is_dir():
        beside = sorted(path.name for path in folder.parent.glob("*/"))
        raise CheckpointError(
            f"{folder}: no checkpoints there{nearest(folder.name, beside)}: expected a path below {checkpoints}, such "
            "as project/group/name/best"
        )
    if (folder / name / LATEST).is_file():
        raise CheckpointError(
            f"{folder / name} is a run: add the name of a checkpoint, such as {series}/{name}/{LATEST}"
        )
