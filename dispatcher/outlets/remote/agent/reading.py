"""What attempts have written since the last time: reports, and what their logs and metrics have grown by."""

import base64
import contextlib
import errno
import os
import re
import stat
import zlib
from typing import BinaryIO, Dict, Iterator, List, Optional, Set

from dispatcher.outlets.remote.agent.attempts import read_launch
from dispatcher.outlets.remote.agent.facts import host_name
from dispatcher.outlets.remote.agent.locks import is_locked
from dispatcher.outlets.remote.agent.names import ALIVE_FILE, EXIT_FILE, LOG_FILE, TAKEN_FILE, Data

LONGEST_FILE = 1 << 20
# As KNOWN_END of the operations.
KNOWN_END = 4096
# Of the logs of further workers: of each, and of all that are in one directory.
LONGEST_END = 64 << 10
LONGEST_ENDS = 4 << 20
RANK_LOG = re.compile(r"output\.[0-9]+\.log")
NO_FILE = (errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


def read(words: Data, _stdin: BinaryIO) -> Data:
    budget = [words["most_bytes"]]
    return {"seen": [look(wanted, words["names"], budget) for wanted in words["looks"]]}


def look(wanted: Data, names: List[str], budget: List[int]) -> Data:
    directory = wanted["directory"]
    seen: Data = {"exists": True, "files": {}, "stamps": {}, "grown": {}, "error": ""}
    try:
        # Also fetches the names anew where a network filesystem would show old ones.
        present = set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return {"exists": False, "is_alive": False}
    except OSError as error:
        return dict(seen, error=str(error))
    try:
        # Before the files are read: a wrapper that is gone has written its exit status.
        seen["is_alive"] = is_locked(os.path.join(directory, ALIVE_FILE))
        if not seen["is_alive"]:
            present = set(os.listdir(directory))
        if read_launch(directory).get("worker"):
            look_at_worker(directory, present, seen)
            return seen
        for name in names:
            if name in present:
                look_at_file(directory, name, wanted["have"].get(name), seen)
        look_for_exit(directory, present, seen)
        for path in wanted.get("paths", ()):
            with of_the_job(path):
                look_at_file(directory, path, wanted["have"].get(path), seen)
        if EXIT_FILE in present:
            look_at_ranks(directory, sorted(filter(RANK_LOG.fullmatch, present)), wanted["have"], seen)
        for path, known in wanted.get("growing", {}).items():
            with of_the_job(path):
                look_at_growing(directory, path, known, seen, budget)
    except OSError as error:
        # All of it or nothing: an exit status without the rest of the log would be taken for the end.
        return {"exists": True, "error": str(error)}
    return seen


@contextlib.contextmanager
def of_the_job(path: str) -> Iterator[None]:
    """A path that the job has made something else of, or closed to others, is as missing; its log is not."""
    try:
        yield
    except OSError as error:
        if path == LOG_FILE or error.errno not in NO_FILE:
            raise


def look_at_ranks(directory: str, names: List[str], had: Dict[str, List[int]], seen: Data) -> None:
    """The ends of the logs of the further processes of an attempt that has ended."""
    for name in names:
        path = os.path.join(directory, name)
        opened = open_regular(path)
        if opened is None:
            continue
        with opened as file:
            found = os.fstat(file.fileno())
        stamp = [found.st_mtime_ns, found.st_size]
        if stamp != had.get(name):
            seen["stamps"][name] = stamp
            most = min(LONGEST_END, LONGEST_ENDS // len(names))
            seen["files"][name] = tail({"path": path, "most_bytes": most}, None)["content"] or ""


def look_at_worker(directory: str, present: Set[str], seen: Data) -> None:
    """On a further machine of an attempt: whether it has begun and ended, and then the end of its log."""
    for name in (TAKEN_FILE, EXIT_FILE):
        if name in present:
            look_at_file(directory, name, None, seen)
    look_for_exit(directory, present, seen)
    if seen["is_alive"] is False and LOG_FILE in present:
        seen["log_end"] = tail({"path": os.path.join(directory, LOG_FILE), "most_bytes": LONGEST_END}, None)["content"]


def look_at_file(directory: str, name: str, had: Optional[List[int]], seen: Data) -> None:
    opened = open_regular(os.path.join(directory, name))
    if opened is None:
        return
    with opened as file:
        found = os.fstat(file.fileno())
        stamp = [found.st_mtime_ns, found.st_size]
        if stamp == had:
            return
        # One that is too long is told by its stamp alone.
        seen["stamps"][name] = stamp
        if found.st_size <= LONGEST_FILE:
            seen["files"][name] = encoded(file.read(LONGEST_FILE))


def look_for_exit(directory: str, present: Set[str], seen: Data) -> None:
    """Where the exit status could not be written: what the wrapper has kept of it, or why it waits."""
    path = os.path.join(directory, EXIT_FILE)
    # Its file may be missing, too, and anything but an empty one is another matter.
    about = os.lstat(path) if EXIT_FILE in present else None
    if TAKEN_FILE not in present or (about is not None and (about.st_size or not stat.S_ISREG(about.st_mode))):
        return
    opened = open_regular(os.path.join(directory, TAKEN_FILE))
    if opened is None:
        return
    with opened as file:
        kept = [line for line in file.read(LONGEST_FILE).splitlines(True) if line[:1] == b"{" and line[-2:] == b"}\n"]
    if kept:
        seen["files"][EXIT_FILE] = encoded(kept[-1])
    elif about is not None and seen["is_alive"]:
        room = os.statvfs(directory)
        seen["unwritten"] = f"{'' if room.f_bavail and room.f_favail else 'no space '}on {host_name()}"


def look_at_growing(directory: str, name: str, known: List[int], seen: Data, budget: List[int]) -> None:
    opened = open_regular(os.path.join(directory, name))
    if opened is None:
        return
    at, checksum = known
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, at - KNOWN_END))
        # The job has begun it anew, or another file has its name.
        if size < at or zlib.crc32(file.read(min(at, KNOWN_END))) != checksum:
            at = 0
        file.seek(at)
        content = file.read(max(0, min(budget[0], size - at)))
        budget[0] -= len(content)
        seen["grown"][name] = {"content": encoded(content), "at": at, "size": size}


def open_regular(path: str) -> Optional[BinaryIO]:
    """The file, opened to read; None when there is none, or when something else has its name, such as a directory."""
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for its other end.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO, errno.ELOOP):
            return None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return open(fd, "rb")


def tail(words: Data, _stdin: Optional[BinaryIO]) -> Data:
    opened = open_regular(words["path"])
    if opened is None:
        return {"content": None}
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - words["most_bytes"]))
        return {"content": encoded(file.read(words["most_bytes"]))}


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
