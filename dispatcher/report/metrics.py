"""Reads the metrics of jobs: `metrics.jsonl` of their attempts (runtime/metrics.py has the form of a line), or the file
that their method names (base/outputs.py).

An attempt that resumes from a step begins with a copy of the lines up to it, and what an earlier attempt recorded
beyond that step was never continued. So a later attempt counts from its first step on, and an earlier one only for
steps before. Within a file, a value counts until the same metric is recorded for that step or an earlier one again.
"""

from __future__ import annotations

import fnmatch
import io
import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import files, outputs
from dispatcher.base.messages import bytes_text, counted
from dispatcher.errors import UsageError, nearest
from dispatcher.report.attempts import MISSING
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    import pandas
    import polars

# Of each file, from its begin, and names of one attempt: no job takes the memory of those who look.
MOST_BYTES: Final = 256 << 20
_MOST_NAMES: Final = 10_000
# The longest line, too.
BLOCK: Final = 1 << 20
NOT_METRICS: Final = frozenset({"step", "wall_s"})
# Of a file of which only the last line is wanted, from its begin and from its end; and all of it, to count its lines.
_LAST_BYTES: Final = 8 << 10
_MOST_COUNTED: Final = 64 << 10
# So many files are named when no job has a metric.
_FAULTS: Final = 3
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

    def extend(self, later: Series) -> None:
        """Append the values of a later attempt, all of which are of later steps."""
        if self.steps.typecode != later.steps.typecode:
            self.steps, later.steps = array("d", self.steps), array("d", later.steps)
        self.steps.extend(later.steps)
        self.wall_s.extend(later.wall_s)
        self.values.extend(later.values)
        self.attempts.extend(later.attempts)

    def cut(self, step: float) -> None:
        """Remove the values of this step and of later ones."""
        length = len(self.steps)
        while length and self.steps[length - 1] >= step:
            length -= 1
        for column in (self.steps, self.wall_s, self.values, self.attempts):
            del column[length:]


class Metrics(list[Series]):
    """The metrics of jobs: one series per job and metric.

    `damaged`: how many lines of a file could not be read. `incomplete`: of which files not all was read, and why.
    """

    def __init__(self, series: Iterable[Series] = ()) -> None:
        super().__init__(series)
        self.damaged: dict[str, int] = {}
        self.incomplete: dict[str, str] = {}

    def faults(self) -> list[str]:
        """What was left out, for people."""
        lines = (f"{file}: {counted(bad, 'line')} cannot be read and left out" for file, bad in self.damaged.items())
        return [*lines, *(f"{file}: {why}" for file, why in self.incomplete.items())]

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
        metrics += _of_job(layout, job, last, wants, metrics)
    for name in names:
        if not any(fnmatch.fnmatchcase(one.metric, name) for one in metrics):
            known = _names(layout, attempts)
            hint = nearest(name, known) if known else ": none has any"
            raise UsageError("; ".join([f"no job has a metric {name!r}{hint}", *metrics.faults()[:_FAULTS]]))
    return metrics


def _of_job(layout: Layout, job: str, last: int, wants: Callable[[str], bool], metrics: Metrics) -> list[Series]:
    """The series of a job: of its last attempt with metrics, before its first step of earlier ones."""
    parts: list[dict[str, Series]] = []
    first_step = math.inf
    for number in range(last, 0, -1):
        file = MetricsFile(layout.attempt(job, number).directory)
        if parts and not file.begins_before(first_step):
            continue
        part = _Part(job, number, wants, first_step)
        for lines in file.blocks():
            part.add(lines)
        file.tell(metrics, part.left_out)
        if part.first_step < first_step:
            parts.append(part.series)
            first_step = part.first_step
    found: dict[str, Series] = {}
    for series in reversed(parts):
        for name, one in series.items():
            if name in found:
                found[name].extend(one)
            else:
                found[name] = one
    return [series for series in found.values() if series]


