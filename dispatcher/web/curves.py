"""The metrics of jobs: read as far as they have grown, and given with as many points as pixels.

Of the points under one pixel the smallest and the largest value are given, so that a spike of one step stays visible.
NaN and infinity are no points; where they were is told apart. For one thread.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import StateError
from dispatcher.query import metrics
from dispatcher.web.logs import open_log

STEP: Final = "step"
# Seconds of training, earlier attempts included.
WALL: Final = "wall_s"
# So many jobs are kept as read, and so many points of all of them, which take 50 bytes each.
_KEPT: Final = 256
_KEPT_POINTS: Final = 8_000_000
_MOST_NAMES: Final = 200
_LONGEST_NAME: Final = 200


class Series:
    """One metric of a job, in the order of `x`, its steps or seconds; `nan` is where it has no finite value."""

    def __init__(self, xs: Iterable[float] = (), values: Iterable[float] = ()) -> None:
        self.x = array("d")
        self.y = array("d")
        self.nan = array("d")
        for x, value in zip(xs, values, strict=True):
            if math.isfinite(value):
                self.x.append(x)
                self.y.append(value)
            else:
                self.nan.append(x)

    def between(self, x: float) -> float | None:
        """The value at x on a straight line between two points; None outside of them, and where a NaN is between."""
        place = bisect.bisect_right(self.x, x)
        if not 0 < place < len(self.x):
            return None
        begin, end = self.x[place - 1], self.x[place]
        hole = bisect.bisect_right(self.nan, begin)
        if hole < len(self.nan) and self.nan[hole] < end:
            return None
        before, after = self.y[place - 1], self.y[place]
        value = before + (after - before) * (x - begin) / (end - begin)
        return value if math.isfinite(value) else None

    def slices(self, edges: list[float]) -> list[tuple[int, int]]:
        """The points from each edge to the next one."""
        places = [bisect.bisect_left(self.x, edge) for edge in edges[:-1]]
        places.append(bisect.bisect_right(self.x, edges[-1]))
        return list(itertools.pairwise(places))


class MetricFile:
    """The metrics of a job up to an attempt, as far as they were read."""

    def __init__(self, directory: Path) -> None:
        self._last = int(directory.name)
        self._read = metrics.JobMetrics(directory.parent, open_file=open_log, most_names=_MOST_NAMES)
        self._series: dict[tuple[str, str], Series | None] = {}
        self._has_times: bool | None = None
        self._version: object = None

    def read(self, until_s: float) -> None:
        """Read what was added, until that moment of the monotonic clock."""
        self._read.read(self._last, until_s)
        if self._version != self._read.version:
            self._version, self._series, self._has_times = self._read.version, {}, None

    @property
    def failures(self) -> list[str]:
        """Which files of attempts cannot be read, and why."""
        return [f"{part.path} {part.failure}" for part in self._read.parts if part.failure]

    @property
    def is_there(self) -> bool:
        return any(part.is_there for part in self._read.parts)

    @property
    def is_whole(self) -> bool:
        """Whether all lines were read, or as many as are ever read; the last one may be unfinished."""
        return all(part.is_whole for part in self._read.parts)

    @property
    def is_cut(self) -> bool:
        return any(part.is_cut for part in self._read.parts)

    @property
    def bytes(self) -> tuple[int, int]:
        """How many were read, and of how many."""
        parts = self._read.parts
        size = sum(part.offset if part.is_whole and not part.is_cut else part.size for part in parts)
        return sum(part.offset for part in parts), size

    @property
    def names(self) -> list[str]:
        return [name for name in self._read.series if len(name) <= _LONGEST_NAME]

    @property
    def points(self) -> int:
        return sum(map(len, self._read.series.values()))

    @property
    def left_out(self) -> list[str]:
        """What does not count or was not read, for people."""
        told = metrics.Metrics()
        self._read.tell(told)
        return told.faults()

    @property
    def has_times(self) -> bool:
        """Whether it has seconds of training."""
        if self._has_times is None:
            self._has_times = any(map(_has_times, self._read.series.values()))
        return self._has_times

    def series(self, name: str, x: str = STEP) -> Series | None:
        """The points of a metric along its steps, or along the seconds of training; None where the job has none."""
        read = self._read.series.get(name)
        if read is None:
            return None
        if (name, x) not in self._series:
            self._series[name, x] = Series(read.steps, read.values) if x == STEP else _by_wall(read)
        return self._series[name, x]


def _has_times(read: metrics.Series) -> bool:
    return any(map(math.isfinite, read.wall_s))


def _by_wall(read: metrics.Series) -> Series | None:
    """The points by seconds; one of a line without them lies between its neighbours, or is left out at the ends.

    None where no line has seconds.
    """
    if not _has_times(read):
        return None
    timed = [(step, at) for step, at in zip(read.steps, read.wall_s, strict=True) if math.isfinite(at)]
    wall = Series(*zip(*timed, strict=True))
    points = []
    for step, at, value in zip(read.steps, read.wall_s, read.values, strict=True):
        second = at if math.isfinite(at) else wall.between(step)
        if second is not None:
            points.append((second, value))
    points.sort(key=operator.itemgetter(0))
    return Series(*zip(*points, strict=True))


class MetricFiles:
    """The jobs that were asked for last, by the directory of an attempt."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, MetricFile] = OrderedDict()

    def read(self, directory: Path, until_s: float) -> MetricFile | None:
        """The metrics of a job up to an attempt, as far as they were read until then; None when it has none.

        Raises StateError where a file cannot be read and there is no other.
        """
        found = self._files.pop(directory, None) or MetricFile(directory)
        found.read(until_s)
        if found.is_there:
            self._keep(directory, found)
            return found
        if found.failures:
            raise StateError(found.failures[0])
        return None

    def _keep(self, directory: Path, file: MetricFile) -> None:
        self._files[directory] = file
        while len(self._files) > 1 and (
            len(self._files) > _KEPT or sum(one.points for one in self._files.values()) > _KEPT_POINTS
        ):
            self._files.popitem(last=False)


