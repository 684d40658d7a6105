"""BasicJob: typed configuration, and one run of it on every process at once."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, Self, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from dispatcher.runtime.configuration import Config, checked, configuration, configure, current_config
from dispatcher.runtime.execution import ExecutionSpec, local
from dispatcher.runtime.metrics import json_number

C = TypeVar("C")

# One row of the results table.
Row = Mapping[str, "float | str"]

_RESULT: Final = "result.json"
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
        """Whether there is nothing left to do; then the job is skipped. The first process's answer counts for all."""
        return False

    def finish(self) -> None:
        """Called on every process when all of them have run; nothing by default."""

    def __call__(self) -> Row | None:
        """Skip if done, else: wait for all, run, wait for all, finish. The row of results, also of a job skipped."""
        with configuration(self._config or {}):
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

    def _run_once(self) -> Row | None:
        if _everywhere(self.done):
            _log.info("%s: done already, skipped", self.spec.name)
            return self._kept_row()
        self.sync("start")
        said = self.run()
        row = None if said is None else {name: _cell(value) for name, value in said.items()}
        if row is not None:
            with self.spec.result(_RESULT) as file:
                if file is not None:
                    json.dump(row, file, ensure_ascii=False)
        self.sync("end")
        self.finish()
        return row

    def _kept_row(self) -> Row | None:
        try:
            row: Row = json.loads(self.spec.result_path(_RESULT).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return row


def _cell(value: Any) -> float | str:
    return value if isinstance(value, (str, int)) else json_number(float(value))


def _everywhere(verdict: bool) -> bool:
    """The first process's verdict: files show late on other hosts, and one that skips alone would hang the rest."""
    if jax.process_count() == 1:
        return verdict
    return bool(multihost_utils.broadcast_one_to_all(np.array(verdict)))