class _Part:
    """What one attempt has recorded before the step `end`, at which a later one goes on; `left_out`: other metrics."""

    def __init__(self, job: str, attempt: int, wants: Callable[[str], bool], end: float) -> None:
        self.series: dict[str, Series] = {}
        self.first_step = math.inf
        self.left_out = False
        self._job = job
        self._attempt = attempt
        self._wants = wants
        self._end = end

    def add(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for line in lines:
            step = line["step"]
            self.first_step = min(self.first_step, step)
            if step < self._end:
                self._add(step, line)

    def _add(self, step: float, line: Mapping[str, Any]) -> None:
        wall_s = number_of(line.get("wall_s", math.nan))
        for name, given in line.items():
            if name in NOT_METRICS or not self._wants(name):
                continue
            value = given if type(given) is float else number_of(given)
            if value is None:
                continue
            series = self.series.get(name)
            if series is None:
                if len(self.series) >= _MOST_NAMES:
                    self.left_out = True
                    continue
                empty: array[Any] = array("q")
                series = self.series[name] = Series(self._job, name, empty, array("d"), array("d"), array("q"))
            series.add(step, math.nan if wall_s is None else wall_s, value, self._attempt)


class LineParser:
    """Parses the complete lines of a metrics file, in their order.

    `table` is the file that a method names, None for `metrics.jsonl`.
    """

    def __init__(self, table: outputs.MetricsTable | None) -> None:
        self.is_named = table is not None
        self._rows = outputs.Table() if table is not None and table.path.endswith(".csv") else None
        self._step = (table and table.step) or "step"
        # Whether lines without steps are counted: that is as the first line is.
        self._counts = None if table is not None and not table.step else False
        self._count = 0

    @property
    def has_steps(self) -> bool:
        """Whether lines say their steps themselves, so that those before them need not be read."""
        return self._counts is False

    def parse(self, data: bytes) -> list[dict[str, Any] | None]:
        """The lines, each with a `step`; None for one that is damaged."""
        lines = self._json_lines(data) if self._rows is None else self._rows.rows(data)
        return [None if line is None else self._with_step(line) for line in lines]

    def _json_lines(self, data: bytes) -> list[Any]:
        try:
            return _DECODER.decode_lines(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return [outputs.json_object(raw) for raw in data.split(b"\n")[:-1]]

    def _with_step(self, line: dict[str, Any]) -> dict[str, Any] | None:
        self._count += 1
        if self._counts is None:
            self._counts = self._step not in line
        step = self._count if self._counts else line.get(self._step)
        if not is_step(step):
            return None
        if self._counts or self._step != "step":
            line = {name: value for name, value in line.items() if name != self._step} | {"step": step}
        return line


def _table(directory: Path) -> outputs.MetricsTable | None:
    """The file of the attempt's own that its method names for metrics; None where it has none."""
    try:
        table = outputs.read_outputs(directory).metrics
    except OSError:
        return None
    return table if table is not None and outputs.is_own(directory, table.path) else None


def metrics_source(directory: Path) -> tuple[Path, LineParser]:
    """The file with an attempt's metrics, and a parser of its lines from the first one on."""
    table = _table(directory)
    return directory / (table.path if table is not None else contract.METRICS_FILE), LineParser(table)


class LastLines:
    """The last lines of metrics files that methods name. A file that has not changed is not read again."""

    def __init__(self) -> None:
        # By directory: the file as it was, and its last line.
        self._known: dict[Path, tuple[tuple[int, int, int], dict[str, Any] | None]] = {}

    def of(self, directory: Path) -> dict[str, Any] | None:
        """That of an attempt; None where its method names none, or it has none."""
        table = _table(directory)
        if table is None:
            return None
        try:
            with open(directory / table.path, "rb", buffering=0, opener=files.open_at_once) as file:
                found = os.fstat(file.fileno())
                identity = (found.st_ino, found.st_size, found.st_mtime_ns)
                known = self._known.get(directory)
                if known is None or known[0] != identity:
                    known = self._known[directory] = identity, _last_line(file, table, found.st_size)
        except OSError:
            return None
        return known[1]


def _last_line(file: io.FileIO, table: outputs.MetricsTable, size: int) -> dict[str, Any] | None:
    """Only a part of a long file is read: its end, unless its lines are counted."""
    parser = LineParser(table)
    begin = file.read(_LAST_BYTES)
    parsed = parser.parse(begin[: begin.rfind(b"\n") + 1])
    if size > len(begin) and parser.has_steps:
        file.seek(max(len(begin), size - _LAST_BYTES))
        end = file.read(_LAST_BYTES)
        parsed += parser.parse(end[end.find(b"\n") + 1 : end.rfind(b"\n") + 1])
    elif size > len(begin):
        begin += file.read(_MOST_COUNTED - len(begin))
        parsed = LineParser(table).parse(begin[: begin.rfind(b"\n") + 1]) if size <= len(begin) else []
    return next((line for line in reversed(parsed) if line is not None), None)


class MetricsFile:
    """Reads the metrics file of an attempt block by block, so that it takes no memory.

    `damaged`: how many lines are no metrics, or longer than a block. `why`: why not all of it was read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path, self._parser = metrics_source(directory)
        self.damaged = 0
        self.why = ""

    def blocks(self) -> Iterator[list[dict[str, Any]]]:
        """The complete lines that have a step; the last line may be incomplete."""
        try:
            with open(self.path, "rb", buffering=0, opener=files.open_at_once) as file:
                for data in self._complete(file):
                    yield self._good(data)
        except OSError as error:
            if error.errno not in MISSING:
                self.why = f"cannot be read: {error.strerror}"
            elif self._parser.is_named:
                self.why = "there is no such file"

    def _complete(self, file: io.FileIO) -> Iterator[bytes]:
        rest, left = b"", MOST_BYTES
        while data := file.read(min(BLOCK, left)):
            left -= len(data)
            data = rest + data
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            if len(rest) > BLOCK:
                # The line is damaged, however it goes on.
                rest = b"\0"
            if end:
                yield data[:end]
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            self.why = f"{bytes_text(size)} long, of which only the first {bytes_text(MOST_BYTES)} are read"

    def begins_before(self, step: float) -> bool:
        """Whether the first line has an earlier step: else the later attempt has copied all of it that counts."""
        _, parser = metrics_source(self._directory)
        try:
            with open(self.path, "rb", opener=files.open_at_once) as file:
                first = parser.parse(file.readline(BLOCK)) or parser.parse(file.readline(BLOCK))
        except OSError:
            return False
        return not first or first[0] is None or bool(first[0]["step"] < step)

    def _good(self, data: bytes) -> list[dict[str, Any]]:
        lines = self._parser.parse(data)
        good = [line for line in lines if line is not None]
        self.damaged += len(lines) - len(good)
        return good

    def tell(self, metrics: Metrics, left_out: bool) -> None:
        """Note what was not read; `left_out`: neither were some metrics."""
        if self.damaged:
            metrics.damaged[str(self.path)] = self.damaged
        if self.why or left_out:
            many = f"more than {_MOST_NAMES:,} metrics, of which the others are left out" if left_out else ""
            metrics.incomplete[str(self.path)] = "; ".join(filter(None, (self.why, many)))


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
            before = len(found)
            for lines in MetricsFile(layout.attempt(job, number).directory).blocks():
                for line in lines:
                    found.update(dict.fromkeys(line.keys() - NOT_METRICS))
                if len(found) > _MOST_NAMES:
                    return sorted(found)
            if len(found) > before:
                break
    return sorted(found)
