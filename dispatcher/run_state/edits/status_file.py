"""matrix_status.json as text: one line per job, readable by `json.load`; rendering and careful parsing. Pure."""

from __future__ import annotations

import itertools
import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.messages import bytes_text
from dispatcher.base.times import parse_time
from dispatcher.errors import StatusFileError
from dispatcher.run_state.states import Record

_encode = msgspec.json.Encoder().encode
# With a space after each colon and comma, as people write and search it.
_spaced = msgspec.json.format
# The fields of a record that are times.
TIMES = ("started_at", "finished_at", "retry_at")
_JOURNAL_TIME = len("2026-06-17T22:48:00.123Z")
# How many lines are rendered at once.
_PART = 500
# Far below what the interpreter's stack allows, even from a deep call.
_DEEPEST = 100


def render(records: Mapping[str, Record]) -> bytes:
    """All records, one line each, in the order in which the jobs were first queued."""
    return b"".join(render_in_parts(records))


def render_in_parts(records: Mapping[str, Record]) -> Iterator[bytes]:
    """As `render`, some hundreds of lines at a time."""
    if not records:
        yield b"{}\n"
        return
    lines = (b"%s: %s" % (_encode(job), _spaced(_encode(shown(record)), indent=0)) for job, record in records.items())
    before = b"{\n"
    while part := b",\n".join(itertools.islice(lines, _PART)):
        yield before + part
        before = b",\n"
    yield b"\n}\n"


def shown(record: Record) -> dict[str, Any]:
    """The fields of a status line: those of the record, with times as labs' scripts parse them."""
    fields = record.fields()
    for name in TIMES:
        if name in fields:
            fields[name] = whole_second(fields[name])
    return fields


def whole_second(time: str) -> str:
    """A journal time without its milliseconds (`2026-06-17T22:48:00Z`); anything else stays as it is."""
    is_ours = len(time) == _JOURNAL_TIME and time[19] == "." and time[23] == "Z" and parse_time(time) is not None
    return f"{time[:19]}Z" if is_ours else time


# Of one job: what a person writes there is in the journal, and read by every process.
LONGEST_LINE: Final = 1 << 20


class BrokenLine(msgspec.Struct, frozen=True):
    """A line that cannot be parsed; `job` is the job that it is of, where that can be told."""

    number: int
    why: str
    job: str | None = None


class Lines(msgspec.Struct, frozen=True):
    """What can be parsed of a status file, job by job, and the lines that cannot."""

    jobs: dict[str, dict[str, Any]]
    broken: tuple[BrokenLine, ...] = ()


def parse(data: bytes, name: str) -> dict[str, dict[str, Any]]:
    """The lines of a status file that a person may have edited, job by job.

    A byte order mark is allowed. Raises StatusFileError, which names the line, for anything but a JSON object of
    objects, for a duplicate job (the later line would silently win), and for NaN or infinity.
    """
    try:
        return _parse(data)
    except _Fault as fault:
        raise StatusFileError(f"{name}: {fault}") from None


class FirstFile(msgspec.Struct, frozen=True):
    """The status file that a journal begins with: a line for each job, and the jobs that hold no object."""

    jobs: dict[str, dict[str, Any]]
    others: dict[str, Any] = {}


def parse_first(data: bytes, name: str, *, is_foreign: bool) -> FirstFile:
    """As `parse`, but in a foreign file some of the jobs may hold no object; StatusFileError where none of them does.

    A file of this workspace stays in use and is read again by every transaction, so it must be free of faults.
    """
    if not is_foreign:
        return FirstFile(parse(data, name))
    try:
        document = _document(data)
        jobs = {job: fields for job, fields in document.items() if isinstance(fields, dict)}
        if not jobs:
            _check_members(document, data)
    except _Fault as fault:
        raise StatusFileError(f"{name}: {fault}") from None
    return FirstFile(jobs, {job: value for job, value in document.items() if job not in jobs})


def parse_lines(data: bytes, name: str) -> Lines:
    """As `parse`, but where every job has a line of its own, one that cannot be parsed does not affect the others.

    Raises StatusFileError when the file cannot be parsed and a job is spread over several lines (as `jq` does).
    """
    try:
        return Lines(_parse(data))
    except _Fault as fault:
        found = _LineReader().read(data)
        if found is None:
            raise StatusFileError(f"{name}: {fault}") from None
        return found


