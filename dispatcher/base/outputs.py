"""The files in which a training script leaves its result and its metrics itself; a method names them.

They lie in the attempt's directory, so that what an earlier attempt or another job has left is never taken for this
attempt's. `script-outputs.json` has them as the attempt was claimed. Metrics are read where they are. The result is
copied into `result.json` when the attempt is done and before that is recorded: nothing else reads results elsewhere.
"""

import errno
import functools
import io
import json
import math
import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.lazy import pattern
from dispatcher.base.messages import bytes_text
from dispatcher.base.schema.kinds import TEXT, one_or_many
from dispatcher.base.schema.types import Key, Value
from dispatcher.base.values import BadValueError, shown
from dispatcher.errors import nearest

# What in a command, and at the beginning of a path here, is the attempt's directory.
ATTEMPT_DIR: Final = "{attempt_dir}"
# Of what a host sends that does not see the workspace.
_LONGEST_SENT: Final = 1 << 20
_RESULTS: Final = (".json", ".jsonl", ".csv")
_METRICS: Final = (".jsonl", ".csv")
_NUMBER: Final = pattern(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?(?:nan|inf|infinity)", re.I)
# Files of the attempt that others write and read, but for those that have this very content.
_TAKEN: Final = frozenset(
    value for name, value in vars(contract).items() if name.endswith("_FILE")
) - {contract.RESULT_FILE, contract.METRICS_FILE}  # fmt: skip
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR)
_LONGEST_NAME: Final = 255


def _parse_output(value: object, endings: Sequence[str]) -> str:
    if not isinstance(value, str) or not value.endswith(tuple(endings)):
        raise BadValueError(f"expected a file whose name ends in {', '.join(endings)}")
    path = value.removeprefix(f"{ATTEMPT_DIR}/")
    fault = outside(path)
    if fault:
        raise BadValueError(fault)
    return posixpath.normpath(path)


def _parse_columns(value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise BadValueError("expected names such as [val_loss, acc]")
    return tuple(names)


def _parse_column(value: object) -> str:
    if not (isinstance(value, str) and value):
        raise BadValueError("expected the name of a column, such as epoch")
    return value


def _output(endings: Sequence[str]) -> Value:
    ending = "|".join(re.escape(one) for one in endings)
    return Value(functools.partial(_parse_output, endings=endings), {"type": "string", "pattern": f"({ending})$"})


class ResultFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file in which a script leaves its result."""

    path: Annotated[
        str,
        _output(_RESULTS),
        Key("the file, by its path in the attempt's directory: `.json`, `.jsonl` or `.csv`", is_short=True),
    ]
    values: Annotated[
        tuple[str, ...],
        Value(_parse_columns, one_or_many(TEXT)),
        Key("names of columns, or of values in a JSON object (`eval.acc`: of one within)", default="all of them"),
    ] = ()

    def __post_init__(self) -> None:
        if self.values and self.path == contract.RESULT_FILE:
            raise BadValueError(
                f"all of {self.path} is the result: leave `values` out, or let the script write another file"
            )


class MetricsTable(msgspec.Struct, frozen=True, omit_defaults=True):
    """The file in which a script logs metrics per step."""

    path: Annotated[
        str,
        _output(_METRICS),
        Key("the file, by its path in the attempt's directory: `.jsonl` or `.csv`", is_short=True),
    ]
    step: Annotated[
        str,
        Value(_parse_column, TEXT),
        Key("the name of the steps", default="`step`; where there is none, lines are counted from 1"),
    ] = ""


class Outputs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of one attempt, by paths in its directory.

    `is_elsewhere`: its host does not see the workspace. `is_damaged`: which files they were cannot be read any more.
    """

    result: ResultFile | None = None
    metrics: MetricsTable | None = None
    is_elsewhere: bool = False
    is_damaged: bool = False

    @property
    def names(self) -> list[str]:
        return [one.path for one in (self.result, self.metrics) if one is not None]


class _NoResultError(ValueError):
    """There is no result; the message says why."""


_decode = msgspec.json.Decoder(Outputs).decode


def outside(path: str) -> str:
    """Why that cannot be a file of an attempt's own; empty when it can."""
    name = posixpath.normpath(path)
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in name.split("/")):
        return f"{shown(path)} has a name of more than {_LONGEST_NAME} bytes, which filesystems do not take"
    if path.startswith("/") or name.startswith("../"):
        return (
            f"{shown(path)} is not in the attempt's directory, so it may be of another attempt or job: have the "
            f"script write there, which {ATTEMPT_DIR} in its command is, and name the file as it is called there"
        )
    first = name.partition("/")[0]
    return f"{first} in the attempt's directory is the dispatcher's: choose another name" if first in _TAKEN else ""


