"""What an attempt is told of its part of the host, so that libraries take no more than that. Pure."""

from __future__ import annotations

import math
from typing import Final

from dispatcher import contract
from dispatcher.outlets.base import Slot

# What CUDA and its libraries take of a GPU for a process beside what JAX allocates: some hundred MiB, and rarely more
# than this; of a small amount at most the part.
_OUTSIDE_MIB: Final = 1024
_OUTSIDE_PART: Final = 4


def told(slot: Slot) -> dict[str, str | None]:
    """The variables that say what it was given. None removes what the dispatcher itself was given."""
    return {contract.GPU_MEMORY: str(slot.gpu_memory_mib) if slot.gpu_memory_mib else None}


def defaults(slot: Slot) -> dict[str, str]:
    """Settings of libraries that would take all that they see, unless the job or its method sets them.

    JAX would take three quarters of the GPU when it starts, and OpenMP (NumPy, PyTorch) a thread for each core.
    """
    found = {}
    if slot.gpu_memory_mib and slot.gpu_share:
        pool_mib = slot.gpu_memory_mib - min(_OUTSIDE_MIB, slot.gpu_memory_mib // _OUTSIDE_PART)
        fraction = slot.gpu_share * pool_mib / slot.gpu_memory_mib
        found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{math.floor(fraction * 10_000) / 10_000:.4f}"
    if slot.cpus:
        found["OMP_NUM_THREADS"] = str(slot.cpus)
    return found
