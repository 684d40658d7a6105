"""Reading and writing files on a directory that several hosts share.

The rules come from measurements on NFS, GlusterFS and sshfs: a client may answer "missing" or ESTALE for a file that
exists, and shows old names until the directory is opened, so "missing" is checked again before it is believed. Every
change of a file is one call of the `os` module, because a host may die between any two of them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat as modes
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from dispatcher.base import host
from dispatcher.base.messages import bytes_text
from dispatcher.base.mounts import mount_of
from dispatcher.errors import StorageError

T = TypeVar("T")

_RETRY_ON = frozenset({errno.ENOENT, errno.ESTALE})
_PAUSES_S = (0.0, 0.02, 0.1, 0.3)
# Longer than one tick of the clock of a file server's kernel.
_TICK_S = 0.015
_PAGE = 4096
_DIRECT_PART = 128 * 1024
_SMALL = 16 * 1024

_NO_PERMISSION: Final = (
    "no permission: the workspace's group and its group-write bit decide who may write; in a workspace, "
    "`dispatcher doctor` names each path, its owner and the cure"
)
ADVICE = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "the filesystem is mounted read-only: remount it with write access",
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.ELOOP: "a symbolic link there leads back to itself: remove the link (rm)",
    errno.ENOENT: "the directory is gone: was the workspace removed or unmounted?",
    errno.ENOTDIR: "there is a file where a directory is needed",
    errno.EIO: "the storage or the file server reports an input/output error: check the server and the kernel's log",
    errno.ESTALE: "the file server no longer knows this file: is the mount still the same?",
}

# What comes back by itself, or with a person who looks after the storage and not after the host or the job.
PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT})
STORAGE_IS_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# The number of the error of what is no plain file.
NO_PLAIN_FILE: Final = errno.EINVAL
# More of a small file that a job writes is never read: it would cost the reader's memory.
LARGEST: Final = 16 << 20


def error_name(error: OSError) -> str:
    """The name of the error in Linux, such as `ENOLCK`."""
    return "EOPNOTSUPP" if error.errno == errno.EOPNOTSUPP else errno.errorcode.get(error.errno or 0, str(error.errno))


def storage_error(
    error: OSError, doing: str, path: Path | str | None = None, advice: Mapping[int, str] = ADVICE
) -> StorageError:
    """A StorageError that says what failed, where, why, and what to do.

    Without `path`, the place is the file that the system names, if it names one.
    """
    where = f" ({error.filename})" if path is None and error.filename else ""
    failed = doing if path is None else f"{doing} {path}"
    cure = advice.get(error.errno or 0, "")
    if error.errno == errno.ENOSPC and _has_no_inodes(path or error.filename):
        cure = "no inodes are left on this disk, though there may be room: remove files"
    return StorageError(f"{failed}: {error.strerror or error}{where}" + (f"; {cure}" if cure else ""))


def _has_no_inodes(path: Path | str | None) -> bool:
    """Whether the disk of a path, which need not exist, can hold no more files whatever their size."""
    for place in (os.fspath(path), os.path.dirname(path)) if path else ():
        with contextlib.suppress(OSError):
            found = os.statvfs(place)
            return found.f_files > 0 and found.f_favail == 0
    return False


def is_passing(error: BaseException) -> bool:
    """Whether an error, or what caused it, is of storage that has no room or does not answer at the moment."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in PASSING:
            return True
        cause = cause.__cause__
    return False


class storing:
    """Turn an OSError of the block into a StorageError, as `storage_error` words it.

    Not a generator: a claim enters several under the lock, and a class costs a third.
    """

    __slots__ = ("_advice", "_doing", "_path")

    def __init__(self, doing: str, path: Path | str | None = None, advice: Mapping[int, str] = ADVICE) -> None:
        self._doing = doing
        self._path = path
        self._advice = advice

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise storage_error(error, self._doing, self._path, self._advice) from error


def refresh_names(directory: Path | str) -> None:
    """Open and close a directory: makes an NFS client fetch its current names."""
    os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def stamp(directory: Path) -> None:
    """Make sure that other hosts notice the last change of a directory.

    NFSv3 detects a change by the directory's ctime alone, and the server's clock ticks every few milliseconds: of two
    changes within one tick a host may see only the first, for half a minute.
    """
    time.sleep(_TICK_S)
    with contextlib.suppress(PermissionError):
        os.utime(directory)