def encode(outputs: Outputs) -> bytes:
    return msgspec.json.encode(outputs) + b"\n"


def read_outputs(directory: Path) -> Outputs:
    """What of an attempt's files is its script's. Raises OSError where that cannot be determined now."""
    try:
        return _decode(files.read_at_once(directory / contract.OUTPUTS_FILE))
    except OSError as error:
        if files.is_passing(error):
            raise
        return Outputs(is_damaged=error.errno not in _ABSENT)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Outputs(is_damaged=True)


def collect_result(directory: Path, outputs: Outputs) -> str:
    """Copy the script's result into `result.json`, durably; why it has none, or not all of it, empty when it has.

    What the job has reported itself stays. Raises OSError where it cannot be determined, or written, now.
    """
    reported = _reported(directory)
    source = outputs.result
    if source is None:
        is_unknown = outputs.is_damaged and reported is None
        return f"{contract.OUTPUTS_FILE}, which says where it is, is damaged" if is_unknown else ""
    name, data, problem = source.path, b"", ""
    try:
        values, problem = _values(directory, outputs, source)
        if values:
            text = json.dumps(values, ensure_ascii=False, allow_nan=False)
            data = f"{text}\n".encode("utf-8", "backslashreplace")
        if data and reported is None:
            name = contract.RESULT_FILE
            files.replace_file(directory / name, data)
            name = source.path
    except _NoResultError as error:
        problem = str(error)
    except RecursionError:
        # In Python's words, which depend on where it noticed.
        problem = "maximum recursion depth exceeded"
    except OSError as error:
        if files.is_passing(error):
            raise
        problem = error.strerror or str(error)
    # A copy of an earlier try says the same again.
    is_own = reported is not None and reported != data
    return f"{name}: {problem}" if problem and not is_own else ""


def _reported(directory: Path) -> bytes | None:
    """The `result.json` that is there; None when there is none."""
    path = directory / contract.RESULT_FILE
    try:
        return files.read_at_once(path)
    except OSError as error:
        if files.is_passing(error):
            raise
        return None if files.is_missing(path) else b""


def _values(directory: Path, outputs: Outputs, source: ResultFile) -> tuple[dict[str, Any], str]:
    """The result, and what it lacks. Raises _NoResultError where the file has none, OSError where it cannot be read."""
    data = _read(directory, outputs, source)
    if source.path.endswith(".json"):
        found = _parse_object(data)
    elif source.path.endswith(".jsonl"):
        found = _last_values(_parse_object(line, number) for number, line in _filled_lines(data))
    else:
        found = _last_values(_rows(data))
    chosen = {name: value for name in source.values for value in _picked(found, name)} if source.values else found
    lacking = [name for name in source.values if name not in chosen]
    if lacking or not chosen:
        what = f"it has no {', '.join(lacking)}{nearest(lacking[0], found)}" if lacking else "it has no values"
        return _finite(chosen), what
    return _finite(chosen), ""


