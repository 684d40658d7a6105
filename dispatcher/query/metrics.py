"""The metrics of jobs: which values count. The API, `results`, pictures, exports, the page and tuning read them here.

A value of a step counts until the same metric is recorded for that step or an earlier one again: a training that was
rewound writes its steps anew, into the same file or, as a later attempt, into its own. An attempt that resumes from a
step begins with a copy of the lines up to it, or at the next step; so a later attempt counts from its first step on,
and an earlier one only for steps before.

Files are read as far as they have grown (JobMetrics), from the beginning again where one was replaced or cut. What does
not count is reported: lines that cannot be read, values recorded again, what is beyond the limits.
"""

from __future__ import annotations

import fnmatch
import math
import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec

from dispatcher.base import files
from dispatcher.base.messages import bytes_text, counted, first_names
from dispatcher.base.values import number_of
from dispatcher.errors import StateError, UsageError, nearest
from dispatcher.query.attempts import MISSING
from dispatcher.query.metric_lines import NOT_METRICS, metrics_source
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    import pandas
    import polars

# So many bytes of each file are read, and so many names of each attempt: what a job writes must not fill the memory.
MOST_BYTES: Final = 256 << 20
MOST_NAMES: Final = 10_000
# The longest line, too.
_BLOCK: Final = 1 << 20
# So many bytes at both ends of what was read are compared: where they differ, it is another file.
_KNOWN_BYTES: Final = 256
# So many files are named when no job has a metric.
_FAULTS: Final = 3


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

    def add(self, step: float, wall_s: float, value: float, attempt: int) -> int:
        """Append a value in place of those of this step and of later ones; how many these are."""
        before = len(self.steps)
        if self.steps and self.steps[-1] >= step:
            self.keep(bisect_left(self.steps, step))
        replaced = before - len(self.steps)
        if type(step) is not int and self.steps.typecode == "q":
            self.steps = array("d", self.steps)
        self.steps.append(step)
        self.wall_s.append(wall_s)
        self.values.append(value)
        self.attempts.append(attempt)
        return replaced

    def extend(self, later: Series) -> None:
        """Append the values of a later attempt, all of which are of later steps."""
        if self.steps.typecode != later.steps.typecode:
            self.steps, later.steps = array("d", self.steps), array("d", later.steps)
        self.steps.extend(later.steps)
        self.wall_s.extend(later.wall_s)
        self.values.extend(later.values)
        self.attempts.extend(later.attempts)

    def first(self, count: int) -> Series:
        """A copy of the first values."""
        steps, wall_s, values, attempts = self.steps, self.wall_s, self.values, self.attempts
        return Series(self.job_id, self.metric, steps[:count], wall_s[:count], values[:count], attempts[:count])

    def keep(self, count: int) -> None:
        """Remove all but the first values."""
        for column in (self.steps, self.wall_s, self.values, self.attempts):
            del column[count:]


def empty_series(job_id: str, metric: str) -> Series:
    steps: array[Any] = array("q")
    return Series(job_id, metric, steps, array("d"), array("d"), array("q"))


class Metrics(list[Series]):
    """The metrics of jobs: one series per job and metric.

    `damaged`: how many lines of a file are no metrics with a step. `overwritten`: how many values of a file were
    recorded again, by a later line or attempt. `incomplete`: why a file was not read as a whole.
    """

    def __init__(self, series: Iterable[Series] = ()) -> None:
        super().__init__(series)
        self.damaged: dict[str, int] = {}
        self.overwritten: dict[str, int] = {}
        self.incomplete: dict[str, str] = {}

    def faults(self) -> list[str]:
        """What was left out, for people."""
        no_metrics = "left out: damaged, or without a step"
        lines = [f"{file}: {counted(bad, 'line')} {no_metrics}" for file, bad in self.damaged.items()]
        lines += [f"{file}: {why}" for file, why in self.incomplete.items()]
        if self.overwritten:
            count = counted(sum(self.overwritten.values()), "value")
            again = "by a later line or attempt, and left out"
            lines.append(f"{count} recorded again {again}: {first_names(list(self.overwritten))}")
        return lines

    def to_pandas(self) -> pandas.DataFrame:
        """One row per value: job_id, metric (both categories), attempt, step, wall_s, value; NaN and infinity stay."""
        from dispatcher.query.results.metric_frames import pandas_of

        return pandas_of(self)

    def to_polars(self) -> polars.DataFrame:
        """One row per value: job_id, metric (both categories), attempt, step, wall_s, value; NaN and infinity stay."""
        from dispatcher.query.results.metric_frames import polars_of

        return polars_of(self)


