"""Jobs in a notebook.

from dispatcher.runtime.quick import quick

with quick("gpt/train/pretrain", "first-try", out_path="runs") as j:
    j.config.training.lr = 1e-4                   # checked on assignment
    j.restore("default/default/base/best")        # optional: start from a checkpoint
    j()
    j.save("config.yaml", chip="h100", n_chips=8)

Over several cells, without a `with` block:

j = quick("gpt/train/pretrain", "first-try").init()
...
j.close()
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from dispatcher.errors import UsageError
from dispatcher.runtime.configuration import Config, assigned, check, configuration
from dispatcher.runtime.execution import local
from dispatcher.runtime.job_file import ChipRequest, JobFile, write_job_file
from dispatcher.runtime.jobs.basic import BasicJob, Row
from dispatcher.runtime.launching import OUTPUT, file_config, make_job, workspace_root
from dispatcher.runtime.registry import find_job, import_jobs, key_of


class QuickJob:
    """A job in a notebook: assign to `config`, then call it.

    The job itself is made once, by `create` or by the first call; later assignments do not change it.
    """

    def __init__(
        self, cls: type[BasicJob[Any]], name: str, out_path: Path, project: str | None, group: str | None
    ) -> None:
        self.cls = cls
        self.config: Config = cls.checked_config(complete=False)
        self._where = (out_path, name, project, group)
        self._restore: str | None = None
        self._job: BasicJob[Any] | None = None
        self._in_force = ExitStack()

    def open(self) -> None:
        """Put `config` in force, until `close`."""
        self._in_force.enter_context(configuration(self.config))

    def close(self) -> None:
        """End what `open` or `quick(...).init()` has begun."""
        self._in_force.close()

    def restore(self, rel_path: str) -> None:
        """Start from this checkpoint, a path below the checkpoints; it also provides all settings not assigned here."""
        if self._job is not None:
            raise UsageError(f"{rel_path}: the job already exists: call restore() before create() or the first call")
        self._restore = rel_path

    def create(self, *, tensor_shards: int = 1) -> BasicJob[Any]:
        """The job; made on the first call. ConfigError lists every missing value."""
        if self._job is None:
            spec = local(*self._where, tensor_shards=tensor_shards)
            self._job = make_job(self.cls, spec, assigned(self.config), restore=self._restore)
        return self._job

    def __call__(self) -> Row | None:
        """Run the job; its row of results."""
        return self.create()()

    def save(
        self,
        path: str | os.PathLike[str],
        chip: str | None = None,
        n_chips: int | None = None,
        n_shards: int | None = None,
    ) -> Path:
        """Write key, configuration and requested hardware to `path`, for `dispatcher job run`; returns the path."""
        key = key_of(self.cls)
        if key is None:
            raise UsageError(f"{self.cls.__qualname__} has no key: decorate it with @job(key)")
        check(self.config, *self.cls.config_classes(), complete=False)
        request = ChipRequest(chip=chip, min_chips=n_chips, tensor_shards=n_shards)
        target = Path(path)
        document = file_config(self.cls, self.config, assigned(self.config))
        write_job_file(target, JobFile(job=key, config=document, request=request))
        return target


class Quick(AbstractContextManager[QuickJob]):
    """A QuickJob whose configuration is in force in a `with` block, or from `init` until its `close`."""

    def __init__(self, made: QuickJob) -> None:
        self._made = made

    def init(self) -> QuickJob:
        """The QuickJob without a `with` block; call its `close` at the end."""
        self._made.open()
        return self._made

    def __enter__(self) -> QuickJob:
        return self.init()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._made.close()


def quick(
    job: str | type[BasicJob[Any]],
    name: str,
    out_path: str | os.PathLike[str] | None = None,
    project: str | None = None,
    group: str | None = None,
) -> Quick:
    """A QuickJob of the class `job` (or of the class with that key); its configuration is in force in the block.

    Its files are below `out_path`, by default `runs` in the workspace.
    """
    if isinstance(job, str):
        import_jobs(workspace_root())
        job = find_job(job)
    assert isinstance(job, type)
    root = Path(out_path) if out_path is not None else workspace_root() / OUTPUT
    return Quick(QuickJob(job, name, root, project, group))
