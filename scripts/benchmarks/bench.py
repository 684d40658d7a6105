"""What every row gets: a place to work in, how thorough to be, and how to say what goes on."""

from __future__ import annotations

import contextlib
import enum
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")
_END_S = 10.0
_PLACES, _PROBES = 8, 10


class Size(enum.Enum):
    """How much is measured. The smallest shows no more than that every row works."""

    THOROUGH = "thorough"
    QUICK = "quick"
    SMALLEST = "smallest"


@dataclass(frozen=True)
class Bench:
    """One run."""

    directory: Path
    size: Size
    say: Callable[[str], None]

    def pick(self, thorough: T, quick: T, smallest: T) -> T:
        return {Size.THOROUGH: thorough, Size.QUICK: quick, Size.SMALLEST: smallest}[self.size]

    def new_directory(self, name: str) -> Path:
        """A place for one arm. Of several, the one where new files cost least.

        ext4 steps over inodes that were freed in the last minutes, one by one: near files that were just removed, by
        whomever, making one costs up to ten times as much, and no two places would be alike.
        """
        places = [Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory)) for _ in range(_PLACES)]
        return min(places, key=_cost_of_new_files)

    def remove(self, place: Path) -> None:
        """Remove a directory with large files before the next ones are written."""
        shutil.rmtree(place, ignore_errors=True)


def _cost_of_new_files(place: Path) -> float:
    # The files stay where they are: removed, they would be what is to be avoided.
    begun = time.perf_counter()
    for number in range(_PROBES):
        inner = place / "probe" / str(number) / "1"
        inner.mkdir(parents=True)
        (inner / "file").touch()
    return time.perf_counter() - begun


@contextlib.contextmanager
def working_directory(parent: Path) -> Iterator[Path]:
    """A new directory below `parent`; at the end it is removed, and with it what this process has started."""
    parent.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    # ext4: the directories in it are spread over the disk, see `Bench.new_directory`.
    with contextlib.suppress(OSError):
        subprocess.run(["chattr", "+T", path], capture_output=True, check=False)
    try:
        yield path
    finally:
        stop_all()
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            parent.rmdir()


def stop_all() -> None:
    """End every process below this one, also those that have made themselves daemons (see `adopt_orphans`)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        children = psutil.Process().children(recursive=True)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)
        if not psutil.wait_procs(children, _END_S)[1]:
            return