class AttemptMetrics:
    """The metrics of one attempt, read as far as its file has grown.

    `is_there`: whether there is a file. `is_whole`: whether all of it was read, or as much as ever is; the last line
    may be unfinished. `size` and `offset`: its bytes, and how many of them were read. `failure`: why it cannot be read.
    `version` changes with what was read.
    """

    def __init__(self, directory: Path, reading: _Reading) -> None:
        self.number = int(directory.name)
        self._directory = directory
        self._reading = reading
        self.is_there = self.is_whole = False
        self.failure = ""
        self.size = self.version = self._inode = 0
        self.series: dict[str, Series] = {}
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.path, self._parser = metrics_source(self._directory)
        # One that has begun and logged nothing yet changes nothing.
        self.version += bool(self.series)
        self.series = {}
        self.first_step = math.inf
        self._begin: float | None = None
        self.overwritten = 0
        self.offset = 0
        self._head = self._tail = b""
        self._too_long = 0
        self._is_in_long_line = self._lacks_names = False

    def read(self, until_s: float) -> None:
        """Read what was added, until that moment of the monotonic clock."""
        if not self.offset:
            # What the method says may have been written meanwhile.
            self._begin_anew()
        try:
            with self._reading.open_file(self.path, self._directory.parent) as file:
                self.is_there, self.failure = True, ""
                self._read(file.fileno(), until_s)
        except (OSError, StateError) as error:
            self.is_there, self.is_whole = False, True
            self.failure = self._failure(error)
            if not self.failure and self.offset:
                self._begin_anew()

    def _failure(self, error: OSError | StateError) -> str:
        if isinstance(error, StateError):
            return str(error).removeprefix(f"{self.path} ")
        return "" if error.errno in MISSING else f"cannot be read: {error.strerror}"

    def _read(self, fd: int, until_s: float) -> None:
        found = os.fstat(fd)
        head = files.read_fd(fd, 0, _KNOWN_BYTES)
        is_known = found.st_ino == self._inode and found.st_size >= self.offset and head.startswith(self._head)
        if not is_known or files.read_fd(fd, self.offset - len(self._tail), len(self._tail)) != self._tail:
            self._begin_anew()
        self._inode, self.size, self._head = found.st_ino, found.st_size, head
        self.is_whole = False
        while not self.is_whole:
            data = files.read_fd(fd, self.offset, min(_BLOCK, MOST_BYTES - self.offset))
            taken = self._take(data)
            self.offset += taken
            self._tail = (self._tail + data[:taken])[-_KNOWN_BYTES:]
            self.is_whole = not taken
            if time.monotonic() > until_s:
                break

    def _take(self, data: bytes) -> int:
        """Take in the complete lines; how many bytes were dealt with."""
        if self._is_in_long_line:
            end = data.find(b"\n") + 1
            self._is_in_long_line = not end
            self._too_long += bool(end)
            return end or len(data)
        end = data.rfind(b"\n") + 1
        if end:
            self.version += 1
            for line in self._parser.parse(data[:end]):
                self._add(line)
            return end
        self._is_in_long_line = len(data) == _BLOCK
        return len(data) if self._is_in_long_line else 0

    def _add(self, line: Mapping[str, Any]) -> None:
        step = line["step"]
        self.first_step = min(self.first_step, step)
        self._begin = step if self._begin is None else self._begin
        wall_s = number_of(line.get("wall_s", math.nan))
        for name, given in line.items():
            if name in NOT_METRICS or not self._reading.wants(name):
                continue
            value = given if type(given) is float else number_of(given)
            if value is None:
                continue
            series = self.series.get(name)
            if series is None:
                if len(self.series) >= self._reading.most_names:
                    self._lacks_names = True
                    continue
                series = self.series[name] = empty_series(self._directory.parent.name, name)
            self.overwritten += series.add(step, math.nan if wall_s is None else wall_s, value, self.number)

    def begins_before(self, step: float) -> bool:
        """Whether the first line has an earlier step: else a later attempt has copied all of it that counts."""
        if self._begin is not None:
            return self._begin < step
        path, parser = metrics_source(self._directory)
        try:
            with self._reading.open_file(path, self._directory.parent) as file:
                lines = files.read_fd(file.fileno(), 0, _BLOCK).split(b"\n", 2)[:-1]
        except (OSError, StateError) as error:
            return bool(self._failure(error))
        first = next((found for line in lines if (found := parser.parse(line + b"\n"))), None)
        if first is None:
            return True
        # It has ended, and is not looked at again.
        self._begin = first[0]["step"]
        return bool(self._begin < step)

    @property
    def is_cut(self) -> bool:
        """Whether the file is longer than what is ever read."""
        return self.is_whole and self.size > MOST_BYTES

    def tell(self, metrics: Metrics, end: float) -> None:
        """Note what was not read, and what does not count, from the step `end` on neither."""
        path = str(self.path)
        replaced = self.overwritten + sum(len(one) - bisect_left(one.steps, end) for one in self.series.values())
        for noted, count in (
            (metrics.damaged, self._parser.damaged + self._too_long),
            (metrics.overwritten, replaced),
        ):
            if count:
                noted[path] = count
        why = [self.failure]
        if not self.is_there and not self.failure and self._parser.is_named:
            why.append("there is no such file")
        if self.is_cut:
            why.append(f"{bytes_text(self.size)} long: only the first {bytes_text(MOST_BYTES)} are read")
        if self._lacks_names:
            why.append(f"more than {self._reading.most_names:,} metrics: the others are left out")
        if any(why):
            metrics.incomplete[path] = "; ".join(filter(None, why))


