"""Errors of the storage that a job writes to, with advice for the person who runs it."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from typing import Final

from dispatcher.base import files
from dispatcher.errors import StorageError

_FREE_SPACE: Final = "free some space, or keep fewer checkpoints"
_WRITABLE: Final = "no permission: make the directory writable for the user that runs the job"
_ADVICE: Final = {
    **files.ADVICE,
    errno.ENOSPC: f"the disk is full: {_FREE_SPACE}",
    errno.EDQUOT: f"the disk quota is used up: {_FREE_SPACE}",
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
}


def storage_error(error: OSError, doing: str) -> StorageError:
    """A StorageError that says what failed, why, and what to do."""
    return files.storage_error(error, doing, advice=_ADVICE)


def storing(doing: str) -> AbstractContextManager[None]:
    """Turn an OSError of the block into a StorageError that begins with `doing`."""
    return files.storing(doing, advice=_ADVICE)
