"""Collective operations of the processes of one job: every process makes each call, in the same order.

Values are plain data and travel as JSON. Call these from the main thread only: in a background thread their transfers
would mix with those of the training step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import multihost_utils

from dispatcher.errors import (
    CheckpointError,
    DamagedCheckpointError,
    FormatError,
    StorageError,
    SupersededError,
    UsageError,
)

# Errors that keep their class on the other processes; every other one arrives there as a CheckpointError.
_KINDS: Final = (DamagedCheckpointError, FormatError, StorageError, SupersededError, UsageError)


def is_first_process() -> bool:
    """Whether this is process 0, the one that writes and commits."""
    return jax.process_index() == 0


def all_gather(value: Any) -> list[Any]:
    """The `value` of every process, in the order of the processes."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.array(data.size))).reshape(-1)
    padded = np.zeros(int(sizes.max()), dtype=np.uint8)
    padded[: data.size] = data
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


def broadcast_result(function: Callable[[], Any]) -> Any:
    """Call `function` on process 0 and return its result on every process; when it raises, every process raises."""
    if jax.process_count() == 1:
        return function()
    error: Exception | None = None
    result: Any = None
    if is_first_process():
        try:
            result = function()
        except Exception as raised:  # noqa: BLE001  # raise_on_all raises it, here and on the other processes
            error = raised
    raise_on_all(error)
    return all_gather(result)[0]


def raise_on_all(error: Exception | None) -> None:
    """Raise on every process when any of them has an `error`; the others name the process and its message."""
    if jax.process_count() == 1:
        if error is not None:
            raise error
        return
    gathered = all_gather(None if error is None else [type(error).__name__, str(error)])
    if error is not None:
        raise error
    for number, other in enumerate(gathered):
        if other is not None:
            kind = next((each for each in _KINDS if each.__name__ == other[0]), CheckpointError)
            raise kind(f"process {number} of this job: {other[1]}")
