"""Reads the metrics of jobs: `metrics.jsonl` of their attempts (runtime/metrics.py has the form of a line).

An attempt that resumes from a step begins with a copy of the lines up to it, and what an earlier attempt recorded
beyond that step was never continued. So a later attempt counts from its first step on, and an earlier one only for
steps before. Within a file, a value counts until the same metric is recorded for that step or an earlier one again.
"""

from __future__ import annotations

import fnmatch
import json
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatcher.base import files
from dispatcher.errors import UsageError, nearest
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    import pandas
    import polars

NOT_METRICS: Final = frozenset({"step", "wall_s"})
_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, None: math.nan}
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


class Series(msgspec.Struct, eq=False):
    """One metric of one job, in the order of its steps.

    `attempts` says which attempt's file has each value; `wall_s` is seconds of training, earlier attempts included, and
    NaN where a line has none.
    """

    job_id: str
    metric: str
    steps: array[Any]
    wall_s: array[float]
    values: array[float]
    attempts: array[int]

    def __len__(self) -> int:
        return len(self.values)

    def add(self, step: float, wall_s: float, value: float, attempt: int) -> None:
        """Append a value; those of this step and of later ones are replaced."""
        if self.steps and self.steps[-1] >= step:
            self.cut(step)
        if type(step) is not int and self.steps.typecode == "q":
            self.steps = array("d", self.steps)
        self.steps.append(step)
        self.wall_s.append(wall_s)
        self.values.append(value)
        self.attempts.append(attempt)

    def cut(self, step: float) -> None:
        """Remove the values of this step and of later ones."""
        length = len(self.steps)
        while length and self.steps[length - 1] >= step:
            length -= 1
        for column in (self.steps, self.wall_s, self.values, self.attempts):
            del column[length:]


class Metrics(list[Series]):
    """The metrics of jobs: one series per job and metric. `damaged`: how many lines of a file could not be read."""

    def __init__(self, series: Iterable[Series] = (), damaged: Mapping[str, int] | None = None) -> None:
        super().__init__(series)
        self.damaged = dict(damaged or {})

    def to_pandas(self) -> pandas.DataFrame:
        """One row per value: job_id, metric (both categories), attempt, step, wall_s, value; NaN and infinity stay."""
        from dispatcher.report.results.metric_frames import pandas_of

        return pandas_of(self)

    def to_polars(self) -> polars.DataFrame:
        """One row per value: job_id, metric (both categories), attempt, step, wall_s, value; NaN and infinity stay."""
        from dispatcher.report.results.metric_frames import polars_of

        return polars_of(self)


def read_metrics(layout: Layout, attempts: Mapping[str, int], names: Sequence[str] = ()) -> Metrics:
    """The metrics of jobs up to the attempt with this number, of each job. `names`: ids of metrics, or globs.

    Raises UsageError for a name that no metric has.
    """
    wants = _filter(names)
    metrics = Metrics()
    for job, last in attempts.items():
        metrics += _of_job(layout, job, last, wants, metrics.damaged)
    for name in names:
        if not any(fnmatch.fnmatchcase(one.metric, name) for one in metrics):
            known = _names(layout, attempts)
            raise UsageError(f"no job has a metric {name!r}{nearest(name, known) if known else ': none has any'}")
    return metrics


def _of_job(layout: Layout, job: str, last: int, wants: Callable[[str], bool], damaged: dict[str, int]) -> list[Series]:
    """The series of a job: of its last attempt with metrics, before its first step of earlier ones."""
    found: dict[str, Series] = {}
    files: list[tuple[int, list[dict[str, Any]]]] = []
    first_step = math.inf
    for number in range(last, 0, -1):
        path = layout.attempt(job, number).metrics
        if files and not _begins_before(path, first_step):
            continue
        lines, bad = _lines(path)
        if bad:
            damaged[str(path)] = bad
        steps = [line["step"] for line in lines]
        if steps and min(steps) < first_step:
            files.append((number, [line for line in lines if line["step"] < first_step]))
            first_step = min(steps)
    for number, lines in reversed(files):
        for line in lines:
            _add(found, job, number, line, wants)
    return [series for series in found.values() if series]


def _add(
    found: dict[str, Series], job: str, attempt: int, line: Mapping[str, Any], wants: Callable[[str], bool]
) -> None:
    step = line["step"]
    wall_s = number_of(line.get("wall_s", math.nan))
    for name, given in line.items():
        if name in NOT_METRICS or not wants(name):
            continue
        value = given if type(given) is float else number_of(given)
        if value is None:
            continue
        series = found.get(name)
        if series is None:
            empty: array[Any] = array("q")
            series = found[name] = Series(job, name, empty, array("d"), array("d"), array("q"))
        series.add(step, math.nan if wall_s is None else wall_s, value, attempt)


def _lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The complete lines of a metrics file that have a step, and how many are damaged; the last may be incomplete."""
    try:
        data = files.read_at_once(path)
    except OSError:
        return [], 0
    data = data[: data.rfind(b"\n") + 1]
    try:
        lines: list[Any] = _DECODER.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        lines = [parse_line(raw) for raw in data.split(b"\n")[:-1]]
    good = [line for line in lines if line is not None and is_step(line.get("step"))]
    return good, len(lines) - len(good)


def _begins_before(path: Path, step: float) -> bool:
    """Whether the first line has an earlier step: else the later attempt has copied all of it that counts."""
    try:
        with open(path, "rb", opener=files.open_at_once) as file:
            line = parse_line(file.readline())
    except OSError:
        return False
    return line is None or not is_step(line.get("step")) or line["step"] < step


def parse_line(raw: bytes) -> dict[str, Any] | None:
    """A line of a metrics file, also with a NaN as Python's json writes it; None for one that is damaged."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_step(value: Any) -> bool:
    """Whether that is the step of a line: a number that is finite."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is float and math.isfinite(value)


def number_of(value: Any) -> float | None:
    """A number of a line; None for what is none, such as a text."""
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _NUMBERS.get(value) if value is None or isinstance(value, str) else None


def _filter(names: Sequence[str]) -> Callable[[str], bool]:
    if not names:
        return lambda _: True
    known: dict[str, bool] = {}

    def wants(metric: str) -> bool:
        if metric not in known:
            known[metric] = any(fnmatch.fnmatchcase(metric, name) for name in names)
        return known[metric]

    return wants


def _names(layout: Layout, attempts: Mapping[str, int]) -> list[str]:
    """The names of all metrics of these jobs."""
    found: dict[str, None] = {}
    for job, last in attempts.items():
        for number in range(last, 0, -1):
            lines, _ = _lines(layout.attempt(job, number).metrics)
            for line in lines:
                found.update(dict.fromkeys(line.keys() - NOT_METRICS))
            if lines:
                break
    return sorted(found)
