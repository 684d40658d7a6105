"""Saves over and over in processes that are killed after their n-th change of a file: crash.py FOLDER NAME FROM EVERY.

FROM says from when on changes are counted: from the `call` of save, or from the `commit`. The first process is not
killed; then one for every EVERY-th change that it has made. Each works on its own copy of FOLDER/prepared. The numbers
of the changes are printed. Loaded with countdown.so in LD_PRELOAD.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dispatcher.checkpoints.directory import DirectoryStorage
from dispatcher.runtime.checkpoint import CheckpointManager, Retention, arrays

AT_ONCE = 3
TREE = {"w": np.full((4, 3), 2.0, np.float32), "seen": np.arange(2)}


class Copied:
    """In the place of Orbax, whose calls are over before a commit: the arrays that it has written in `written`."""

    written: Path

    def __init__(self, place: Path, *_: Any, **__: Any) -> None:
        shutil.copytree(self.written, place)

    def result(self) -> None:
        pass


def save(folder: Path, name: str | None, begin: str, calls: int) -> int:
    """What a training does between two steps; the checkpoint before it goes by retention or is replaced."""
    countdown = ctypes.CDLL(None)
    publish = DirectoryStorage.publish

    def counted(*words: Any) -> Any:
        countdown.countdown_arm(calls)
        return publish(*words)

    if begin == "commit":
        DirectoryStorage.publish = counted
    else:
        countdown.countdown_arm(calls)
    with CheckpointManager(folder, retention=Retention(last=1)) as checkpoints:
        checkpoints.save(TREE, 2, name=name)
    return int(countdown.countdown_counted())


def begin_save(home: Path, name: str | None, begin: str, calls: int) -> int:
    """The process, which writes what it has counted; forks are many times faster than imports."""
    folder = home / f"{begin}{calls}"
    shutil.copytree(home / "prepared", folder)
    # JAX's would not be there in the child, and what they held would stay locked.
    assert len(os.listdir("/proc/self/task")) == 1, "threads were started before the fork"
    pid = os.fork()
    if pid == 0:
        counted = save(folder, name, begin, calls)
        (home / "counted").write_text(str(counted))
        os._exit(0)
    return pid


def main() -> None:
    home, name, begin, every = Path(sys.argv[1]), sys.argv[2] or None, sys.argv[3], int(sys.argv[4])
    if begin == "commit":
        Copied.written = home / "second" / "step-00000002" / arrays.ARRAYS
        arrays.begin_saving = Copied
        # They would start a backend in each process.
        jax.process_count, jax.process_index = lambda: 1, lambda: 0
    else:
        from orbax.checkpoint import v1  # noqa: F401  # loaded once, before the forks
    os.waitpid(begin_save(home, name, begin, 0), 0)
    numbers = range(1, int((home / "counted").read_text()) + 1, every)
    running: list[int] = []
    for number in numbers:
        running.append(begin_save(home, name, begin, number))
        if len(running) == AT_ONCE:
            os.waitpid(running.pop(0), 0)
    for pid in running:
        os.waitpid(pid, 0)
    print(*numbers)


main()
