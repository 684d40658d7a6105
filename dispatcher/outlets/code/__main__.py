"""`python -m dispatcher.outlets.code ROOT ship|dirty [IN_USE...]`: make a snapshot and print it as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from dispatcher.config import CodeMode, load_config
from dispatcher.errors import DispatcherError
from dispatcher.outlets.code.cache import CodeCache
from dispatcher.outlets.code.ship import ship, ship_dirty
from dispatcher.workspace import Layout


def main(words: Sequence[str]) -> int:
    """The exit code: 0 with the snapshot on stdout, 1 with the reason on stderr."""
    root, mode, *in_use = words
    try:
        layout = load_config(Layout(root)).layout
        snapshot = ship_dirty(layout) if CodeMode(mode) is CodeMode.DIRTY else ship(layout)
        CodeCache(layout).remove_unused([snapshot.digest, *in_use])
    except DispatcherError as error:
        print(error, file=sys.stderr)
        return 1
    print(msgspec.json.encode(snapshot).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