def curves(file: MetricFile | None, width: int, names: tuple[str, ...] = (), x: str = STEP) -> dict[str, Any]:
    """All metrics of a file, or those that are named, along `x` with at most `width` points each.

    `has_times` says whether the job has seconds of training.
    `read` of `bytes` says how much of the files is in it, `is_cut` that no more of them is ever read, `left_out` what
    does not count or cannot be read.
    """
    if file is None:
        unread: dict[str, Any] = {"bytes": None, "read": 0, "is_cut": False, "left_out": []}
        return {"names": [], "x_name": x, "has_times": False, "series": {}, **unread}
    known = file.names
    chosen = [name for name in names if name in known] if names else known
    # So that the answer keeps its bound, whatever the number of metrics.
    width = max(2, min(width, 12_000 // max(1, len(chosen))))
    series = {name: points(one, width) for name in chosen if (one := file.series(name, x)) is not None}
    read, size = file.bytes
    return {
        "names": known,
        "x_name": x,
        "has_times": file.has_times,
        "series": series,
        "bytes": size,
        "read": read,
        "is_cut": file.is_cut,
        "left_out": file.left_out,
    }


def points(series: Series, width: int) -> dict[str, Any]:
    """At most `width` points: where they begin, and the smallest and the largest value of each."""
    x, y = series.x, series.y
    nan = series.nan
    found: dict[str, Any] = {"count": len(x) + len(nan), "nan": _thinned(nan, width), "nan_count": len(nan)}
    if not x:
        return {**found, "x": [], "min": [], "max": [], "last": None}
    last = {"x": x[-1], "y": y[-1]}
    if len(x) <= width:
        values = [short(one) for one in y]
        return {**found, "x": list(x), "min": values, "max": values, "last": last}
    spans = [(a, b) for a, b in series.slices(edges(x[0], x[-1], width)) if a < b]
    return {
        **found,
        "x": [short(x[a]) for a, _ in spans],
        "min": [short(min(y[a:b])) for a, b in spans],
        "max": [short(max(y[a:b])) for a, b in spans],
        "last": last,
    }


def edges(first: float, last: float, width: int) -> list[float]:
    """The edges of `width` pixels from the first to the last value."""
    return [first + (last - first) * pixel / width for pixel in range(width)] + [last]


def _thinned(x: array[float], width: int) -> list[float]:
    """At most `width` of the values, evenly."""
    step = max(1, math.ceil(len(x) / width))
    return [short(one) for one in x[::step]]


def short(value: float) -> float:
    """A value with as many digits as a picture can show."""
    return float(f"{value:.7g}")