class _LineReader:
    """Parses a status file line by line that is not valid JSON as a whole; commas may be missing."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Any]] = {}
        self._numbers: dict[str, int] = {}
        self._broken: list[BrokenLine] = []

    def read(self, data: bytes) -> Lines | None:
        """None when the jobs do not have lines of their own."""
        rows = [(number, row) for number, row in enumerate(data.removeprefix(BOM_UTF8).split(b"\n"), 1) if row.strip()]
        is_opened = bool(rows) and rows[0][1].strip() == b"{"
        is_closed = len(rows) > 1 and rows[-1][1].strip() == b"}"
        inner = rows[is_opened : len(rows) - is_closed]
        too_many = is_closed and len(inner) > 1 and inner[-1][1].rstrip() == b"}"
        inner = inner[: len(inner) - too_many]
        for number, row in inner:
            # What a person has spread over several lines belongs to the line above, which cannot be parsed alone.
            if not (self._broken and self._broken[-1].number == number - 1 and row[:1] in b" \t}]"):
                self._read_row(number, row)
            else:
                self._broken.append(BrokenLine(number, ""))
        # Lines of our own are not indented, and none of them opens what a later one closes.
        numbers = set(self._numbers.values())
        own = sum(row[:1] == b'"' and number in numbers for number, row in inner)
        spread = sum(row.rstrip()[-1:] in (b"{", b"[") for _, row in inner)
        if not own or spread > own:
            return None
        broken = [line for line in self._broken if line.why]
        if too_many:
            broken.append(BrokenLine(rows[-1][0], "there is one } too many"))
        if not is_opened:
            broken.append(BrokenLine(1, "the { at the beginning of the file is missing"))
        if not is_closed:
            broken.append(BrokenLine(rows[-1][0], "the } at the end of the file is missing"))
        return Lines(self._jobs, tuple(sorted(broken, key=lambda line: line.number)))

    def _read_row(self, number: int, row: bytes) -> None:
        try:
            found = _parse(b"{%s}" % row.strip().rstrip(b","))
        except _Fault as fault:
            self._broken.append(BrokenLine(number, fault.why, _job_of(row)))
            return
        for job, fields in found.items():
            if job in self._numbers:
                self._jobs.pop(job, None)
                why = f"duplicate job {job!r}, also in line {self._numbers[job]}"
                self._broken.append(BrokenLine(number, why, job))
            else:
                self._jobs[job] = fields
                self._numbers[job] = number


def _job_of(row: bytes) -> str | None:
    """The job that a broken line seems to be of."""
    match = re.match(rb'\s*("(?:[^"\\]|\\.)*")', row)
    try:
        return str(json.loads(match[1])) if match else None
    except ValueError:
        return None


def _parse(data: bytes) -> dict[str, dict[str, Any]]:
    """Raises _Fault."""
    document = _document(data)
    _check_members(document, data)
    return document


def _check_members(document: Mapping[str, Any], data: bytes) -> None:
    """Raises _Fault for the first job that holds no object."""
    for job, fields in document.items():
        if not isinstance(fields, dict):
            text = data.decode("utf-8-sig")
            where = _line_of(text, re.search(re.escape(json.dumps(job, ensure_ascii=False)), text))
            raise _Fault(f"line {where}", f"{job!r} holds {fields!r}, expected an object with a state")


def _document(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`. Raises _Fault."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Fault(f"line {line}", f"byte 0x{data[error.start]:02x} is not UTF-8") from None
    if not text.strip():
        raise _Fault("line 1", "the file is empty")
    try:
        document = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_limited
        )
        # json.loads accepts half of a surrogate pair, which could not be written again.
        _encode(document)
        _check_depth(document, _DEEPEST)
    except json.JSONDecodeError as error:
        raise _Fault(f"line {error.lineno}, column {error.colno}", error.msg) from None
    except UnicodeEncodeError as error:
        where = _line_of(text, re.search(r"\\u[dD][89a-fA-F]", text))
        raise _Fault(f"line {where}", f"{error.object!r} is not valid text") from None
    except _DuplicateKeyError as error:
        raise _Fault(_lines_with(text, error.key), f"duplicate key {error.key!r}") from None
    except _ConstantError as error:
        where = _line_of(text, re.search(rf"(?<![\w\"-]){re.escape(error.word)}\b", text))
        shown = error.word if len(error.word) < 40 else f"{error.word[:20]}... ({len(error.word)} characters)"
        raise _Fault(f"line {where}", f"{shown} is not a number that can be kept; write a string") from None
    except RecursionError:
        raise _Fault("line 1", "nested too deeply to be a status file") from None
    if not isinstance(document, dict):
        raise _Fault("line 1", f"a {type(document).__name__}, expected an object of jobs")
    if len(data) > LONGEST_LINE:
        _check_sizes(document, text)
    return document


def _check_sizes(document: Mapping[str, Any], text: str) -> None:
    """Raises _Fault for the first job with a line that is too long for the journal, which every process reads."""
    for job, fields in document.items():
        size = len(_encode(fields))
        if size > LONGEST_LINE:
            where = _line_of(text, re.search(re.escape(json.dumps(job, ensure_ascii=False)), text))
            most = bytes_text(LONGEST_LINE)
            raise _Fault(f"line {where}", f"{job!r} has {bytes_text(size)} of text, a line at most {most}: shorten it")


class _Fault(Exception):
    """What is wrong with a text, and in which line."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.why = why


class _DuplicateKeyError(ValueError):
    def __init__(self, key: str) -> None:
        self.key = key


class _ConstantError(ValueError):
    def __init__(self, word: str) -> None:
        self.word = word


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return result


def _refuse_constant(word: str) -> Any:
    raise _ConstantError(word)


def _check_depth(value: Any, left: int) -> None:
    if isinstance(value, (dict, list)):
        if not left:
            raise RecursionError
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, (dict, list)):
                _check_depth(inner, left - 1)


def _finite(word: str) -> float:
    value = float(word)
    if math.isinf(value):
        raise _ConstantError(word)
    return value


def _limited(word: str) -> int:
    if len(word) > 18 and (len(word) > 20 or not -(2**63) <= int(word) < 2**63):
        raise _ConstantError(word)
    return int(word)


def _line_of(text: str, match: re.Match[str] | None) -> int:
    return 1 if match is None else text.count("\n", 0, match.start()) + 1


def _lines_with(text: str, key: str) -> str:
    quoted = json.dumps(key, ensure_ascii=False)
    numbers = [str(number) for number, line in enumerate(text.splitlines(), 1) if quoted in line]
    return ("lines " if len(numbers) > 1 else "line ") + ", ".join(numbers[:4] or ["?"])
