"""The responses of a job on disk: one file per run, a JSON line per answered request.

    {"index": 3, "request": "9f86d0...", "response": {...}}
    {"index": 4, "request": "60303a...", "error": "HTTP 400: ..."}

`request` is the hash by which a response is found; `index` is for people. The last line of a file may be incomplete, if
its run was killed or is still writing it: it counts as not written. Of two lines for one request the first counts.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgspec

from dispatcher.base import files
from dispatcher.base.storing import storing
from dispatcher.errors import StorageError

FOLDER: Final = "responses"
_MOST_OPEN: Final = 64
_LEAST_ROOM: Final = 2**16

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What an API has answered: its response, or the `error` with which it has refused the request for good."""

    response: Any = None
    error: str | None = None


class _Place(NamedTuple):
    number: int
    offset: int
    length: int
    refused: bool


class _Line(msgspec.Struct):
    """Of a line what is kept in memory: a response is passed over."""

    request: str
    response: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET


class Responses:
    """The responses in `directory`: all earlier ones, and those that are added by any of this process's threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[str, _Place] = {}
        self._open: dict[int, int] = {}
        self._own: _OwnFile | None = None
        self._lock = threading.Lock()
        with storing(f"{directory}: responses of earlier runs cannot be read"):
            directory.mkdir(parents=True, exist_ok=True)
            files.refresh_names(directory)
            for number in self._numbers():
                for line, place in _lines(self._path(number), number):
                    self._places.setdefault(line, place)

    def __contains__(self, request: str) -> bool:
        return request in self._places

    def is_refused(self, request: str) -> bool:
        """Whether the answer to `request` is a refusal."""
        return request in self._places and self._places[request].refused

    def begin(self) -> _OwnFile:
        """Create the file of this run, before requests are sent whose answers could not be saved."""
        with self._lock:
            if self._own is None:
                self._own = self._create()
        return self._own

    def path_of(self, request: str) -> Path:
        """The file with the answer to `request`."""
        return self._path(self._places[request].number)

    def add(self, index: int, request: str, answer: Answer) -> None:
        """Write an answer; when this returns, it is synced to the disk."""
        value = {"response": answer.response} if answer.error is None else {"error": answer.error}
        data = json_line({"index": index, "request": request, **value}).encode()
        place = self.begin().append(data, answer.error is not None)
        self._places[request] = place

    def get(self, request: str) -> Answer | None:
        """The answer to `request`; None when there is none."""
        place = self._places.get(request)
        if place is None:
            return None
        path = self._path(place.number)
        with storing(f"{path}: cannot be read"):
            data = os.pread(self._descriptor(place.number), place.length, place.offset)
        try:
            line = json.loads(data)
        except ValueError:
            raise StorageError(f"{path}: was changed while the job ran: start the job again") from None
        return Answer(line.get("response"), line.get("error"))

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self) -> _OwnFile:
        """A file that no other run has, nor will have: it is created exclusively, under the next free number."""
        with storing(f"{self._directory}: a file for responses cannot be created"):
            number = max(self._numbers(), default=0)
            while True:
                number += 1
                try:
                    fd = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                except FileExistsError:
                    continue
                files.sync_directory(self._directory)
                _check_room(fd)
                return _OwnFile(self._path(number), number, fd)

    def _numbers(self) -> list[int]:
        names = [Path(name) for name in os.listdir(self._directory)]
        return sorted(int(name.stem) for name in names if name.suffix == ".jsonl" and name.stem.isdecimal())

    def _path(self, number: int) -> Path:
        return self._directory / f"{number}.jsonl"

    def _descriptor(self, number: int) -> int:
        if number not in self._open:
            if len(self._open) >= _MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[number] = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        return self._open[number]


class _OwnFile:
    """The file of this run. Threads that wait for a sync share the next one."""

    def __init__(self, path: Path, number: int, fd: int) -> None:
        self._path = path
        self._number = number
        self._fd = fd
        self._length = 0
        self._synced = 0
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._is_broken = False
        self._is_closed = False

    def append(self, data: bytes, refused: bool) -> _Place:
        with storing(f"{self._path}: a response cannot be saved, and its request would be sent again"):
            with self._writing:
                if self._is_closed:
                    raise StorageError(f"{self._path}: a response came after the job had ended, and is not saved")
                offset = self._length
                self._write(data)
            self._sync(offset + len(data))
        return _Place(self._number, offset, len(data), refused)

    def close(self) -> None:
        # A thread that hung may come back with a response, and the number of the descriptor may belong to another file.
        with self._writing, self._syncing:
            self._is_closed = True
            os.close(self._fd)

    def _write(self, data: bytes) -> None:
        """At once, and not with the next sync: what is written survives the process."""
        try:
            files.write_all(self._fd, data, self._length)
        except OSError:
            # Else a later run would read a partial line with the next one.
            os.ftruncate(self._fd, self._length)
            raise
        self._length += len(data)

    def _sync(self, length: int) -> None:
        with self._syncing:
            if self._is_closed or self._is_broken:
                why = "the job had ended" if self._is_closed else "an earlier sync failed"
                raise StorageError(f"{self._path}: {why}: the last responses may not be on the disk")
            if self._synced >= length:
                return
            reached = self._length
            try:
                os.fsync(self._fd)
            except OSError:
                # The kernel reports it once; a second sync would seem to succeed.
                self._is_broken = True
                raise
            self._synced = reached


def _check_room(fd: int) -> None:
    """OSError when the disk is full: else each attempt would send requests whose answers cannot be saved."""
    try:
        files.write_all(fd, b" " * _LEAST_ROOM, 0)
        os.fsync(fd)
    finally:
        os.ftruncate(fd, 0)


def _lines(path: Path, number: int) -> Iterator[tuple[str, _Place]]:
    """The complete lines of a file: the hash of each request, and where its line is."""
    offset = 0
    with path.open("rb") as file:
        for position, data in enumerate(file, start=1):
            line = _decoded(data) if data.strip() else None
            if line is not None:
                yield line.request, _Place(number, offset, len(data), line.error is not msgspec.UNSET)
            elif data.endswith(b"\n") and data.strip():
                _log.warning("%s: line %d is damaged: its request is sent again: %.80r", path, position, data)
            offset += len(data)


def _decoded(data: bytes) -> _Line | None:
    """The line; None when it is damaged."""
    try:
        line = msgspec.json.decode(data, type=_Line)
    except msgspec.DecodeError:
        try:
            line = _decoded_by_python(data)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
    return line if (line.response is msgspec.UNSET) != (line.error is msgspec.UNSET) else None


def _decoded_by_python(data: bytes) -> _Line:
    """NaN and lone surrogates, which some APIs send, are JSON for Python alone; an error for any other line."""
    found = json.loads(data)
    given = {"response": msgspec.Raw(b"null")} if "response" in found else {}
    return msgspec.convert({**found, **given}, type=_Line)


def json_line(value: Any) -> str:
    """`value` as a line of JSON that can be written as UTF-8: lone surrogates are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value)
    return text + "\n"
