"""Agreement between the processes of one job. Every call is collective: all make it, in the same order.

Only for the main thread: a background thread would mix its transfers with those of the training step.
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

# What all processes raise alike when one of them does.
_KINDS: Final = (DamagedCheckpointError, FormatError, StorageError, SupersededError, UsageError)


def first() -> bool:
    """Whether this is the process that commits."""
    return jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """`value`, plain data, of every process, in their order."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.array(data.size))).reshape(-1)
    padded = np.zeros(int(sizes.max()), dtype=np.uint8)
    padded[: data.size] = data
    rows = np.asarray(multihost_utils.process_allgather(padded)).reshape(len(sizes), -1)
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


def decide(choose: Callable[[], Any]) -> Any:
    """What `choose` returns on the first process, plain data, on all; when it raises, all raise."""
    if jax.process_count() == 1:
        return choose()
    problem: Exception | None = None
    answer: Any = None
    if first():
        try:
            answer = choose()
        except Exception as error:  # noqa: BLE001  # it is raised by agree, here and on the others
            problem = error
    agree(problem)
    return gather(answer)[0]


def agree(problem: Exception | None) -> None:
    """Raise on every process when one of them has a problem; the others learn whose and what it is."""
    if jax.process_count() == 1:
        if problem is not None:
            raise problem
        return
    said = gather(None if problem is None else [type(problem).__name__, str(problem)])
    if problem is not None:
        raise problem
    for number, other in enumerate(said):
        if other is not None:
            kind = next((each for each in _KINDS if each.__name__ == other[0]), CheckpointError)
            raise kind(f"process {number} of this job: {other[1]}")
