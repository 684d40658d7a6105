"""checkpoint.json in an attempt's directory: the last checkpoint that it committed, and where."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.checkpoints.retention import Retention
from dispatcher.checkpoints.storage import is_url
from dispatcher.errors import DispatcherError


class Reported(msgspec.Struct, frozen=True, omit_defaults=True):
    """`name` in `series`, with this `seal` in its manifest; None: a job that keeps its checkpoints in another way.

    `series` is a URL, or a directory: relative to the workspace if it is inside of it, as the attempt saw both. By the
    seal somebody else can tell whether the directory of that name is the same. `retention` is what the job keeps; None:
    everything.
    """

    step: int
    series: str | None = None
    name: str = ""
    seal: str = ""
    retention: Retention | None = None

    def place(self, root: Path) -> Path | None:
        """The directory of the series, in the workspace `root`; None when there is none."""
        if self.series is None or is_url(self.series):
            return None
        path = Path(self.series)
        return None if ".." in path.parts else root / path


def seen_from(root: Path | None, place: str) -> str | None:
    """How an attempt in the workspace `root` reports the place of a series; None for a name that JSON cannot hold."""
    path = place
    if root is not None and not is_url(place) and Path(place).is_relative_to(root):
        path = str(Path(place).relative_to(root))
    try:
        path.encode()
    except UnicodeEncodeError:
        return None
    return path


def read(path: Path) -> Reported | None:
    """What an attempt has reported; None when it reported nothing that can be understood."""
    try:
        return msgspec.json.decode(files.read_at_once(path), type=Reported)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, DispatcherError):
        return None


def write(directory: Path, reported: Reported) -> None:
    contract.write_json(directory / contract.CHECKPOINT_FILE, msgspec.to_builtins(reported), durable=True)
