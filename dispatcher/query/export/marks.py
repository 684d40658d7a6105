"""What was exported: a small file per run beside it, written when all else of the run is there."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dispatcher.base import files
from dispatcher.errors import StateError


class Mark(msgspec.Struct, frozen=True):
    """The job, the workspace and the content of an exported run; `place` is where it lies.

    Of a run that takes no step twice: its last step, a digest of the history up to it, and how many runs came before
    because their history was written again.
    """

    workspace: str
    job_id: str
    fingerprint: str
    place: str = ""
    last_step: int = -1
    history: str = ""
    replaced: int = 0


def read_mark(path: Path, workspace: str, job_id: str) -> Mark | None:
    """The mark in a file; None where nothing was exported yet. StateError where it is another job's."""
    data = files.read_fresh(path)
    if data is None:
        return None
    try:
        mark = msgspec.json.decode(data, type=Mark)
    except msgspec.MsgspecError as error:
        raise StateError(f"{path}: not a file of `dispatcher export` ({error}): choose another directory") from None
    if (mark.workspace, mark.job_id) != (workspace, job_id):
        raise StateError(
            f"{path.parent}: has an export of {mark.job_id} from another workspace ({mark.workspace}): choose another "
            "directory"
        )
    return mark


def write_mark(path: Path, mark: Mark) -> None:
    with files.storing("recording the export in", path):
        os.makedirs(path.parent, exist_ok=True)
        files.replace_file(path, msgspec.json.encode(mark) + b"\n", durable=False)