def _open_plain(path: Path, _job: Path) -> BinaryIO:
    return open(path, "rb", buffering=0, opener=files.open_at_once)


class _Reading(msgspec.Struct, frozen=True):
    """Which metrics are read, of how many names, and how a file below the directory of a job is opened."""

    wants: Callable[[str], bool]
    open_file: Callable[[Path, Path], BinaryIO]
    most_names: int


class JobMetrics:
    """The metrics of a job, read as far as the files of its attempts have grown.

    `directory` is the job's. `open_file` opens a file below it: one for which it raises OSError or StateError is
    reported (`tell`), and does not hide those of the other attempts.
    """

    def __init__(
        self,
        directory: Path,
        *,
        wants: Callable[[str], bool] = lambda _: True,
        open_file: Callable[[Path, Path], BinaryIO] = _open_plain,
        most_names: int = MOST_NAMES,
    ) -> None:
        self._directory = directory
        self._reading = _Reading(wants, open_file, most_names)
        self._known: dict[int, AttemptMetrics] = {}
        self._settled: set[int] = set()
        # What counts, the last attempt first, each with the step before which it does.
        self._counting: list[tuple[AttemptMetrics, float]] = []
        self._combined: tuple[object, dict[str, Series]] = (None, {})

    def read(self, last: int, until_s: float = math.inf) -> None:
        """Read what was added, of the attempts up to `last`, until that moment of the monotonic clock."""
        end = math.inf
        self._counting = []
        for number in range(last, 0, -1):
            one = self._known.get(number)
            if one is None:
                one = self._known[number] = AttemptMetrics(self._directory / str(number), self._reading)
            if end < math.inf and not one.begins_before(end):
                continue
            if number not in self._settled:
                one.read(until_s)
            if number < last and one.is_there and one.is_whole:
                # It has ended.
                self._settled.add(number)
            self._counting.append((one, end))
            end = min(end, one.first_step)

    @property
    def version(self) -> object:
        """Changes with the series."""
        return tuple((one.number, one.version, end) for one, end in self._counting)

    @property
    def parts(self) -> Sequence[AttemptMetrics]:
        """The attempts that count, the last one first."""
        return [one for one, _ in self._counting]

    @property
    def series(self) -> Mapping[str, Series]:
        """The values that count, by metric."""
        version = self.version
        if self._combined[0] != version:
            self._combined = version, _combined(self._counting)
        return self._combined[1]

    def tell(self, metrics: Metrics) -> None:
        """Note what was not read, and what does not count."""
        for one, end in self._counting:
            one.tell(metrics, end)


def _combined(counting: Sequence[tuple[AttemptMetrics, float]]) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for one, end in reversed(counting):
        for name, series in one.series.items():
            count = bisect_left(series.steps, end)
            if name in found:
                found[name].extend(series.first(count))
            elif count:
                # Later ones are appended to a copy.
                found[name] = series if count == len(series) and one is counting[0][0] else series.first(count)
    return found


def read_metrics(layout: Layout, attempts: Mapping[str, int], names: Sequence[str] = ()) -> Metrics:
    """The metrics of jobs up to the attempt with this number, of each job. `names`: ids of metrics, or globs.

    Raises UsageError for a name that no metric has.
    """
    wants = _filter(names)
    metrics = Metrics()
    for job, last in attempts.items():
        of_job = JobMetrics(layout.job_dir(job), wants=wants)
        of_job.read(last)
        of_job.tell(metrics)
        metrics += of_job.series.values()
    for name in names:
        if not any(_is_meant(one.metric, name) for one in metrics):
            known = _names(layout, attempts)
            hint = nearest(name, known) if known else ": none has any"
            raise UsageError("; ".join([f"no job has a metric {name!r}{hint}", *metrics.faults()[:_FAULTS]]))
    return metrics


def _is_meant(metric: str, name: str) -> bool:
    """Whether `name` is this metric, whose name may have the characters of globs, or a glob that matches it."""
    return metric == name or fnmatch.fnmatchcase(metric, name)


def _filter(names: Sequence[str]) -> Callable[[str], bool]:
    if not names:
        return lambda _: True
    known: dict[str, bool] = {}

    def wants(metric: str) -> bool:
        if metric not in known:
            known[metric] = any(_is_meant(metric, name) for name in names)
        return known[metric]

    return wants


def _names(layout: Layout, attempts: Mapping[str, int]) -> list[str]:
    """The names of all metrics of these jobs."""
    found: set[str] = set()
    for job, last in attempts.items():
        of_job = JobMetrics(layout.job_dir(job))
        of_job.read(last)
        found.update(of_job.series)
        if len(found) > MOST_NAMES:
            break
    return sorted(found)
