"""Variables of jobs: those of the dispatcher that people may set, and those that may be recorded.

Recorded are those of an allow-list, and never one that looks like a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from dispatcher import contract

# Where the files of a job class are, each with the variable that has the last word on it.
PLACES: Final[Mapping[str, str]] = {
    place: f"DISPATCHER_{place.upper()}_OVERRIDE" for place in ("root", "data", "checkpoints", "results")
}
# `env` may set these; the other variables of this name identify attempts, and the dispatcher sets them itself.
SETTABLE: Final = frozenset({*PLACES.values(), "DISPATCHER_WORK_OVERRIDE", contract.BATCH_SIZE})

# What changes how a job computes, and where. A name may end with a *.
RECORDED_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_WORKSPACE_CONFIG",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_ENABLE_X64",
    "JAX_PLATFORMS",
    "LIBTPU_INIT_ARGS",
    "MKL_NUM_THREADS",
    "NCCL_*",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TF_DETERMINISTIC_OPS",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_*",
)
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|ACCESS_?KEY|PRIVATE|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)


def looks_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return _SECRET.search(name) is not None


def recorded(environment: Mapping[str, str], allowed: Iterable[str]) -> dict[str, str]:
    """The variables of an environment that are on the allow-list, by name."""
    names = [name for name in allowed if not name.endswith("*")]
    beginnings = tuple(name[:-1] for name in allowed if name.endswith("*"))
    found = {name for name in names if name in environment}
    if beginnings:
        found |= {name for name in environment if name.startswith(beginnings)}
    return {name: environment[name] for name in sorted(found) if not looks_secret(name)}
