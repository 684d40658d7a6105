"""BasicJob: typed configuration, and one run of it on every process at once."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Self, TypeVar

import jax
from jax.experimental import multihost_utils

from dispatcher.runtime import collectives
from dispatcher.runtime.configuration import Config, checked, configuration, configure, current_config
from dispatcher.runtime.execution import ExecutionSpec, local
from dispatcher.runtime.metrics import json_number
from dispatcher.runtime.run_lock import only_run

C = TypeVar("C")

# One row of the results table.
Row = Mapping[str, "float | str"]

RESULT: Final = "result.json"
_log = logging.getLogger(__name__)


class BasicJob(ABC, Generic[C]):
    """A job with a configuration of type C. The user writes `config` and `run`.

        @job("count/vowels")
        class CountVowels(BasicJob[Counting]):
            @classmethod
            def config(cls):
                return Counting

            def run(self):
                return {"vowels": sum(letter in self.args.vowels for letter in self.args.text)}

    It is made inside of a `configuration` block and then called, on all processes of the job alike; a call has that
    configuration in force again. `args` is its instance of C (of several dataclasses, the first), `spec` says where
    and as what the job runs.
    """

    def __init__(self, spec: ExecutionSpec) -> None:
        self.spec = spec
        self.args: C = configure(self.config_classes()[0])
        self._config = current_config()

    @classmethod
    @abstractmethod
    def config(cls) -> type[Any] | Sequence[type[Any]]:
        """The dataclass of the job's configuration, or several: the first is that of `args`."""

    @abstractmethod
    def run(self) -> Row | None:
        """Do the work, on every process; what the first one returns is the job's row of the results table.

        Names to text and numbers, also scalar arrays; `"NaN"` and `"Infinity"` are text there.
        """

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do; then the job is skipped. Asked on the first process, for all."""
        return False

    def finish(self) -> None:
        """Called on every process when all of them have run; nothing by default."""

    def wait(self) -> None:
        """Wait for what the job does in the background; nothing by default."""

    def __call__(self) -> Row | None:
        """Skip if done, else: wait for all, run, wait for all, finish. The row of results, also of a job skipped.

        UsageError when another process that was started by hand runs this name here.
        """
        with configuration(self._config or {}), only_run(self.spec):
            return self._run_once()

    def sync(self, moment: str) -> None:
        """Wait until what this process gave its devices is done, and until all processes are at this `moment`."""
        for array in jax.live_arrays():  # type: ignore[no-untyped-call]  # JAX says no types here
            if not array.is_deleted():
                array.block_until_ready()
        multihost_utils.sync_global_devices(f"{self.spec.name}:{moment}")

    def main_process(self) -> bool:
        """Whether this is the first process, the one that writes files."""
        return jax.process_index() == 0

    @classmethod
    def config_classes(cls) -> tuple[type[Any], ...]:
        """The dataclasses that `config` names."""
        said = cls.config()
        return tuple(said) if isinstance(said, Sequence) else (said,)

    @classmethod
    def checkpoint_classes(cls) -> tuple[type[Any], ...]:
        """Those of `config_classes` that a checkpoint has to say; a job that has any is always made from one."""
        return ()

    @classmethod
    def checked_config(
        cls, *layers: Config | Mapping[str, Any], where: str = "configuration", complete: bool = True
    ) -> Config:
        """The job's defaults with `layers` merged over them; ConfigError lists every fault. See `checked`."""
        return checked(cls.config_classes(), *layers, where=where, complete=complete)

    @classmethod
    def local(
        cls,
        root: str | os.PathLike[str],
        name: str = "local",
        project: str | None = None,
        group: str | None = None,
    ) -> Self:
        """The job on the devices that are there, with its files below `root`; inside of a `configuration` block."""
        return cls(local(root, name, project, group))

    def kept_row(self) -> Row | None:
        """The row that an earlier run of this job has left; None when there is none, or when it cannot be read."""
        path = self.spec.result_path(RESULT)
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: cannot be read: %s", path, error)
            return None
        return row if isinstance(row, dict) else None

    def _run_once(self) -> Row | None:
        # What the first process says counts: files show late on other hosts, and one that skips alone hangs the rest.
        if collectives.broadcast_result(lambda: bool(self.done)):
            _log.info("%s: done already, skipped", self.spec.name)
            kept: Row | None = collectives.broadcast_result(self.kept_row)
            return kept
        self.sync("start")
        said = self.run()
        # A row says that all is there.
        self.wait()
        row = None if said is None else {name: _cell(value) for name, value in said.items()}
        if row is not None:
            collectives.broadcast_result(lambda: self._write(row))
        self.sync("end")
        self.finish()
        return row

    def _write(self, row: Row) -> None:
        with self.spec.result(RESULT) as file:
            assert file is not None, "for the first process"
            json.dump(row, file, ensure_ascii=False)


def _cell(value: Any) -> float | str:
    return value if isinstance(value, (str, int)) else json_number(float(value))
