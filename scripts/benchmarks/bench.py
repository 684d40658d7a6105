"""What every row gets: a place to work in, how thorough to be, and how to say what goes on."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")
_END_S = 10.0


@dataclass(frozen=True)
class Bench:
    """One run. `hyperqueue` is a Python interpreter that can import that package, if one was named."""

    directory: Path
    quick: bool
    say: Callable[[str], None]
    hyperqueue: str | None = None

    def pick(self, thorough: T, quick: T) -> T:
        return quick if self.quick else thorough

    def new_directory(self, name: str) -> Path:
        # A random name: ext4 finds the part of the disk by it, and where the last run was, files were just removed.
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))


@contextlib.contextmanager
def working_directory(parent: Path) -> Iterator[Path]:
    """A new directory below `parent`; at the end it is removed, and with it what this process has started."""
    parent.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    # ext4 steps over inodes that were freed in the last minutes, one by one: near files that were just removed, making
    # one costs up to ten times as much. With this flag each row gets a part of the disk of its own.
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
