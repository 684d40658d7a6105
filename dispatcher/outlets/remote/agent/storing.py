"""Large files, such as archives of code: stored under their name only when their checksum is right.

And directories that nothing needs any more.
"""

import contextlib
import hashlib
import os
import shutil
import socket
import stat
import time
from typing import Any, BinaryIO, List, Optional

from dispatcher.outlets.remote.agent.names import AgentError, Data

CHUNK = 1 << 20
# A part of an upload that broke off is removed when it is this old.
OLD_PART_S = 6 * 3600


def has(words: Data, _stdin: BinaryIO) -> Data:
    sizes = [size_of(path) for path in words["paths"]]
    for path, size in zip(words["paths"], sizes):
        if size is not None:
            touch(path)
    return {"sizes": sizes}


def touch(path: str) -> None:
    """Show that the file is used."""
    # It may be another person's, or have been removed just now: then it is sent again.
    with contextlib.suppress(FileNotFoundError, PermissionError):
        os.utime(path)


def size_of(path: str) -> Optional[int]:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def store(words: Data, stdin: BinaryIO) -> Data:
    """The content is read from stdin whatever happens: behind it comes that of the next operation."""
    rest = [words["size"]]
    try:
        return store_from(words, stdin, rest)
    finally:
        while rest[0] and take_chunk(stdin, rest):
            pass


def store_from(words: Data, stdin: BinaryIO, rest: List[int]) -> Data:
    path = words["path"]
    if size_of(path) == words["size"]:
        return {"existed": True}
    os.umask(words["umask"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    remove_old_parts(path)
    part = f"{path}.{socket.gethostname()}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            digest = copy_hashed(stdin, rest, file)
            file.flush()
            os.fsync(file.fileno())
        if rest[0]:
            raise AgentError(f"{path}: the upload broke off, {rest[0]} bytes are missing")
        if digest != words["sha256"]:
            raise AgentError(f"{path}: what arrived has another checksum than what was sent")
        os.rename(part, path)
    except (OSError, AgentError):
        if os.path.exists(part):
            os.unlink(part)
        raise
    if words["unused_s"] is not None:
        remove_unused(path, words["unused_s"])
    return {"existed": False}


def copy_hashed(stdin: BinaryIO, rest: List[int], file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while rest[0]:
        chunk = take_chunk(stdin, rest)
        if not chunk:
            break
        digest.update(chunk)
        file.write(chunk)
    return digest.hexdigest()


def take_chunk(stdin: BinaryIO, rest: List[int]) -> bytes:
    chunk = stdin.read(min(CHUNK, rest[0]))
    rest[0] -= len(chunk)
    return chunk


def remove_unused(path: str, unused_s: float) -> None:
    """Files like this one that were not used for so long."""
    directory, name = os.path.split(path)
    ending = os.path.splitext(name)[1]
    for other in os.listdir(directory):
        if other != name and other.endswith(ending):
            file = os.path.join(directory, other)
            try:
                if time.time() - os.stat(file).st_mtime > unused_s:
                    os.unlink(file)
            except (FileNotFoundError, PermissionError):
                # Another agent has removed it, or it is another person's.
                continue


def remove_old_parts(path: str) -> None:
    """Those of uploads whose agent was killed."""
    directory, name = os.path.split(path)
    for other in os.listdir(directory):
        if other.startswith(name + ".") and other.endswith(".part"):
            part = os.path.join(directory, other)
            try:
                if time.time() - os.stat(part).st_mtime > OLD_PART_S:
                    os.unlink(part)
            except FileNotFoundError:
                # Another agent has removed it.
                continue


def trees(words: Data, _stdin: BinaryIO) -> Data:
    directory = own_place(words["directory"])
    found = []
    try:
        names = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            path = os.path.join(directory, name)
            about = os.lstat(path)
            # Users may share the directory; what others have there is theirs.
            if about.st_uid == os.getuid():
                found.append({"name": name, "bytes": size_below(path), "age_s": time.time() - about.st_mtime})
    return {"trees": found}


def remove(words: Data, _stdin: BinaryIO) -> Data:
    failed: List[str] = []
    directory = own_place(words["directory"])
    for name in words["names"]:
        if not name or "/" in name or name in (".", ".."):
            raise AgentError(f"{name!r} is no name of a directory")
        path = os.path.join(directory, name)

        def again(function: Any, place: str, raised: Any, path: str = path) -> None:
            try:
                if isinstance(raised[1], PermissionError) and place != path:
                    # Directories without write permission, such as those of a cache of Go modules.
                    os.chmod(os.path.dirname(place), 0o700)
                    os.chmod(place, 0o700)
                function(place)
            except FileNotFoundError:
                return
            except OSError as error:
                failed.append(f"{place}: {error.strerror}")

        shutil.rmtree(path, onerror=again)
    return {"failed": failed}


def own_place(path: str) -> str:
    """The directory, with the user's number; Refusal where another user's link leads to what is of no attempt.

    Users share the directory above, as they share /tmp: another user may have made it first, as a link.
    """
    path = path.replace("$UID", str(os.getuid()))
    for place in (path, os.path.dirname(path)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            about = os.lstat(place)
            if stat.S_ISLNK(about.st_mode) and about.st_uid not in (0, os.getuid()):
                raise AgentError(f"{place} is a link of another user (number {about.st_uid})")
    return path


def size_below(path: str) -> int:
    """The bytes that a directory and everything in it occupy; what is removed meanwhile, or closed, has none."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in [".", *names]:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
