"""Whether the rows about jobs in JAX can run here, and on which device. This process itself never imports JAX."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.figures import Skipped
from benchmarks.workers import ask_once

_NEEDED = ("jax", "flax", "optax", "orbax", "xxhash")


@dataclass(frozen=True)
class Device:
    """What JAX computes on by default: `platform` is `cpu`, `gpu` or `tpu`, `name` is what it calls itself."""

    platform: str
    name: str

    @property
    def is_cpu(self) -> bool:
        return self.platform == "cpu"


@functools.cache
def need_device() -> Device:
    """JAX's first device; Skipped without the packages that jobs need."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise Skipped(f"no {', '.join(missing)} here: scripts/install jax")
    return Device(*ask_once(_first_device))


def _first_device() -> Callable[[int], tuple[str, str]]:
    import jax

    first = jax.devices()[0]
    return lambda _number: (first.platform, first.device_kind)
