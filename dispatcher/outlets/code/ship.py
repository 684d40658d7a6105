"""The makers of snapshots: what is committed, what is tracked, or given files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from dispatcher.base import files
from dispatcher.errors import CodeError
from dispatcher.outlets.code.archive import ArchiveWriter, is_executable
from dispatcher.outlets.code.cache import Archived, CodeCache
from dispatcher.outlets.code.commit import Content, add_content, content_of
from dispatcher.outlets.code.git import OTHERWISE, Git
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.provenance.git import index_copy
from dispatcher.workspace import Layout

# The time of files without a commit: zip, and so wheels, know nothing before 1980.
_NO_COMMIT_S: Final = 315619200
# What git says of a file that became shorter while it was read.
_CUT: Final = "short read while indexing"
_TRIES: Final = 5
_OR_CLEAN: Final = "or use the clean commit"


class _BeingSavedError(CodeError):
    """A file is written at this moment."""


def ship(layout: Layout) -> CodeSnapshot:
    """The tracked files of the workspace as HEAD has them; raises CodeError and StorageError."""
    git = Git(layout.root)
    return _snapshot(layout, _head_content(layout, git), _head(git), is_dirty=False)


def ship_dirty(layout: Layout) -> CodeSnapshot:
    """The tracked files of the workspace as they are now, without untracked ones; raises CodeError and StorageError.

    The user's index, branches and stash stay as they are.
    """
    return ship_tracked(layout)[0]


def ship_tracked(layout: Layout, *, otherwise: str = OTHERWISE) -> tuple[CodeSnapshot, str]:
    """As `ship_dirty`, and a commit of what is in the archive. `otherwise`: see Git."""
    git = Git(layout.root, otherwise=otherwise)
    head, clean = _head(git), _head_content(layout, git)
    stashed = _stash(git)
    if not stashed:
        return _snapshot(layout, clean, head, is_dirty=False), head
    content = content_of(git, stashed, left_out(layout))
    # Changes elsewhere in the repository, or in run_state/, are none of this code.
    is_dirty = content.key != clean.key
    return _snapshot(layout, content if is_dirty else clean, head, is_dirty=is_dirty), stashed


def ship_files(layout: Layout, paths: Iterable[str | os.PathLike[str]]) -> CodeSnapshot:
    """These files of the workspace and nothing else, by paths relative to its root; git is not needed.

    Symbolic links are archived as links. Raises CodeError and StorageError.
    """
    names = sorted({_name(layout, path) for path in paths}, key=os.fsencode)
    if not names:
        raise CodeError(f"{layout.root}: no files are given")

    def write(file: IO[bytes]) -> str:
        archive = ArchiveWriter(file, _NO_COMMIT_S)
        for name in names:
            _add_file(archive, layout.root, name)
        return archive.close()

    return _made(layout, CodeCache(layout).add(write), commit="", is_dirty=False)


def _snapshot(layout: Layout, content: Content, head: str, *, is_dirty: bool) -> CodeSnapshot:
    # Of the commit that people know, not of the one that was made for the archive.
    time_s = int(content.git.text("show", "--no-patch", "--format=%ct", head))

    def write(file: IO[bytes]) -> str:
        archive = ArchiveWriter(file, time_s)
        add_content(archive, content)
        return archive.close()

    return _made(layout, CodeCache(layout).archived(content.key, write), commit=head, is_dirty=is_dirty)


def _made(layout: Layout, made: Archived, *, commit: str, is_dirty: bool) -> CodeSnapshot:
    path = os.fspath(layout.code_archive(made.digest))
    return CodeSnapshot(digest=made.digest, commit=commit, is_dirty=is_dirty, path=path, size=made.size)


def _head(git: Git) -> str:
    git.output("rev-parse", "--git-dir")
    if not git.succeeds("rev-parse", "--verify", "--quiet", "HEAD^{commit}"):
        raise CodeError(f"{git.directory}: the repository has no commit yet: commit the code first")
    return git.text("rev-parse", "HEAD")


def _head_content(layout: Layout, git: Git) -> Content:
    return content_of(git, _head(git), left_out(layout))


def left_out(layout: Layout) -> tuple[str, ...]:
    """What dispatchers write while jobs run: it is not code, and would make every archive a new one."""
    return tuple(os.path.relpath(path, layout.root) for path in (layout.run_state, layout.status_file))


def _stash(git: Git) -> str:
    """A commit of the tracked files as they are now; empty when they do not differ from HEAD."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(_BeingSavedError):
            return _stash_once(git)
    return _stash_once(git)


def _stash_once(git: Git) -> str:
    with _copied_index(git) as copy:
        try:
            return copy.text("stash", "create")
        except CodeError as error:
            if _CUT in str(error):
                raise _BeingSavedError(f"{error}\nstop what writes this file all the time, {_OR_CLEAN}") from None
            advice = "finish the merge, and `git add` files in full (not with --intent-to-add)"
            raise CodeError(f"{error}\n{advice}, {_OR_CLEAN}") from None


@contextlib.contextmanager
def _copied_index(git: Git) -> Iterator[Git]:
    """git with a copy of the index, so that the user's own git commands never find it locked."""
    index = git.directory / git.text("rev-parse", "--git-path", "index")
    with contextlib.ExitStack() as stack:
        with files.storing("copying git's index", index):
            copy = stack.enter_context(index_copy(index))
        yield Git(git.directory, {"GIT_INDEX_FILE": os.fspath(copy)})


def _name(layout: Layout, path: str | os.PathLike[str]) -> str:
    """A file's path relative to the workspace; raises CodeError when it is outside or no file."""
    name = os.path.relpath(os.path.join(layout.root, path), layout.root)
    if name.startswith(f"..{os.sep}") or name in ("..", "."):
        raise CodeError(f"{path}: only files below the workspace {layout.root} can be shipped")
    return name


def _add_file(archive: ArchiveWriter, root: Path, name: str) -> None:
    path = root / name
    try:
        status = os.lstat(path)
    except OSError as error:
        raise CodeError(f"{path}: cannot be shipped: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        archive.add_link(name, os.readlink(path))
    elif stat.S_ISREG(status.st_mode):
        # Read completely, because the file may change meanwhile.
        with files.storing("reading", path):
            data = path.read_bytes()
        archive.add_bytes(name, data, is_executable=is_executable(status.st_mode))
    else:
        raise CodeError(f"{path}: not a file: name the files of a directory one by one")
