"""Copies of the code as it was when a job was queued (`snapshot: true`).

A record's `snapshot` names a copy by the label of its Snapshot: the commit, `+dirty`, and the digest, shortened. Below
run_state/code/ there are the archive; LABEL.kept, which says which archive the label means and lets the archive stay;
and the directory DIGEST/ in which attempts run. A copy is kept, durably, before a record names it. The directory can be
made from the archive at any time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.errors import CodeError
from dispatcher.outlets.code import tree
from dispatcher.outlets.code.changes import changes_between, is_kept
from dispatcher.outlets.code.ship import ship_tracked
from dispatcher.outlets.code.snapshot import Changes, CodeSnapshot
from dispatcher.run_state.states import ENDED, IN_FLIGHT, Record
from dispatcher.workspace import Layout

# The ending of a file that is being removed.
ASIDE: Final = ".cleaning"
_OTHERWISE: Final = "or do without a copy: no `--snapshot`, and no `snapshot: true` of the job or its method"


def take(layout: Layout) -> CodeSnapshot:
    """Keep the tracked files of the workspace as they are now; raises CodeError and StorageError.

    Code that was archived before is not archived again.
    """
    snapshot, archived = ship_tracked(layout, otherwise=_OTHERWISE)
    if snapshot.is_dirty:
        snapshot = msgspec.structs.replace(snapshot, changes=_changes(layout, snapshot, archived))
    with files.storing("keeping the code in", layout.code_dir), files.shared_umask(layout.root):
        for path in (snapshot.path, os.fspath(layout.code_dir)):
            _sync(path)
        place, content = layout.kept_code(snapshot.label), msgspec.json.encode(snapshot) + b"\n"
        if not (_note_use(place) and files.read_fresh(place) == content):
            files.replace_file(place, content)
    return snapshot


def _changes(layout: Layout, snapshot: CodeSnapshot, archived: str) -> Changes:
    """How the copy differs from its commit, which is looked up only once."""
    try:
        found = kept(layout, snapshot.label).changes
    except CodeError:
        found = None
    if found is not None and is_kept(layout, found):
        return found
    return changes_between(layout, snapshot.commit, archived)


def kept(layout: Layout, label: str) -> CodeSnapshot:
    """The copy that a record's `snapshot` names. Raises CodeError when it is gone, and StorageError."""
    place = layout.kept_code(label)
    with files.storing("reading", place):
        data = files.read_fresh(place) if layout.code_dir.is_dir() else None
        if data is None and _put_back(place):
            data = files.read_fresh(place)
    if data is None:
        raise CodeError(f"the copy {label} of the code is gone: `dispatcher requeue` takes a new one")
    try:
        found = msgspec.json.decode(data, type=CodeSnapshot)
    except msgspec.DecodeError as error:
        raise CodeError(f"{place}: {error}; `dispatcher requeue` takes a new copy") from None
    # The workspace may have been moved since.
    return msgspec.structs.replace(found, path=os.fspath(layout.code_archive(found.digest)))


def extract(layout: Layout, snapshot: CodeSnapshot) -> None:
    """Make the directory of a copy, unless it is there. Raises CodeError and StorageError."""
    with files.shared_umask(layout.root):
        place, archive = layout.code_copy(snapshot.digest), layout.code_archive(snapshot.digest)
        tree.extract(archive, snapshot.digest, place, layout.run_state)


def is_extracted(layout: Layout, label: str) -> bool:
    """Whether the directory of a copy is there, as far as this host sees. Raises CodeError and StorageError."""
    return layout.code_copy(kept(layout, label).digest).is_dir()


def note_use(layout: Layout, label: str) -> None:
    """An attempt begins to use a copy: it is not old."""
    _note_use(layout.kept_code(label))


def unused(layout: Layout, in_use: Collection[str], before_s: float) -> dict[str, os.stat_result]:
    """The copies that no job needs (`labels_in_use`) and that no attempt has begun to use since then, by label.

    Also those whose removal was begun by a process that was killed.
    """
    names = {layout.kept_code(label).name for label in in_use}
    found: dict[str, os.stat_result] = {}
    with files.storing("looking for copies of the code in", layout.code_dir):
        for path in sorted([*layout.code_dir.glob("*.kept"), *layout.code_dir.glob(f".*.kept{ASIDE}")]):
            name = path.name.removeprefix(".").removesuffix(ASIDE)
            # Another cleaner may be quicker.
            with contextlib.suppress(FileNotFoundError):
                about = path.stat()
                if name not in names and about.st_mtime < before_s:
                    found[Path(name).stem.replace("-", " ")] = about
    return found


def remove(layout: Layout, label: str, unused_since_s: float) -> bool:
    """Remove a copy, unless it was used after that time; whether it was removed.

    Its archive is removed as others are. Raises CodeError and StorageError.
    """
    place = layout.kept_code(label)
    with files.storing("removing a copy of the code from", layout.code_dir), contextlib.suppress(FileNotFoundError):
        if not files.exists_fresh(place):
            return False
        digest = kept(layout, label).digest
        # Under the other name it is not used: a job that needs it now makes it anew.
        aside = _aside(place)
        os.rename(place, aside)
        if aside.stat().st_mtime > unused_since_s:
            os.rename(aside, place)
            return False
        # Another commit may have the same files.
        if not any(layout.code_dir.glob(f"*-{digest[:12]}.kept")):
            tree.remove_atomically(layout.code_copy(digest))
        # Last: if this is killed, the process that finds it removes the directory, which nothing else names.
        aside.unlink()
        return True
    # Another cleaner was quicker.
    return False


def labels_in_use(records: Iterable[Record]) -> set[str]:
    """The copies that jobs need: those of their next attempts, and those that attempts in flight run.

    A job that has ended has no next attempt until a person queues it again, which takes a new copy.
    """
    found = set()
    for record in records:
        if record.state not in ENDED:
            found.add(record.snapshot)
        if record.state in IN_FLIGHT:
            found.add(record.code)
    return {label for label in found if label}


def _aside(place: Path) -> Path:
    return place.with_name(f".{place.name}{ASIDE}")


def _put_back(place: Path) -> bool:
    """Give a file its name again that a cleaner had renamed which was killed then; whether there was one."""
    aside = _aside(place)
    try:
        # One that was made anew meanwhile is younger.
        with contextlib.suppress(FileExistsError):
            os.link(aside, place)
        os.unlink(aside)
    except FileNotFoundError:
        return False
    return True


def _note_use(place: Path) -> bool:
    """Whether the file is there, and was noted as used now: another user's is to be replaced for that."""
    try:
        os.utime(place)
    except (FileNotFoundError, PermissionError):
        return False
    return True


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
