"""The lines of metrics files: `metrics.jsonl` (runtime/metrics.py has the form of a line), or the file that a method
names (base/outputs.py).
"""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import files, outputs
from dispatcher.base.file_identity import Identity, identity_of

NOT_METRICS: Final = frozenset({"step", "wall_s"})
# So much is read of both ends of a file for its last line; and of a whole file whose lines are counted.
_LAST_BYTES: Final = 8 << 10
_MOST_COUNTED: Final = 64 << 10
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


class LineParser:
    """Parses the complete lines of a metrics file, in their order.

    `table` is the file that a method names, None for `metrics.jsonl`. `damaged`: how many lines were left out,
    because they are no JSON object or no row of the table, or have no step.
    """

    def __init__(self, table: outputs.MetricsTable | None) -> None:
        self.is_named = table is not None
        self._rows = outputs.Table() if table is not None and table.path.endswith(".csv") else None
        self._step = (table and table.step) or "step"
        # Whether lines without steps are counted: that is as the first line is.
        self._counts = None if table is not None and not table.step else False
        self._count = 0
        self.damaged = 0

    @property
    def has_steps(self) -> bool:
        """Whether lines say their steps themselves, so that those before them need not be read."""
        return self._counts is False

    def parse(self, data: bytes) -> list[dict[str, Any]]:
        """The lines that have a `step`."""
        lines = self._json_lines(data) if self._rows is None else self._rows.rows(data)
        found = [with_step for line in lines if line is not None and (with_step := self._with_step(line)) is not None]
        self.damaged += len(lines) - len(found)
        return found

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
        self._known: dict[Path, tuple[Identity, dict[str, Any] | None]] = {}

    def of(self, directory: Path) -> dict[str, Any] | None:
        """That of an attempt; None where its method names none, or it has none."""
        table = _table(directory)
        if table is None:
            return None
        try:
            with open(directory / table.path, "rb", buffering=0, opener=files.open_at_once) as file:
                found = os.fstat(file.fileno())
                identity = identity_of(found)
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
    return parsed[-1] if parsed else None


def is_step(value: Any) -> bool:
    """Whether that is the step of a line: a number that is finite."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is float and math.isfinite(value)
