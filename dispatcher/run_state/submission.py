"""Appends new entries to `matrix/submitted.jsonl` within a transaction, before the lines of their records."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dispatcher.base import files
from dispatcher.matrix.submitted import is_complete
from dispatcher.run_state.store import Store, Transaction

_JOB: Final = re.compile(rb'"job_id"\s*:\s*"([A-Za-z0-9._-]+)"')


def append_entries(store: Store, tx: Transaction, documents: Sequence[Mapping[str, Any]]) -> None:
    """Append the entries durably. What was appended is cut off again when the transaction fails.

    Raises StorageError and LockLostError; then nothing was appended.
    """
    path = store.layout.submitted_manifest
    data = b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in documents)
    with files.storing("adding jobs to", path):
        path.parent.mkdir(exist_ok=True)
        files.refresh_names(path.parent)
        is_new = not os.path.exists(path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        size: int | None = None
        end = 0

        def over(undone: bool) -> None:
            # Closed under the lock: the next one to append would otherwise wait for the guard.
            try:
                # Further lines are those of a process that has taken the lock over. What stays does not count.
                if undone and size is not None and os.fstat(fd).st_size <= end:
                    os.ftruncate(fd, size)
            finally:
                os.close(fd)

        tx.when_over(over)
        # A host that is cut off must not write late over the lines of others.
        store.guard(fd)
        size, missing_end = _end_of_lines(fd, store.records.is_ad_hoc)
        end = size + len(missing_end) + len(data)
        os.ftruncate(fd, size)
        files.write_all(fd, missing_end + data, size)
        os.fsync(fd)
        if is_new:
            files.sync_directory(path.parent)


def _end_of_lines(fd: int, counts: Callable[[str], bool]) -> tuple[int, bytes]:
    """Where the next line begins, and what the last one lacks there. `counts`: whether a job's line counts.

    An incomplete last line is one whose writer was killed, and does not count; or one that a person has edited, if its
    job is there.
    """
    size = end = os.fstat(fd).st_size
    rest = b""
    while end > 0 and b"\n" not in rest:
        start = max(0, end - 65536)
        rest = files.read_fd(fd, start, end - start) + rest
        end = start
    last = rest.rpartition(b"\n")[2]
    if not last:
        return size, b""
    job = _JOB.search(last)
    is_edited = is_complete(last) or (job is not None and counts(job[1].decode()))
    return (size, b"\n") if is_edited else (size - len(last), b"")