def _read(directory: Path, outputs: Outputs, source: ResultFile) -> bytes:
    path = directory / source.path
    try:
        try:
            data = files.read_at_once(path)
        except FileNotFoundError:
            # Written on another host, it may be missing here until the names are fetched.
            files.refresh_names(path.parent)
            data = files.read_at_once(path)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        if outputs.is_elsewhere:
            raise _NoResultError(f"not on its host, or longer than {bytes_text(_LONGEST_SENT)}") from None
        raise _NoResultError(
            f"there is no such file in {directory}: the script writes it there if its command has {ATTEMPT_DIR}"
        ) from None
    if not is_own(directory, source.path):
        raise _NoResultError("a link out of the attempt's directory, which may be to another attempt or job")
    return data


def is_own(directory: Path, name: str) -> bool:
    """Whether the file is in the attempt's directory, and no link out of it: that may be of another attempt or job."""
    return os.path.realpath(directory / name).startswith(f"{os.path.realpath(directory)}/")


def json_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object, also with NaN and Infinity, which are no JSON, but which Python's json writes; None: none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse_object(data: bytes, line: int = 0) -> dict[str, Any]:
    value = json_object(data)
    if value is None:
        raise _NoResultError(f"line {line} is not a JSON object" if line else "not a JSON object")
    return value


def _filled_lines(data: bytes) -> Iterable[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip())


def _rows(data: bytes) -> Iterable[dict[str, Any]]:
    table = Table()
    rows = table.rows(data)
    heading = table.heading or []
    if heading and all(_NUMBER.fullmatch(name) for name in heading):
        raise _NoResultError(f"its first row has no names of columns, but {', '.join(heading)}")
    twice = [name for name, count in Counter(heading).items() if count > 1]
    if twice:
        raise _NoResultError(f"it has several columns {twice[0]}")
    for number, row in enumerate(rows, 2):
        if row is None:
            raise _NoResultError(f"row {number} does not have as many cells as the first one, which has {len(heading)}")
        yield row


def _last_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each column its last value: an empty cell is none."""
    found: dict[str, Any] = {}
    for row in rows:
        found.update(row)
    return found


def _picked(found: Mapping[str, Any], name: str) -> list[Any]:
    """The value with this name, which may be in objects within, as in `eval.acc`; none where there is none."""
    if name in found:
        return [found[name]]
    first, _, rest = name.partition(".")
    within = found.get(first)
    return _picked(within, rest) if rest and isinstance(within, dict) else []


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null, as in report_result."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Table:
    """The rows of a CSV file with a heading, of which parts arrive one after the other."""

    def __init__(self) -> None:
        self.heading: list[str] | None = None

    def rows(self, data: bytes) -> list[dict[str, Any] | None]:
        """The rows of these complete lines: cells that are not empty, by column; None for one that does not fit."""
        # Imported here because few methods have such a file.
        import csv

        text = data.decode("utf-8-sig" if self.heading is None else "utf-8", "replace")
        rows: list[dict[str, Any] | None] = []
        try:
            for cells in csv.reader(io.StringIO(text, newline=""), skipinitialspace=True):
                row = [cell.strip() for cell in cells]
                # A script that goes on with a file may write the heading again.
                if not any(row) or row == self.heading:
                    continue
                if self.heading is None:
                    self.heading = row
                elif len(row) != len(self.heading):
                    rows.append(None)
                else:
                    rows.append({name: _cell(text) for name, text in zip(self.heading, row, strict=True) if text})
        except csv.Error:
            # A cell is longer than the module reads.
            rows.append(None)
        return rows


def _cell(text: str) -> str | int | float:
    """A number where the text is one."""
    if not _NUMBER.fullmatch(text):
        return text
    try:
        return int(text)
    except ValueError:
        return float(text)


def filled(outputs: Outputs, fill: Callable[[str], str]) -> Outputs:
    """With the placeholders in paths filled. Raises BadValueError for a path out of the attempt's directory."""

    def path(text: str) -> str:
        name = fill(text)
        fault = outside(name)
        if fault:
            raise BadValueError(fault)
        return posixpath.normpath(name)

    result, metrics = outputs.result, outputs.metrics
    return msgspec.structs.replace(
        outputs,
        result=result and msgspec.structs.replace(result, path=path(result.path)),
        metrics=metrics and msgspec.structs.replace(metrics, path=path(metrics.path)),
    )
