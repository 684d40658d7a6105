"""Writing and reading the files of a checkpoint in a directory that several hosts may share.

One call of the `os` module per change of a file: what may happen between two of them matters here. A network
filesystem shows old names until the directory is opened, so look at it first and do not believe "missing" at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dispatcher.errors import StorageError

_PAUSES_S: Final = (0.0, 0.02, 0.1, 0.3)
_LOOK_AGAIN: Final = frozenset({errno.ENOENT, errno.ESTALE})

_LONGEST_WRITING_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.1
_QUIET_LOOKS: Final = 3

_ADVICE: Final = {
    errno.ENOSPC: "the disk is full: free some space, or keep fewer checkpoints",
    errno.EDQUOT: "the disk quota is used up: free some space, or keep fewer checkpoints",
    errno.EROFS: "the filesystem is mounted read-only: remount it with write access",
    errno.EACCES: "no permission: make the directory writable for the user that runs the job",
    errno.EPERM: "no permission: make the directory writable for the user that runs the job",
    errno.ENOTDIR: "a file stands where a directory is needed",
    errno.EIO: "the storage or the file server reports an input/output error: look at it and at the kernel's log",
    errno.ESTALE: "the file server no longer knows this file: is the mount still the same?",
}


def storage_error(error: OSError, doing: str) -> StorageError:
    """A StorageError that says what failed, why, and what to do."""
    advice = _ADVICE.get(error.errno or 0, "")
    where = f" ({error.filename})" if error.filename else ""
    return StorageError(f"{doing}: {error.strerror or error}{where}" + (f"; {advice}" if advice else ""))


@contextlib.contextmanager
def storing(doing: str) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError that begins with `doing`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing) from error


def look_at(directory: Path) -> None:
    """Open and close a directory: makes an NFS client fetch its current names."""
    os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def read_fresh(path: Path) -> bytes | None:
    """The file's current content, looking at its directory first; None when it does not exist."""
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        try:
            look_at(path.parent)
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return None


def exists_fresh(path: Path) -> bool:
    """Whether `path` exists now; FileNotFoundError when its directory does not, also at a second look."""
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        try:
            look_at(path.parent)
            os.stat(path)
        except OSError as error:
            if error.errno not in _LOOK_AGAIN:
                raise
            last = error
        else:
            return True
        if last.errno == errno.ENOENT and path.parent.is_dir():
            return False
    raise last


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, down to the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def replace(path: Path, data: bytes, token: str) -> None:
    """Replace a file so that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{token}.tmp")
    try:
        write_new(temporary, data)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Bring the names in a directory down to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network filesystems cannot sync directories; their servers do it themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def remove_tree(directory: Path) -> None:
    """Remove a directory that nobody needs any more; what cannot be removed stays."""
    shutil.rmtree(directory, ignore_errors=True)


def remove_for_good(directory: Path) -> None:
    """Remove a directory in which threads that nobody can wait for may still be writing: until it stays away."""
    deadline_s = time.monotonic() + _LONGEST_WRITING_S
    quiet = 0
    while quiet < _QUIET_LOOKS and time.monotonic() < deadline_s:
        remove_tree(directory)
        time.sleep(_LOOK_EVERY_S)
        quiet = 0 if directory.exists() else quiet + 1


def files_below(directory: Path) -> Iterator[tuple[str, Path]]:
    """Every file below `directory`, as a relative POSIX path and a path, in a fixed order."""
    for place, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            yield path.relative_to(directory).as_posix(), path


def directories_below(directory: Path) -> Iterator[Path]:
    """`directory` and every directory below it, the deepest first."""
    for place, _, _ in os.walk(directory, topdown=False):
        yield Path(place)
