"""The metrics of jobs: read as far as they have grown, and given with as many points as pixels.

Of the points under one pixel the smallest and the largest value are given, so that a spike of one step stays visible.
For one thread.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import StateError
from dispatcher.query import metrics
from dispatcher.query.curves import STEP, Curve, along, edges, has_times
from dispatcher.web.logs import open_log

# So many jobs are kept as read, and so many points of all of them, which take 50 bytes each.
_KEPT: Final = 256
_KEPT_POINTS: Final = 8_000_000
_MOST_NAMES: Final = 200
_LONGEST_NAME: Final = 200


class MetricFile:
    """The metrics of a job up to an attempt, as far as they were read."""

    def __init__(self, directory: Path) -> None:
        self._last = int(directory.name)
        self._read = metrics.JobMetrics(directory.parent, open_file=open_log, most_names=_MOST_NAMES)
        self._series: dict[tuple[str, str], Curve | None] = {}
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
            self._has_times = any(map(has_times, self._read.series.values()))
        return self._has_times

    def series(self, name: str, x: str = STEP) -> Curve | None:
        """The points of a metric along its steps, or along the seconds of training; None where the job has none."""
        read = self._read.series.get(name)
        if read is None:
            return None
        if (name, x) not in self._series:
            self._series[name, x] = along(read, x)
        return self._series[name, x]


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


def points(series: Curve, width: int) -> dict[str, Any]:
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


def _thinned(x: array[float], width: int) -> list[float]:
    """At most `width` of the values, evenly."""
    step = max(1, math.ceil(len(x) / width))
    return [short(one) for one in x[::step]]


def short(value: float) -> float:
    """A value with as many digits as a picture can show."""
    return float(f"{value:.7g}")
