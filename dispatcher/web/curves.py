"""The metrics of attempts: read as far as they have grown, and given with as many points as pixels.

Of the points under one pixel the smallest and the largest value are given, so that a spike of one step stays visible.
NaN and infinity are no points; where they were is told apart. For one thread.
"""

from __future__ import annotations

import bisect
import itertools
import math
import os
import time
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import StateError
from dispatcher.report.metrics import BLOCK, MOST_BYTES, NOT_METRICS, metrics_source, number_of
from dispatcher.web.logs import open_log

STEP: Final = "step"
# So many files are kept as read, and so many points of all of them.
_KEPT: Final = 256
_KEPT_POINTS: Final = 20_000_000
_MOST_NAMES: Final = 200
_LONGEST_NAME: Final = 200


class Series:
    """One metric of an attempt, in the order of its steps."""

    def __init__(self) -> None:
        self.x = array("d")
        self.y = array("d")
        # Where the value was no number.
        self.nan = array("d")
        self._is_sorted = True

    def add(self, x: float, y: float) -> None:
        if not math.isfinite(y):
            if self.nan and x < self.nan[-1]:
                self._is_sorted = False
            self.nan.append(x)
            return
        if self.x and x < self.x[-1]:
            self._is_sorted = False
        self.x.append(x)
        self.y.append(y)

    def sort(self) -> None:
        """Bring the points into the order of their steps: a job may have logged some of them twice."""
        if not self._is_sorted:
            order = sorted(range(len(self.x)), key=self.x.__getitem__)
            self.x = array("d", [self.x[place] for place in order])
            self.y = array("d", [self.y[place] for place in order])
            self.nan = array("d", sorted(self.nan))
            self._is_sorted = True

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
    """What was read of one file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path, self._parser = metrics_source(directory)
        self.series: dict[str, Series] = {}
        self.size = 0
        self.offset = 0
        self._inode = 0
        self._first = b""

    @property
    def is_whole(self) -> bool:
        """Whether all lines were read that the file has, or as many as are ever read; the last may be unfinished."""
        return self.offset >= min(self.size, MOST_BYTES)

    @property
    def points(self) -> int:
        return sum(len(one.x) for one in self.series.values())

    def read(self, until_s: float) -> None:
        """Read what was added, until that moment of the monotonic clock. Raises OSError, and StateError for a link."""
        with open_log(self.path, below=self._directory.parent) as file:
            found = os.fstat(file.fileno())
            first = os.pread(file.fileno(), 256, 0)
            is_other = found.st_ino != self._inode or found.st_size < self.offset or not first.startswith(self._first)
            if is_other:
                self.series, self.offset = {}, 0
                self.path, self._parser = metrics_source(self._directory)
            self._inode, self.size, self._first = found.st_ino, found.st_size, first
            while not self.is_whole:
                data = os.pread(file.fileno(), BLOCK, self.offset)
                length = data.rfind(b"\n") + 1
                if not length and len(data) < BLOCK:
                    # It is still being written.
                    self.size = self.offset
                    break
                # What has no end within a block is no metrics, and is skipped.
                length = length or len(data)
                self._add(data[:length])
                self.offset += length
                if time.monotonic() > until_s:
                    break

    def _add(self, data: bytes) -> None:
        series = self.series
        for values in self._parser.parse(data):
            # Jobs write this file: one bad line must not hide the others.
            if values is None:
                continue
            step = float(values[STEP])
            for name, value in values.items():
                number = value if type(value) is float else number_of(value)
                if number is None or name in NOT_METRICS:
                    continue
                one = series.get(name)
                if one is None:
                    if len(series) >= _MOST_NAMES or len(name) > _LONGEST_NAME:
                        continue
                    one = series[name] = Series()
                one.add(step, number)


class MetricFiles:
    """The files that were asked for last."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, MetricFile] = OrderedDict()

    def read(self, directory: Path, until_s: float) -> MetricFile | None:
        """The metrics of an attempt as far as they were read until then; None when it has none."""
        found = self._files.pop(directory, None) or MetricFile(directory)
        try:
            found.read(until_s)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StateError(f"{found.path} cannot be read: {error.strerror}") from error
        self._files[directory] = found
        while len(self._files) > 1 and (
            len(self._files) > _KEPT or sum(one.points for one in self._files.values()) > _KEPT_POINTS
        ):
            self._files.popitem(last=False)
        return found


def curves(file: MetricFile | None, width: int, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """All metrics of a file, or those that are named, with at most `width` points each.

    `read` of `bytes` says how much of the file is in it, `is_cut` that no more of it is ever read.
    """
    if file is None:
        return {"names": [], "x_name": STEP, "series": {}, "bytes": None, "read": 0, "is_cut": False}
    chosen = [name for name in names if name in file.series] if names else list(file.series)
    # So that the answer keeps its bound, whatever the number of metrics.
    width = max(2, min(width, 12_000 // max(1, len(chosen))))
    series = {name: points(file.series[name], width) for name in chosen}
    return {
        "names": list(file.series),
        "x_name": STEP,
        "series": series,
        "bytes": file.size,
        "read": file.offset,
        "is_cut": file.is_whole and file.size > MOST_BYTES,
    }


def points(series: Series, width: int) -> dict[str, Any]:
    """At most `width` points: where they begin, and the smallest and the largest value of each."""
    series.sort()
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
