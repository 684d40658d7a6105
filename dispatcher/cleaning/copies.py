"""Copies of the code (`snapshot: true`) that no job runs from any more. Their archives are orphans the next time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable

from dispatcher.base import files
from dispatcher.cleaning import tree
from dispatcher.cleaning.blobs import YOUNG_S, Orphan
from dispatcher.cleaning.tree import Links, OnError, Size
from dispatcher.errors import DispatcherError
from dispatcher.outlets.code import copies
from dispatcher.run_state.states import Record
from dispatcher.workspace import Layout


def unused(layout: Layout, records: Iterable[Record], older_than_s: float, now_s: float | None = None) -> list[Orphan]:
    """The copies that no record names and no attempt has begun to use for a day, or for longer."""
    before_s = (files.server_now_s(layout.run_state) if now_s is None else now_s) - max(older_than_s, YOUNG_S)
    found = copies.unused(layout, copies.labels_in_use(records), before_s)
    return [_orphan(layout, label, about) for label, about in found.items()]


def is_copy(orphan: Orphan) -> bool:
    return orphan.path.endswith(".kept")


def remove(layout: Layout, orphan: Orphan, in_use: Collection[str], on_error: OnError) -> Size:
    """Remove it, unless it was used meanwhile; what was removed. `in_use` are the labels that jobs need now."""
    label = (layout.run_state / orphan.path).stem.replace("-", " ")
    try:
        if label not in in_use and copies.remove(layout, label, orphan.unused_since_s):
            return orphan.size
    except (DispatcherError, OSError) as error:
        on_error(orphan.path, error if isinstance(error, OSError) else OSError(0, str(error)))
    return Size()


def _orphan(layout: Layout, label: str, about: os.stat_result) -> Orphan:
    size = Size(1, Links().bytes_of(about))
    with contextlib.suppress(DispatcherError, FileNotFoundError):
        digest = copies.kept(layout, label).digest
        # Counted with the last name that the directory has.
        if sum(1 for _ in layout.code_dir.glob(f"*-{digest[:12]}.kept")) == 1:
            with tree.opened_root(layout.code_copy(digest)) as fd:
                size = size + tree.measure(fd, Links(), lambda _path, _error: None)
    return Orphan(path=f"code/{layout.kept_code(label).name}", unused_since_s=about.st_mtime, size=size)
