"""BasicJob: a typed configuration, and a run on all processes."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import jax
from jax.experimental import multihost_utils

from dispatcher import contract
from dispatcher.errors import UsageError
from dispatcher.runtime import collectives
from dispatcher.runtime.configuration import Config, checked, configuration, configure, current_config
from dispatcher.runtime.execution import ExecutionSpec, local
from dispatcher.runtime.run_lock import only_run

C = TypeVar("C")

# One row of the results table.
Row = Mapping[str, "float | str | None"]

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

    It is made inside a `configuration` block and then called, on all processes of the job; during the call that
    configuration is in force again. `args` is its instance of C (of several dataclasses, the first), `spec` holds its
    name, devices and directories.
    """

    def __init__(self, spec: ExecutionSpec) -> None:
        self.spec = spec
        self.args: C = configure(self.config_classes()[0])
        self._config = current_config()

    @classmethod
    @abstractmethod
    def config(cls) -> type[Any] | Sequence[type[Any]]:
        """The dataclass of the job's configuration, or several, the first of which is that of `args`."""

    @abstractmethod
    def run(self) -> Row | None:
        """Do the work, on every process; process 0 returns the job's row of the results table.

        A row maps names to text, numbers or scalar arrays; NaN and infinities are reported as null.
        """

    @property
    def done(self) -> bool:
        """Whether the job is complete, so that a call skips `run`. Evaluated on process 0, for all."""
        return False

    def finish(self) -> None:
        """Called on every process after all of them have run; does nothing by default."""

    def wait(self) -> None:
        """Wait for background work; does nothing by default."""

    def __call__(self) -> Row | None:
        """Run the job on all processes unless it is `done`; the row of results in both cases.

        UsageError when a job of the same name is already running outside a dispatcher.
        """
        with configuration(self._config or {}), only_run(self.spec):
            return self._run_once()

    def sync(self, name: str) -> None:
        """Barrier `name`: wait for this process's devices and for all processes."""
        for array in jax.live_arrays():  # type: ignore[no-untyped-call]  # untyped in JAX
            if not array.is_deleted():
                array.block_until_ready()
        multihost_utils.sync_global_devices(f"{self.spec.name}:{name}")

    def main_process(self) -> bool:
        """Whether this is process 0, which writes files."""
        return jax.process_index() == 0

    @classmethod
    def config_classes(cls) -> tuple[type[Any], ...]:
        """The dataclasses that `config` returns."""
        classes = cls.config()
        return tuple(classes) if isinstance(classes, Sequence) else (classes,)

    @classmethod
    def checkpoint_classes(cls) -> tuple[type[Any], ...]:
        """Those of `config_classes` whose values come from a checkpoint; with any, the job needs one to start from."""
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
        """The job on the local devices, with its files below `root`; call it inside a `configuration` block."""
        return cls(local(root, name, project, group))

    def saved_row(self) -> Row | None:
        """The row that an earlier run of this job has saved; None when there is none or it cannot be read."""
        path = self.spec.result_path(contract.RESULT_FILE)
        try:
            row = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning("%s: cannot be read: %s", path, error)
            return None
        return row if isinstance(row, dict) else None

    def _run_once(self) -> Row | None:
        # Process 0 decides for all: other hosts may see files late, and a process that skips alone hangs the others.
        if collectives.broadcast_result(lambda: bool(self.done)):
            _log.info("%s: already done, skipped", self.spec.name)
            saved: Row | None = collectives.broadcast_result(self.saved_row)
            return saved
        self.sync("start")
        result = self.run()
        # A row means that every checkpoint is committed.
        self.wait()
        row = None if result is None else _checked_row(result)
        if row is not None:
            collectives.broadcast_result(lambda: self._write(row))
        self.sync("end")
        self.finish()
        return row

    def _write(self, row: Row) -> None:
        with self.spec.result(contract.RESULT_FILE) as file:
            assert file is not None, "called on process 0"
            json.dump(row, file, ensure_ascii=False)


def _checked_row(result: Any) -> Row:
    """A row of results as JSON has it; UsageError when it is none."""
    if not isinstance(result, Mapping):
        raise UsageError(
            f"the result is {type(result).__qualname__}: expected a row, {{name: number or text}}, or None"
        )
    return contract.finite({str(name): _cell(name, value) for name, value in result.items()})


def _cell(name: Any, value: Any) -> float | str:
    if isinstance(value, (str, int)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"the result has {name}: {value!r:.80}: expected a number or text in a row") from None
