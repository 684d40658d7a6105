"""By what a scheduler's job is known as an attempt's: names that derive from the workspace and the attempts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dispatcher.base import files
from dispatcher.hosts.types import Location
from dispatcher.outlets.base import Key
from dispatcher.workspace import AttemptPaths, Layout

_ID_BYTES = 6
_NAME_BYTES = 5


class SubmissionFile(msgspec.Struct, frozen=True, kw_only=True):
    """`submission.json` of an attempt, written before anything is sent: how it is found again.

    `directory` is the attempt's directory on the host, `code` the label of the code that was shipped for it, if any.
    `location` is where all calls about it go; the configuration, or a default of kubectl or gcloud, may be another one
    by now.
    """

    outlet: str
    name: str
    index: int
    directory: str
    code: str = ""
    is_packed: bool = False
    location: Location = Location()


def workspace_id(layout: Layout) -> str:
    """Twelve hexadecimal digits, the same for all dispatchers of the workspace; made by the first that asks.

    Raises StorageError.
    """
    path = layout.id_file
    with files.storing("reading the workspace's id from", path):
        found = files.read_fresh(path)
        if found is None:
            with files.shared_umask(layout.root):
                path.parent.mkdir(parents=True, exist_ok=True)
                _create_whole(path, os.urandom(_ID_BYTES).hex().encode() + b"\n")
            found = files.read_fresh(path)
    text = (found or b"").decode(errors="replace").strip()
    if len(text) != 2 * _ID_BYTES or not set(text) <= set("0123456789abcdef"):
        raise files.storage_error(OSError(f"{text!r} is no id"), "reading the workspace's id from", path)
    return text


def _create_whole(path: Path, data: bytes) -> None:
    """Create a file that no reader sees empty; one that exists stays."""
    temporary = files.temporary_name(path)
    files.create_file(temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)


def submission_name(workspace: str, keys: Sequence[Key]) -> str:
    """What the scheduler calls a submission of these attempts: the same for the same ones, and never used again."""
    digest = hashlib.blake2b("\0".join(map(str, keys)).encode(), digest_size=_NAME_BYTES).hexdigest()
    return f"d-{workspace}-{digest}"


def write_submission(paths: AttemptPaths, submission: SubmissionFile, *, durable: bool) -> None:
    """Record under which name the attempt is about to be submitted; raises StorageError.

    An attempt without this file counts as one that was never sent, also after a power cut when `durable`.
    """
    with files.storing("recording the submission in", paths.submission):
        files.replace_file(paths.submission, msgspec.json.encode(submission) + b"\n", durable=durable)


def read_submission(paths: AttemptPaths) -> SubmissionFile | None:
    """Under which name the attempt was to be submitted; None when it had not come so far. Raises StorageError."""
    with files.storing("reading", paths.submission):
        data = files.read_fresh_small(paths.submission)
    try:
        return None if data is None else msgspec.json.decode(data, type=SubmissionFile)
    except msgspec.DecodeError as error:
        why = f"{error}; if nothing of the attempt is in the scheduler, remove the file: then the job is queued again"
        raise files.storage_error(OSError(why), "reading", paths.submission) from None
