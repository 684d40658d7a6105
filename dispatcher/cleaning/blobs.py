"""What attempts share and none refers to any more: differences, lists of packages, archives of the code."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.values import is_name
from dispatcher.cleaning import tree
from dispatcher.cleaning.tree import Links, OnError, Size
from dispatcher.errors import StateError
from dispatcher.outlets.code.copies import ASIDE
from dispatcher.run_state.states import Record
from dispatcher.workspace import Layout

# What was used within this time may be about to get its first reference.
YOUNG_S: Final = 86400.0
_BLOB: Final = re.compile(r"([0-9a-f]{64})\.(?:patch|txt)")
_ARCHIVE: Final = re.compile(r"([0-9a-f]{64})\.tar")
FOLDERS: Final = ("provenance/diffs", "provenance/packages", "code")
# Far more than a record of provenance has.
_LONGEST: Final = 16 << 20


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A file that nothing refers to: its path below run_state/, since when it was not used, its size."""

    path: str
    unused_since_s: float
    size: Size


class _Refers(msgspec.Struct):
    """The digests that a provenance.json names, in the record itself and its parts."""

    packages: str | None = None
    git: _Git | None = None


class _Git(msgspec.Struct):
    diff: str | None = None


class _Copy(msgspec.Struct):
    """A copy of the code, for attempts to come (outlets/code/copies.py)."""

    changes: _Git | None = None


def orphans(layout: Layout, records: Iterable[Record], older_than_s: float, now_s: float | None = None) -> list[Orphan]:
    """The blobs and archives that no attempt and no record refers to. Raises StateError when that cannot be told."""
    before_s = (files.server_now_s(layout.run_state) if now_s is None else now_s) - max(older_than_s, YOUNG_S)
    found: list[Orphan] = []
    diffs, packages, code = FOLDERS
    candidates = [*_candidates(layout, diffs, _BLOB, before_s), *_candidates(layout, packages, _BLOB, before_s)]
    if candidates:
        used = _digests_of_attempts(layout) | set(_changes_of_copies(layout))
        found += [orphan for digest, orphan in candidates if digest not in used]
    archives = list(_candidates(layout, code, _ARCHIVE, before_s))
    if archives:
        shortened = tuple(_labels(records) | _kept(layout))
        found += [orphan for digest, orphan in archives if not digest.startswith(shortened or ("-",))]
    return found


def remove(layout: Layout, orphan: Orphan, links: Links, on_error: OnError) -> Size:
    """Remove it, unless it was used meanwhile; what was removed."""
    folder, _, name = orphan.path.rpartition("/")
    try:
        with tree.opened_root(layout.run_state) as fd, _descended(fd, folder) as within:
            # Who uses it again updates its time, and makes it anew when it is gone. Under the other name it is unused.
            aside = f".{name}{ASIDE}"
            os.rename(name, aside, src_dir_fd=within, dst_dir_fd=within)
            found = os.stat(aside, dir_fd=within, follow_symlinks=False)
            if found.st_mtime > orphan.unused_since_s or not stat.S_ISREG(found.st_mode):
                os.rename(aside, name, src_dir_fd=within, dst_dir_fd=within)
                return Size()
            os.unlink(aside, dir_fd=within)
            return Size(1, links.bytes_of(found))
    except (FileNotFoundError, NotADirectoryError):
        # Another cleaner was quicker.
        pass
    except OSError as error:
        on_error(orphan.path, error)
    return Size()


def _digests_of_attempts(layout: Layout) -> set[str]:
    """The digests of blobs that attempts refer to. Raises StateError when a record cannot be read."""
    used: set[str] = set()
    with contextlib.suppress(FileNotFoundError), tree.opened_root(layout.jobs_dir) as root:
        for job in tree.names(root):
            if is_name(job):
                used |= _of_job(root, job, layout)
    return used


def _of_job(root: int, job: str, layout: Layout) -> set[str]:
    used: set[str] = set()
    try:
        # A link may lead to another disk: what is there refers to blobs as well, and is only read.
        with tree.opened(job, root, follow=True) as within:
            for number in tree.names(within):
                for name in (contract.PROVENANCE_FILE, contract.PROVENANCE_HOST_FILE):
                    data = _content(within, f"{number}/{name}")
                    if data is not None:
                        used |= _digests(data, layout.jobs_dir / job / number / name)
    except NotADirectoryError:
        return set()
    except OSError as error:
        raise StateError(
            f"{layout.job_dir(job)}: cannot be read ({error.strerror}), so it is unknown to what its attempts refer; "
            "nothing that attempts share is removed"
        ) from None
    return used


def _content(fd: int, path: str) -> bytes | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        # A pipe has nothing, and is no record either.
        return os.read(file, _LONGEST) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)


def _digests(data: bytes, path: Path) -> set[str]:
    try:
        found = msgspec.json.decode(data, type=_Refers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(
            f"{path}: {error}, so it is unknown to what the attempt refers; nothing that attempts share is removed. "
            "Mend the file, or remove it"
        ) from None
    return {digest for digest in (found.packages, found.git.diff if found.git else None) if digest}


def _candidates(layout: Layout, folder: str, pattern: re.Pattern[str], before_s: float) -> Iterator[tuple[str, Orphan]]:
    """The files of a folder of run_state/ that were not used since then, by their digests."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), contextlib.ExitStack() as stack:
        within = stack.enter_context(_descended(stack.enter_context(tree.opened_root(layout.run_state)), folder))
        for name, found in tree.entries(within):
            match = pattern.fullmatch(_named(name))
            if match and stat.S_ISREG(found.st_mode) and found.st_mtime <= before_s:
                size = Size(1, Links().bytes_of(found))
                yield match[1], Orphan(path=f"{folder}/{match[0]}", unused_since_s=found.st_mtime, size=size)


def put_back(layout: Layout) -> None:
    """Give files their names again that a cleaner had renamed which was killed then."""
    for folder in FOLDERS:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            fd = stack.enter_context(_descended(stack.enter_context(tree.opened_root(layout.run_state)), folder))
            for name in tree.names(fd):
                if _named(name) != name:
                    # One that was made anew meanwhile is younger.
                    with contextlib.suppress(FileExistsError):
                        os.link(name, _named(name), src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
                    os.unlink(name, dir_fd=fd)


def _named(name: str) -> str:
    """The name of a file without the ending that it has while it is removed."""
    is_aside = name.startswith(".") and name.endswith(ASIDE)
    return name.removeprefix(".").removesuffix(ASIDE) if is_aside else name


@contextlib.contextmanager
def _descended(fd: int, folder: str) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        for part in folder.split("/"):
            fd = stack.enter_context(tree.opened(part, fd))
        yield fd


def _labels(records: Iterable[Record]) -> set[str]:
    """The shortened digests of the code that records name: of last attempts, and of copies for the next ones."""
    labels: set[str | None] = set()
    for record in records:
        labels |= {record.code, getattr(record, "snapshot", None)}
    return {label.rpartition(" ")[2] for label in labels if label}


def _changes_of_copies(layout: Layout) -> Iterator[str]:
    """The differences of copies that are kept for jobs."""
    for path in layout.code_dir.glob("*.kept"):
        # One that was removed meanwhile, or is damaged, is not run from.
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            changes = msgspec.json.decode(path.read_bytes(), type=_Copy).changes
            if changes is not None and changes.diff is not None:
                yield changes.diff


def _kept(layout: Layout) -> set[str]:
    """The shortened digests of copies that are kept for jobs."""
    try:
        return {path.stem.rpartition("-")[2] for path in layout.code_dir.glob("*.kept")}
    except FileNotFoundError:
        return set()
