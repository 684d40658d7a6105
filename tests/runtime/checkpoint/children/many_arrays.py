"""Saves more arrays than there is room for, and says what went wrong: many_arrays.py FOLDER."""

from __future__ import annotations

import sys

import numpy as np

from dispatcher.errors import StorageError
from dispatcher.runtime.checkpoint import CheckpointManager

try:
    with CheckpointManager(sys.argv[1]) as checkpoints:
        checkpoints.save({f"w{number}": np.random.default_rng(number).random(50_000) for number in range(60)}, 1)
except StorageError as error:
    print("many_arrays: StorageError", error, file=sys.stderr)