def open_existing(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a file that should exist; on a network filesystem, "missing" is believed only after several tries."""
    directory = os.path.dirname(path)
    for pause_s in _PAUSES_S:
        if pause_s:
            time.sleep(pause_s)
            with contextlib.suppress(OSError):
                refresh_names(directory)
        try:
            return os.open(path, flags | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _RETRY_ON or not mount_of(directory).is_network:
                raise
            last = error
    raise last


class _DirectDescriptor(int):
    """Of a file that was opened with O_DIRECT: to ask the kernel at each read would take a call in every claim."""


def open_uncached(path: Path | str) -> int:
    """Open a file to read its server's content, bypassing the caches of a FUSE client and of the kernel if possible.

    O_DIRECT bypasses the kernel's page cache, and a sync makes a GlusterFS client ask for the current size.
    """
    try:
        fd: int = _DirectDescriptor(open_existing(path, os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = open_existing(path, os.O_RDWR)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_fd(fd: int, offset: int = 0, size: int | None = None) -> bytes:
    """All bytes from `offset` on, or the first `size` of them."""
    if isinstance(fd, _DirectDescriptor):
        return _read_direct(fd, offset, size)
    if size is None:
        size = max(0, os.fstat(fd).st_size - offset)
    chunks = []
    while size > 0:
        part = os.pread(fd, size, offset)
        if not part:
            break
        chunks.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(chunks)


def _read_direct(fd: int, offset: int, size: int | None) -> bytes:
    """Read whole pages, as O_DIRECT requires, up to the end of the file that the reading itself finds."""
    at = offset - offset % _PAGE
    chunks: list[bytes] = []
    while size is None or at < offset + size:
        try:
            part = os.pread(fd, _DIRECT_PART, at)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # This filesystem requires aligned memory as well: fall back to the page cache.
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
            return read_fd(int(fd), offset, size)
        chunks.append(part)
        at += len(part)
        if len(part) < _DIRECT_PART:
            break
    found = b"".join(chunks)[offset % _PAGE :]
    return found if size is None else found[:size]


def open_at_once(path: str, flags: int) -> int:
    """An opener for files that jobs and people write. A pipe, whose opening would wait for a writer, and all else that
    is no plain file, is an OSError.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_plain(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_plain(fd: int, path: str | os.PathLike[str]) -> None:
    mode = os.fstat(fd).st_mode
    if modes.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    # A link to a device has no end.
    if not modes.S_ISREG(mode):
        raise OSError(NO_PLAIN_FILE, "no plain file", os.fspath(path))


def read_plain(path: str | os.PathLike[str]) -> bytes:
    """The content of a file that people write. Raises OSError, also for what is no plain file."""
    with open(path, "rb", buffering=0, opener=open_at_once) as file:
        return file.readall()


def read_at_once(path: Path | str, largest: int = LARGEST) -> bytes:
    """The content of a file that a job writes.

    Raises OSError, also for what is no plain file and, with EFBIG, for a file that is longer than `largest`.
    """
    fd = open_at_once(os.fspath(path), os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        data = b""
        # A file may be longer than it says, as those in /proc are.
        while size <= largest and (part := os.read(fd, min(max(size + 1, _PAGE), largest + 1) - len(data))):
            data += part
            size = max(size, len(data))
    finally:
        os.close(fd)
    if size > largest:
        text = f"{bytes_text(size)} long, more than the {bytes_text(largest)} that are read"
        raise OSError(errno.EFBIG, text, os.fspath(path))
    return data


def read_fresh(path: Path | str) -> bytes | None:
    """The file's current content, after its directory was opened; None when it does not exist.

    Raises OSError, also for what is no plain file. When a file server forgets a file that was replaced while this host
    read it, the new one is read.
    """

    def content(fd: int) -> bytes:
        _check_plain(fd, path)
        return read_fd(fd)

    return _of_opened(path, content)


def read_fresh_small(path: Path | str) -> bytes | None:
    """As `read_fresh`, of a small file that a job may have replaced: no content is b"", as of a pipe or a long file."""

    def content(fd: int) -> bytes:
        found = os.fstat(fd)
        return read_fd(fd) if modes.S_ISREG(found.st_mode) and found.st_size <= LARGEST else b""

    return _of_opened(path, content)


def stat_fresh(path: Path | str, *, names_are_fresh: bool = False) -> os.stat_result | None:
    """As `os.stat` of the file that has this name now, after its directory was opened; None when there is none.

    `names_are_fresh`: the caller has just opened the directory.
    """
    return _of_opened(path, os.fstat, names_are_fresh=names_are_fresh)


def is_missing(path: Path | str) -> bool:
    """Whether there is surely no such file: any other error than that is no proof."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def is_there(path: Path | str) -> bool:
    """Whether there surely is such a file."""
    try:
        os.lstat(path)
    except OSError:
        return False
    return True


def stat(path: Path | str) -> os.stat_result | None:
    """As `stat_fresh`, where names are always current."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def exists_fresh(path: Path | str) -> bool:
    """Whether `path` exists now, after its directory was opened.

    FileNotFoundError when its directory does not exist, also after several tries.
    """
    directory = os.path.dirname(path)
    for pause_s in _PAUSES_S:
        if pause_s:
            time.sleep(pause_s)
        try:
            refresh_names(directory)
            os.stat(path)
        except OSError as error:
            if error.errno not in _RETRY_ON:
                raise
            last = error
        else:
            return True
        if last.errno == errno.ENOENT and os.path.isdir(directory):
            return False
    raise last


def _of_opened(path: Path | str, ask: Callable[[int], T], *, names_are_fresh: bool = False) -> T | None:
    for pause_s in _PAUSES_S:
        if pause_s:
            time.sleep(pause_s)
        try:
            if pause_s or not names_are_fresh:
                refresh_names(os.path.dirname(path))
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return ask(fd)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return None


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`; OSError when the disk takes only a part of it."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        offset += written
        view = view[written:]


@contextlib.contextmanager
def creating(path: Path | str) -> Iterator[int]:
    """The descriptor of a new file; FileExistsError when the file exists."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable; a filesystem that cannot sync a directory is left to its server."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    finally:
        os.close(fd)


def sync_files(directory: Path, names: Sequence[str]) -> None:
    """Make those files of a directory durable, in this order, that it has, and their names. What is gone needs nothing.

    On the usual filesystems of Linux, what is newly created is durable with the names of its new parents.
    """
    for name in names:
        try:
            fd = os.open(directory / name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            # A link, or a file that only others may read, is not what a wrapper or a report has written.
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENXIO):
                continue
            raise
        try:
            found = os.fstat(fd)
            # An empty one has nothing but its name.
            if modes.S_ISREG(found.st_mode) and found.st_size:
                os.fsync(fd)
        finally:
            os.close(fd)
    with contextlib.suppress(FileNotFoundError):
        sync_directory(directory)


def write_new(path: Path | str, data: bytes, mode: int = 0o666) -> None:
    """Write a file whose readers wait for its writer, without rename or fsync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data, 0)
    finally:
        os.close(fd)


def create_file(path: Path | str, data: bytes, *, durable: bool = True) -> None:
    """Write a file that must not exist yet; when `durable`, it survives a power cut once its directory is synced."""
    with creating(path) as fd:
        write_all(fd, data, 0)
        if durable:
            os.fsync(fd)


def write_unique(path: Path, data: bytes) -> Path:
    """Keep something for people to find, durably; under a free name beside `path` when that one is taken."""
    for number in itertools.count(1):
        try:
            name = path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
            create_file(name, data)
            sync_directory(path.parent)
            return name
        except FileExistsError:
            continue
    raise AssertionError("unreachable")


def temporary_name(path: Path) -> Path:
    """A name beside `path` that is never used twice; it contains the process, so that `leftovers` finds it."""
    # Random, not counted: a process that was killed may have left the name of a later one with the same pid.
    return path.with_name(f".{path.name}.{host.process_name()}.{os.urandom(4).hex()}.tmp")


def server_now_s(directory: Path) -> float:
    """The time by the clock that dates the files in a directory, which on a network filesystem is the server's.

    That of this host where nothing can be written there.
    """
    probe = temporary_name(directory / "clock")
    try:
        # Not O_EXCL: NFSv3 keeps something else in the times of such a file at first.
        fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            return os.fstat(fd).st_mtime
        finally:
            os.close(fd)
            os.unlink(probe)
    except OSError:
        return time.time()


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` so that a reader sees the old content or the new; when `durable`, a power cut leaves the new."""
    temporary = temporary_name(path)
    try:
        create_file(temporary, data, durable=durable)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(path.parent)


def leftovers(directory: Path) -> list[Path]:
    """Temporary files of processes of this host that were killed between write and rename."""
    here, _, _ = host.process_name().rpartition(".")
    found = []
    for name in os.listdir(directory):
        before, pid, _, ending = [*name.rsplit(".", 3), "", "", ""][:4]
        is_ours = name.startswith(".") and ending == "tmp" and before.endswith(f".{here}")
        if is_ours and pid.isdigit() and host.is_gone(int(pid)):
            found.append(directory / name)
    return found


def remove_leftovers(directory: Path, name: str = "") -> None:
    """Remove the `leftovers` in a directory: all, or those of the file with this name."""
    for path in leftovers(directory):
        if path.name.startswith(f".{name}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def is_full(directory: Path | str) -> bool:
    """Whether the disk of a directory has no room for even a small file; False where that is unknown."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    # Some blocks are reserved for root.
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return found.f_blocks > 0 and free * found.f_frsize < _SMALL


def group_may_write(root: Path) -> bool:
    """Whether the workspace belongs to its whole group."""
    with storing("checking the workspace", root):
        return bool(os.stat(root).st_mode & 0o020)


def umask_of(root: Path) -> int:
    """The umask that gives files the workspace's group-write bit, and never makes them writable for others."""
    return 0o002 if group_may_write(root) else 0o022


@contextlib.contextmanager
def shared_umask(root: Path) -> Iterator[None]:
    """Create files with the workspace's group-write bit, whatever the user's umask."""
    old = os.umask(umask_of(root))
    try:
        yield
    finally:
        os.umask(old)
