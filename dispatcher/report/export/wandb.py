"""Runs on Weights & Biases, one per job: history of the metrics, configuration and summary.

A run's id derives from the workspace and the job. Offline, a run is a directory that `wandb sync` uploads: a newer
export replaces it. Online, W&B takes no step twice: only steps after the last one that it has are sent.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import UsageError
from dispatcher.report.export.marks import Mark, read_mark, write_mark
from dispatcher.report.export.runs import Run
from dispatcher.report.results.frames import library

_MARKS: Final = "dispatcher-exports"


def run_id(workspace: str, job_id: str) -> str:
    """The id of a job's run: the same whenever and from wherever it is exported."""
    return hashlib.blake2b(f"{workspace}\0{job_id}".encode(), digest_size=8).hexdigest()


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
        identity = run_id(self._workspace, run.job_id)
        mark_path = self._directory / "wandb" / _MARKS / f"{self._project}-{identity}.json"
        known = read_mark(mark_path, self._workspace, run.job_id)
        mode = "offline" if self.is_offline else "online"
        fingerprint = f"{mode} {run.fingerprint}"
        if (
            known is not None
            and known.fingerprint == fingerprint
            and (not self.is_offline or os.path.isdir(known.place))
        ):
            return False
        if self.is_offline:
            self._remove_earlier(identity)
        os.makedirs(self._directory, exist_ok=True)
        try:
            place = self._write(run, identity)
        except self._wandb.Error as error:
            raise UsageError(f"W&B: {error} (WANDB_MODE=offline exports into files)") from error
        mark = Mark(self._workspace, run.job_id, fingerprint, place if self.is_offline else "")
        self._marks.append((mark_path, mark))
        return True

    def close(self) -> None:
        """Wait until W&B's process has written everything, and only then remember what was exported."""
        if self._marks:
            self._wandb.teardown()
        while self._marks:
            write_mark(*self._marks.pop(0))

    def _write(self, run: Run, identity: str) -> str:
        settings = self._wandb.Settings(
            console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True, silent=True
        )
        session: Any = self._wandb.init(
            project=self._project, id=identity, name=run.job_id, group=run.method or None, resume="allow",
            dir=str(self._directory), config={"job_id": run.job_id, "method": run.method, **run.parameters},
            settings=settings, reinit="finish_previous",
        )  # fmt: skip
        first = session.starting_step
        for step, row in _history(run):
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


def _history(run: Run) -> Iterator[tuple[int, dict[str, float]]]:
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
