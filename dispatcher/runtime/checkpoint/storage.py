"""The seam between the manager and the places where checkpoints lie: a directory, or a prefix in an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from dispatcher.errors import UsageError
from dispatcher.runtime.checkpoint.manifest import Manifest

SCRATCH: Final = "ckpt.tmp"
LATEST: Final = "latest"
# Where checkpoints are moved that nobody goes on from: damaged ones, and those that somebody went back behind.
DAMAGED: Final = "damaged"
SET_ASIDE: Final = "set-aside"
# Ends the name of a checkpoint that is being replaced, until the new one stands in its place.
OLD: Final = ".old-"

OBJECT_STORES: Final = ("s3", "gs", "az")
_PART: Final = re.compile(r"[A-Za-z0-9_=@+][A-Za-z0-9_.=@+-]*")

# Called with None right before a commit, and with the manifest that stands under the name when there is one; raises
# when this run may not commit, or may not replace that.
Guard = Callable[[Manifest | None], None]


class Storage(Protocol):
    """Where the checkpoints of one series lie."""

    url: str

    def staging(self) -> Path:
        """A new, empty directory in which the next checkpoint is put together."""

    def clean(self, staged: Path) -> None:
        """Remove what `staging` gave."""

    def publish(self, staged: Path, name: str, draft: Manifest, guard: Guard) -> Manifest:
        """Commit the files in `staged` under `name`: all of them, then the manifest, which is returned complete.

        What stands there already is replaced if `guard` lets it; there is no moment without either of the two.
        """

    def manifests(self) -> Iterator[tuple[str, bytes]]:
        """The name and the manifest of everything that is committed."""

    def manifest(self, name: str) -> bytes | None:
        """The manifest of one checkpoint; None when it is not there."""

    def looks_whole(self, name: str, manifest: Manifest) -> bool:
        """Whether every file is there in its size; the content is not read."""

    def opened(self, name: str, manifest: Manifest) -> AbstractContextManager[tuple[Path, bool]]:
        """The checkpoint as a local directory, and whether its checksums have been looked at on the way."""

    def read(self, name: str, manifest: Manifest, path: str) -> bytes | None:
        """The content of one small file."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint, its manifest first."""

    def set_aside(self, name: str, folder: str) -> str:
        """Move a checkpoint to where nobody looks for one, to those of `folder` (DAMAGED, SET_ASIDE); where that is."""

    def damaged(self) -> str | None:
        """Where damaged checkpoints were set aside; None when there are none."""

    def read_pointer(self) -> bytes | None:
        """What `write_pointer` wrote; None when it is lost."""

    def write_pointer(self, data: bytes) -> None:
        """Replace the file that names the latest checkpoint."""

    def close(self) -> None:
        """Remove the scratch directory."""


def is_url(place: str | os.PathLike[str]) -> bool:
    """Whether `place` is a URL and no path."""
    return "://" in os.fspath(place)


def normal(place: str | os.PathLike[str]) -> str:
    """An absolute path, or the URL of an object store without a `/` at its end; UsageError for another URL."""
    text = os.fspath(place)
    if not is_url(text):
        return str(Path(text).absolute())
    parts = urlsplit(text)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)))
    if "@" in parts.netloc or parts.query:
        # Not shown again: a URL stands in logs, in messages and in files.
        raise UsageError(
            f"checkpoints in {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}: no credentials in a URL; "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what else the store reads, in the environment"
        )
    if parts.scheme not in OBJECT_STORES or not parts.netloc:
        known = ", ".join(f"{scheme}://bucket/..." for scheme in OBJECT_STORES)
        raise UsageError(f"checkpoints in {text!r}: expected a directory or one of {known}")
    return text.rstrip("/")


def check_name(name: str) -> str:
    """`name` if it can name a checkpoint: words of letters, digits and `_.=@+-` with `/` between; else UsageError."""
    parts = name.split("/")
    if not all(_PART.fullmatch(part) and OLD not in part for part in parts) or len(name) > 200:
        raise UsageError(
            f"checkpoint {name!r}: expected a name such as 'best' or 'step/120': letters, digits, '_', '.', '=', '@', "
            "'+' and '-', none of its words beginning with '.' or '-', at most 200"
        )
    if parts[0] in (SCRATCH, LATEST, DAMAGED, SET_ASIDE):
        raise UsageError(f"checkpoint {name!r}: {parts[0]!r} is the name of something else here; choose another")
    return name
