"""Runs on Weights & Biases, one per job: history of the metrics, configuration and summary.

A run's id derives from the workspace and the job. Offline, a run is a directory that `wandb sync` uploads: a newer
export replaces it. Online, W&B takes no step twice: only steps after the last one that it has are sent. Where a job
was rewound or started anew, so that its history is another one, it becomes another run, in both cases.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dispatcher.contract import SPEED
from dispatcher.errors import UsageError
from dispatcher.query.export.marks import Mark, read_mark, write_mark
from dispatcher.query.export.runs import Run
from dispatcher.query.results.frames import library

_MARKS: Final = "dispatcher-exports"
_TIMES: Final = frozenset({"_timestamp", "wall_s"})
_Row = tuple[int, dict[str, float]]


def run_id(workspace: str, job_id: str, replaced: int = 0) -> str:
    """The id of a job's run after so many others: the same whenever and from wherever it is exported."""
    number = f"\0{replaced}" if replaced else ""
    return hashlib.blake2b(f"{workspace}\0{job_id}{number}".encode(), digest_size=8).hexdigest()


class WandbExport:
    """Writes runs of a project. `directory` has W&B's files; account and mode come from the environment."""

    def __init__(self, project: str, directory: str, workspace: str) -> None:
        self._project = project
        self._directory = Path(directory).absolute()
        self._workspace = workspace
        self._marks: list[tuple[Path, Mark]] = []
        os.environ.setdefault("WANDB_SILENT", "true")
        self._wandb: Any = library("wandb", "an export to W&B")

    @property
    def is_offline(self) -> bool:
        return os.environ.get("WANDB_MODE") == "offline"

    def export(self, run: Run) -> bool:
        """Write the run; whether there was anything new."""
        name = run_id(self._workspace, run.job_id)
        mark_path = self._directory / "wandb" / _MARKS / f"{self._project}-{name}.json"
        known = read_mark(mark_path, self._workspace, run.job_id)
        mode = "offline" if self.is_offline else "online"
        fingerprint = f"{mode} {run.fingerprint}"
        if (
            known is not None
            and known.fingerprint == fingerprint
            and (not self.is_offline or os.path.isdir(known.place))
        ):
            return False
        rows = list(_history(run))
        replaced = 0 if known is None else known.replaced + (_digest(rows, known.last_step) != known.history)
        identity = run_id(self._workspace, run.job_id, replaced)
        if self.is_offline:
            for number in range(replaced + 1):
                self._remove_earlier(run_id(self._workspace, run.job_id, number))
        os.makedirs(self._directory, exist_ok=True)
        try:
            place = self._write(run, identity, rows)
        except self._wandb.Error as error:
            raise UsageError(f"W&B: {error} (WANDB_MODE=offline exports into files)") from error
        last_step = rows[-1][0] if rows else -1
        mark = Mark(
            self._workspace, run.job_id, fingerprint, place if self.is_offline else "", last_step,
            _digest(rows, last_step), replaced,
        )  # fmt: skip
        self._marks.append((mark_path, mark))
        return True

    def close(self) -> None:
        """Wait until W&B's process has written everything, and only then remember what was exported."""
        if self._marks:
            self._wandb.teardown()
        while self._marks:
            write_mark(*self._marks.pop(0))

    def _write(self, run: Run, identity: str, rows: Sequence[_Row]) -> str:
        settings = self._wandb.Settings(
            console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True, silent=True
        )
        session: Any = self._wandb.init(
            project=self._project, id=identity, name=run.job_id, group=run.method or None, resume="allow",
            dir=str(self._directory), config={"job_id": run.job_id, "method": run.method, **run.parameters},
            settings=settings, reinit="finish_previous",
        )  # fmt: skip
        first = session.starting_step
        for step, row in rows:
            if step >= first:
                session.log(row, step=step)
        for key, value in run.results.items():
            session.summary[f"result/{key}"] = run.numbers.get(key, value)
        session.summary["state"] = run.state
        session.finish(exit_code=0 if run.state != "failed" else 1)
        return str(Path(session.dir).parent)

    def _remove_earlier(self, identity: str) -> None:
        """Remove earlier offline runs with this id: uploaded as well, their steps would be there twice."""
        for place in (self._directory / "wandb").glob(f"offline-run-*-{identity}"):
            shutil.rmtree(place)


def _digest(rows: Iterable[_Row], last_step: int) -> str:
    """Of the metrics up to a step: times and speeds are others where an attempt was resumed."""
    lines = [
        [step, sorted((name, repr(row[name])) for name in row.keys() - _TIMES if not name.startswith(SPEED))]
        for step, row in rows
        if step <= last_step
    ]
    return hashlib.blake2b(repr(lines).encode(), digest_size=16).hexdigest()


def _history(run: Run) -> Iterator[_Row]:
    """The metrics by step. W&B counts steps in integers: others are numbered, and all rows have `step`."""
    rows: dict[float, dict[str, float]] = {}
    for series in run.read_series():
        for step, value, wall_s, at_s in zip(
            series.steps, series.values, series.wall_s, run.wall_times(series), strict=True
        ):
            row = rows.setdefault(step, {"step": step, "_timestamp": at_s})
            row[series.metric] = value
            if not math.isnan(wall_s):
                row["wall_s"] = wall_s
    is_counted = all(float(step).is_integer() and step >= 0 for step in rows)
    for number, step in enumerate(sorted(rows)):
        yield (int(step) if is_counted else number), rows[step]
