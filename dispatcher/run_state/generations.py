"""Creating the first generation of the journal."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from dispatcher.base import files
from dispatcher.run_state import journal
from dispatcher.run_state.journal import Header, Line

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def encode_generation(header: Header, lines: Iterable[Line]) -> bytes:
    """A header and the lines after it, as they are in a file."""
    return b"\n".join([journal.encode(header), *map(journal.encode, lines), b""])


def publish(path: Path, data: bytes) -> bool:
    """Create the first generation atomically and durably; False when another process has created it meanwhile."""
    temporary = files.temporary_name(path)
    try:
        with files.creating(temporary) as fd:
            files.write_all(fd, data, 0)
            os.fsync(fd)
        try:
            # Unlike a rename, a link never replaces a journal that this host is not shown.
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            os.rename(temporary, path)
        files.sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return True
