"""The interface between the manager and the storage of checkpoints: a directory, or a prefix in an object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote, urlsplit

from dispatcher.base.lazy import pattern
from dispatcher.errors import UsageError

if TYPE_CHECKING:
    # The configuration of hosts is read where the libraries of checkpoints are not installed.
    from dispatcher.checkpoints.manifest import Manifest

SCRATCH: Final = "ckpt.tmp"
# Every checkpoint has it. A directory that has it and no manifest is the rest of one whose removal was interrupted.
TREE: Final = "tree.json"
LATEST: Final = "latest"
# Where checkpoints are moved that are not resumed from: damaged ones, and those that a rewind left behind.
DAMAGED: Final = "damaged"
SET_ASIDE: Final = "set-aside"
# The suffix of a checkpoint that is being replaced, until the new one has its name.
OLD: Final = ".old-"

_OBJECT_STORES: Final = ("s3", "gs", "az")
_PART: Final = pattern(r"[A-Za-z0-9_=@+][A-Za-z0-9_.=@+-]*")

# Called with None right before a commit, and with the manifest of an existing checkpoint of that name; raises when this
# run may not commit, or may not replace that checkpoint.
Guard = Callable[["Manifest | None"], None]


class Storage(Protocol):
    """The storage of one series of checkpoints."""

    url: str

    def staging(self) -> Path:
        """A new, empty directory in which the next checkpoint is assembled."""

    def clean(self, staged: Path) -> None:
        """Remove a directory that `staging` returned."""

    def publish(self, staged: Path, name: str, draft: Manifest, guard: Guard) -> Manifest:
        """Commit the files in `staged` as `name`, the manifest last; returns the manifest with its files.

        An existing checkpoint of that name is replaced if `guard` allows it; one of the two exists at any moment.
        """

    def manifests(self) -> Iterator[tuple[str, bytes]]:
        """The name and the manifest of every committed checkpoint."""

    def manifest(self, name: str) -> bytes | None:
        """The manifest of one checkpoint; None when it does not exist."""

    def is_complete(self, name: str, manifest: Manifest) -> bool:
        """Whether every file exists with its size; the content is not read."""

    def opened(self, name: str, manifest: Manifest) -> AbstractContextManager[tuple[Path, bool]]:
        """The checkpoint as a local directory, and whether its checksums have been checked already."""

    def read(self, name: str, manifest: Manifest, path: str) -> bytes | None:
        """The content of one small file."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint, its manifest first."""

    def set_aside(self, name: str, folder: str) -> str:
        """Move a checkpoint out of the series, into `folder` (DAMAGED or SET_ASIDE); returns its new place."""

    def damaged(self) -> str | None:
        """The place of damaged checkpoints that were set aside; None when there are none."""

    def read_pointer(self) -> bytes | None:
        """The data of `write_pointer`; None when there is none."""

    def write_pointer(self, data: bytes) -> None:
        """Replace the file that names the latest checkpoint."""

    def close(self) -> None:
        """Remove the scratch directory."""


def is_url(place: str | os.PathLike[str]) -> bool:
    """Whether `place` is a URL rather than a path."""
    return "://" in os.fspath(place)


def normal(place: str | os.PathLike[str]) -> str:
    """An absolute path, or the URL of an object store without a trailing `/`; UsageError for any other URL."""
    text = os.fspath(place)
    if not is_url(text):
        return str(Path(text).absolute())
    parts = urlsplit(text)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)))
    if "@" in parts.netloc or parts.query:
        # The message does not repeat them, because it may be logged.
        raise UsageError(
            f"checkpoints in {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}: no credentials in a URL; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the store's other variables, in the environment"
        )
    if parts.scheme not in _OBJECT_STORES or not parts.netloc:
        known = ", ".join(f"{scheme}://bucket/..." for scheme in _OBJECT_STORES)
        raise UsageError(f"checkpoints in {text!r}: expected a directory or one of {known}")
    return text.rstrip("/")


def check_name(name: str) -> str:
    """Return `name` if it is valid, words of letters, digits and `_.=@+-` joined by `/`; else UsageError."""
    parts = name.split("/")
    if not all(_PART.fullmatch(part) and OLD not in part for part in parts) or len(name) > 200:
        raise UsageError(
            f"checkpoint {name!r}: expected a name such as 'best' or 'step/120': letters, digits, '_', '.', '=', '@', "
            "'+' and '-', none of its words beginning with '.' or '-', at most 200"
        )
    if parts[0] in (SCRATCH, LATEST, DAMAGED, SET_ASIDE):
        raise UsageError(f"checkpoint {name!r}: {parts[0]!r} is a reserved name; choose another")
    return name
