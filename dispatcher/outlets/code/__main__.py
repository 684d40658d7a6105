"""Snapshots by a program, which prints one as JSON: `python -m dispatcher.outlets.code ROOT ...`.

ROOT ship|dirty [IN_USE...]   of HEAD, or of the tracked files as they are now, for a host
ROOT keep                     a copy that jobs run from, extracted as well
ROOT extract LABEL            the directory of such a copy made again
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import msgspec

from dispatcher.config import CodeMode, load_config
from dispatcher.errors import DispatcherError
from dispatcher.outlets.code import copies
from dispatcher.outlets.code.cache import CodeCache
from dispatcher.outlets.code.ship import ship, ship_dirty
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.workspace import Layout

_KEEP = "keep"
_EXTRACT = "extract"


def main(words: Sequence[str]) -> int:
    """The exit code: 0 with the snapshot on stdout, 1 with the reason on stderr."""
    # A pod that ends: git ends with this program.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    root, mode, *rest = words
    try:
        snapshot = _made(load_config(Layout(root)).layout, mode, rest)
    except DispatcherError as error:
        print(error, file=sys.stderr)
        return 1
    print(msgspec.json.encode(snapshot).decode())
    return 0


def _made(layout: Layout, mode: str, rest: Sequence[str]) -> CodeSnapshot:
    if mode in (_KEEP, _EXTRACT):
        snapshot = copies.take(layout) if mode == _KEEP else copies.kept(layout, rest[0])
        copies.extract(layout, snapshot)
        return snapshot
    snapshot = ship_dirty(layout) if CodeMode(mode) is CodeMode.DIRTY else ship(layout)
    CodeCache(layout).remove_unused([snapshot.digest, *rest])
    return snapshot


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
