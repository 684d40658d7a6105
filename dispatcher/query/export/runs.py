"""What is exported of a job: its parameters, results and metrics, with the time of each step."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.base.values import number_of
from dispatcher.query import attempts
from dispatcher.query.metric_lines import metrics_source
from dispatcher.query.metrics import Series, read_metrics
from dispatcher.query.results.rows import Results
from dispatcher.run_state import journal
from dispatcher.run_state.states import Record
from dispatcher.workspace import Layout


class Run(msgspec.Struct, frozen=True, eq=False):
    """One job. `begun_s` is when its first attempt began (seconds since 1970), from which steps count their time.

    `fingerprint` changes with everything that is exported. `faults`: what was left out of the metrics, once they are
    read.
    """

    job_id: str
    method: str
    state: str
    attempt: int
    parameters: Mapping[str, Any]
    results: Mapping[str, Any]
    begun_s: float
    finished_s: float | None
    fingerprint: str
    layout: Layout
    faults: list[str] = msgspec.field(default_factory=list)

    def read_series(self) -> list[Series]:
        metrics = read_metrics(self.layout, {self.job_id: self.attempt})
        self.faults[:] = metrics.faults()
        return metrics

    def wall_times(self, series: Series) -> Iterator[float]:
        """The time of each value: its seconds of training after the begin; the last known ones where it has none."""
        last_s = 0.0
        for wall_s in series.wall_s:
            last_s = last_s if math.isnan(wall_s) else wall_s
            yield self.begun_s + last_s

    @property
    def numbers(self) -> dict[str, float]:
        """The results that are numbers. A null is a NaN, because `report_result` writes it so."""
        found = {key: number_of(value) for key, value in self.results.items() if not isinstance(value, (bool, str))}
        return {key: number for key, number in found.items() if number is not None}


def runs_of(layout: Layout, records: Mapping[str, Record], found: Results) -> list[Run]:
    """The runs of all jobs that have a result or metrics; `found` has a row of every job."""
    again = {row["job_id"] for row in found if records[row["job_id"]].attempt > 1}
    begun = _first_starts(layout, again)
    runs = []
    for row in found:
        job, record = row["job_id"], records[row["job_id"]]
        files = _metrics_files(layout, job, record.attempt)
        if not files and job not in found.with_result:
            continue
        parameters, results = _apart(row, found)
        started = begun.get(job) or row["started_at"] or record.started_at
        stated = [row["state"], row["attempt"], started, row["finished_at"], parameters, results, files]
        runs.append(
            Run(
                job_id=job,
                method=row["method"] or "",
                state=row["state"],
                attempt=record.attempt,
                parameters=parameters,
                results=results,
                begun_s=parse_time(started) or 0.0,
                finished_s=parse_time(row["finished_at"]),
                fingerprint=hashlib.blake2b(repr(stated).encode(), digest_size=16).hexdigest(),
                layout=layout,
            )
        )
    return runs


def _apart(row: Mapping[str, Any], found: Results) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and the results of a row; both may have the same name."""
    parameters, results = {}, {}
    for key in found.parameters:
        if key in row and f"parameter.{key}" not in row:
            parameters[key.removeprefix("parameter.")] = row[key]
    for key in found.values:
        if key in row and (key not in parameters or f"parameter.{key}" in row):
            results[key.removeprefix("result.")] = row[key]
    return parameters, results


def _first_starts(layout: Layout, jobs: set[str]) -> dict[str, str]:
    """When the first attempts of these jobs began, as far as the journal has it."""
    lines: dict[str, list[journal.Line]] = {job: [] for job in jobs}
    if jobs:
        for line in journal.history(layout, jobs):
            lines[line.job or ""].append(line)
    found = {}
    for job, of_job in lines.items():
        starts = [facts["started_at"] for facts in attempts.journalled(of_job).values() if facts.get("started_at")]
        if starts:
            found[job] = min(starts)
    return found


def _metrics_files(layout: Layout, job: str, last: int) -> Sequence[tuple[int, int, int]]:
    """Number, size and time of change of the metrics files of all attempts."""
    found = []
    for number in range(1, last + 1):
        try:
            status = os.stat(metrics_source(layout.attempt(job, number).directory)[0])
        except OSError:
            continue
        found.append((number, status.st_size, status.st_mtime_ns))
    return found
