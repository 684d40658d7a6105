"""Saves over and over in processes that are killed after their n-th change of a file: crash.py FOLDER NAME FROM n...

FROM says from when on changes are counted: from the `call` of save, or from the `commit`. Each works on its own copy
of FOLDER/prepared. With the number 0 it is not killed, and how many changes it made is printed. Loaded with
countdown.so in LD_PRELOAD.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1  # noqa: F401  # loaded once, before the forks

from dispatcher.checkpoints.directory import DirectoryStorage
from dispatcher.runtime.checkpoint import CheckpointManager, Retention

AT_ONCE = 3


def save(folder: Path, name: str | None, begin: str, calls: int) -> None:
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
        checkpoints.save({"w": jnp.full((4, 3), 2.0), "seen": np.arange(2)}, 2, name=name)
    if not calls:
        print(countdown.countdown_counted(), flush=True)


def main() -> None:
    """Forks, which are many times faster than processes that import everything anew."""
    home, name, begin, *numbers = sys.argv[1:]
    running: list[int] = []
    # JAX's would not be there in the child, and what they held would stay locked.
    assert len(os.listdir("/proc/self/task")) == 1, "threads were started before the fork"
    for number in map(int, numbers):
        folder = Path(home, f"{begin}{number}")
        shutil.copytree(Path(home, "prepared"), folder)
        pid = os.fork()
        if pid == 0:
            save(folder, name or None, begin, number)
            os._exit(0)
        running.append(pid)
        if len(running) == AT_ONCE:
            os.waitpid(running.pop(0), 0)
    for pid in running:
        os.waitpid(pid, 0)


main()
