"""Metrics of a training: `metrics.jsonl`, one line per logged step, and `progress.json` for the status table.

A line is `{"step": 120, "wall_s": 34.5, "loss": 2.31}`: seconds of training so far, including earlier attempts, then
the metrics. `"NaN"`, `"Infinity"` and `"-Infinity"` are text, because JSON has no such numbers.

An attempt that resumes from step N starts with a copy of the previous attempt's lines up to N; later steps are logged
again. So, wall time aside, the last attempt's file equals that of an uninterrupted run, provided that a trainer logs
the metrics of a step before it saves the step. Each line is written at once and survives the process; `sync` before a
checkpoint is committed makes it survive the host.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.storing import storing
from dispatcher.base.values import number_of

if TYPE_CHECKING:
    from dispatcher.runtime.execution import ExecutionSpec

PROGRESS_EVERY_S: Final = 1.0

_log = logging.getLogger(__name__)

# Receives each step and its metrics.
Sink = Callable[[int, Mapping[str, float]], None]


class MetricsLog:
    """The metrics of one attempt in `directory`, after `resumed_step`; also passed to `sinks`.

    `clock` returns seconds. A write that fails is a StorageError and leaves no partial line.
    """

    def __init__(
        self,
        directory: Path,
        *,
        resumed_step: int = 0,
        sinks: tuple[Sink, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = directory / contract.METRICS_FILE
        self._sinks = sinks
        self._clock = clock
        self._latest: dict[str, float] = {}
        self._progress_at_s = -math.inf
        directory.mkdir(parents=True, exist_ok=True)
        with storing(f"{self.path}: cannot be written"):
            kept = list(_lines_up_to(_written_before(directory, resumed_step), resumed_step))
            self._replace(kept)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        earlier_s = number_of(json.loads(kept[-1]).get("wall_s")) if kept else 0.0
        # An earlier attempt may have written anything.
        self._began_s = clock() - (earlier_s if earlier_s is not None and math.isfinite(earlier_s) else 0.0)

    @classmethod
    def of(cls, spec: ExecutionSpec, *, resumed_step: int = 0, sinks: tuple[Sink, ...] = ()) -> MetricsLog:
        """The log in the attempt's directory; without a dispatcher, beside the job's results. For process 0 only."""
        directory = contract.attempt_dir() or spec.result_path(contract.METRICS_FILE).parent
        return cls(directory, resumed_step=resumed_step, sinks=sinks)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line; the values are numbers or scalar arrays."""
        numbers = {name: float(value) for name, value in metrics.items()}
        if reserved := numbers.keys() & {"step", "wall_s"}:
            raise ValueError(f"reserved names of metrics: {', '.join(sorted(reserved))}: choose others")
        wall_s = round(self._clock() - self._began_s, 3)
        self._append({"step": step, "wall_s": wall_s, **{name: json_number(value) for name, value in numbers.items()}})
        self._latest.update(numbers)
        for sink in self._sinks:
            sink(step, numbers)

    def progress(self, step: int, of: int) -> None:
        """Show `step` of `of` and the latest metrics in `dispatcher status`, at most once a second and at the end."""
        now_s = self._clock()
        if now_s - self._progress_at_s < PROGRESS_EVERY_S and step < of:
            return
        self._progress_at_s = now_s
        path = self.path.with_name(contract.PROGRESS_FILE)
        with storing(f"{path}: cannot be written"):
            contract.write_progress(path.parent, {"step": step, "of": of, "metrics": contract.finite(self._latest)})

    def sync(self) -> None:
        """Sync all lines to the disk."""
        with storing(f"{self.path}: cannot be written"):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file; nothing can be logged afterwards."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with storing(f"{self.path}: cannot be written"):
            length = os.fstat(self._file).st_size
            written = 0
            try:
                while written < len(data):
                    written += os.write(self._file, data[written:])
            except OSError:
                # Else the next line would be appended to a partial one.
                os.ftruncate(self._file, length)
                raise

    def _replace(self, lines: list[str]) -> None:
        files.replace_file(self.path, "".join(f"{line}\n" for line in lines).encode())


def json_number(value: float) -> float | str:
    """`value`, or its name if it is NaN or infinite."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _written_before(directory: Path, resumed_step: int) -> Path | None:
    """The file with the lines up to the resumed step: this attempt's own, else that of the latest earlier attempt."""
    if resumed_step <= 0:
        return None
    own = directory / contract.METRICS_FILE
    if own.exists() or not directory.name.isdigit():
        return own if own.exists() else None
    numbers = [int(name) for name in os.listdir(directory.parent) if name.isdigit() and int(name) < int(directory.name)]
    earlier = [directory.parent / str(number) / contract.METRICS_FILE for number in sorted(numbers, reverse=True)]
    return next((path for path in earlier if path.exists()), None)


def _lines_up_to(path: Path | None, step: int) -> Iterator[str]:
    """Lines up to `step`; damaged lines are skipped with a warning, and must not stop the training."""
    if path is None:
        return
    for number, line in enumerate(_complete(path.read_text(encoding="utf-8", errors="replace")), start=1):
        try:
            keep = json.loads(line)["step"] <= step
        except (ValueError, KeyError, TypeError):
            _log.warning("%s: line %d is damaged and is skipped: %.80r", path, number, line)
            continue
        if keep:
            yield line


def _complete(text: str) -> list[str]:
    """All complete lines; the last one may be partial if its process was killed."""
    return text.split("\n")[:-1]
