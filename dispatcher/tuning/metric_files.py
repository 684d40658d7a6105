"""Reads what the attempts of trials write into `metrics.jsonl`, or where their method says, each line once.

Where there is no such file (the job writes none, or its host does not see the workspace), what `report_progress` has
written last counts as a line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.report.attempts import parse_object, read_small
from dispatcher.report.metrics import BLOCK, MOST_BYTES, LineParser, is_step, metrics_source, number_of
from dispatcher.workspace import Layout

# Of which a file that was written anew begins otherwise.
_BEGIN_BYTES: Final = 256


class Reached(msgspec.Struct, frozen=True):
    """What an attempt had at a rung: the value of the first line at or after it, and that line's step.

    `value` is None for one that is not finite.
    """

    rung: int
    step: float
    value: float | None


class _File(msgspec.Struct):
    """How far an attempt's file was read, the rungs that it has not reached, and those that it has."""

    attempt: int
    waiting: list[int]
    parser: LineParser | None = None
    offset: int = 0
    inode: int = 0
    begin: bytes = b""
    reached: dict[int, Reached] = {}


class MetricFiles:
    """The values of `metric` at the `rungs` of attempts."""

    def __init__(self, layout: Layout, metric: str, rungs: Sequence[int]) -> None:
        self._layout = layout
        self._metric = metric
        self._rungs = rungs
        self._files: dict[str, _File] = {}

    def reached(self, job: str, attempt: int) -> Sequence[Reached]:
        """The rungs that this attempt has reached so far, lowest first. Reads what was appended since the last time."""
        file = self._files.get(job)
        if file is None or file.attempt != attempt:
            file = self._files[job] = _File(attempt, list(self._rungs))
        if file.waiting:
            for line in self._new_lines(job, file):
                self._take_in(file, line)
        return [file.reached[rung] for rung in sorted(file.reached)]

    def forget_others(self, jobs: Collection[str]) -> None:
        """Keep nothing of any other job."""
        for job in self._files.keys() - set(jobs):
            del self._files[job]

    def _new_lines(self, job: str, file: _File) -> Iterator[Mapping[str, Any]]:
        path, parser = metrics_source(self._layout.attempt(job, file.attempt).directory)
        try:
            if mount_of(self._layout.jobs_dir).is_network:
                files.refresh_names(path.parent)
            fd = files.open_at_once(os.fspath(path), os.O_RDONLY)
        except OSError:
            # It is there as soon as the job has written its first line.
            yield from _progress(self._layout.attempt(job, file.attempt).progress)
            return
        try:
            found = os.fstat(fd)
            begin = files.read_fd(fd, 0, _BEGIN_BYTES)
            is_other = found.st_ino != file.inode or found.st_size < file.offset or not begin.startswith(file.begin)
            if file.parser is None or is_other:
                # The file was begun, or replaced by the lines that an attempt has taken over.
                file.inode, file.offset, file.parser = found.st_ino, 0, parser
            file.begin = begin
            while file.offset < MOST_BYTES and (data := files.read_fd(fd, file.offset, BLOCK)):
                # A line without its end is read again; one that is longer than a block is no metrics.
                end = data.rfind(b"\n") + 1 or (len(data) if len(data) == BLOCK else 0)
                if not end:
                    return
                file.offset += end
                yield from filter(None, file.parser.parse(data[:end]))
        finally:
            os.close(fd)

    def _take_in(self, file: _File, line: Mapping[str, Any]) -> None:
        step: Any = line.get("step")
        # The journal cannot hold a step that is infinite.
        if not is_step(step) or self._metric not in line:
            return
        value = number_of(line[self._metric])
        if value is None:
            return
        while file.waiting and step >= file.waiting[0]:
            rung = file.waiting.pop(0)
            file.reached[rung] = Reached(rung, float(step), value if math.isfinite(value) else None)


def _progress(path: Path) -> Iterator[Mapping[str, Any]]:
    """The step and the metrics of a progress.json as a line of metrics.jsonl."""
    progress = parse_object(read_small(path)) or {}
    metrics = progress.get("metrics")
    if isinstance(metrics, dict):
        yield {**metrics, "step": progress.get("step")}
