"""What "bit for bit" depends on beside code, settings and data: devices, XLA's flags, versions of JAX."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import jax

if TYPE_CHECKING:
    from dispatcher.runtime.execution import ExecutionSpec

_COMPILED: Final = "compiled"
CACHE: Final = "jax_compilation_cache_dir"
_DETERMINISTIC: Final = "--xla_gpu_deterministic_ops"

_log = logging.getLogger(__name__)


def found() -> dict[str, Any]:
    """What is saved with each checkpoint. The number of processes is not among it: it changes no bits."""
    first = jax.devices()[0]
    return {
        "chip": first.device_kind,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is different now, in words."""
    changed = [name for name in now if name in saved and saved[name] != now[name]]
    return [f"{name} {saved[name]!r} then, {now[name]!r} now" for name in changed]


def tell_differences(saved: Any, now: Mapping[str, Any], where: str) -> None:
    """Log what is different from when the checkpoint `where` was saved."""
    changed = differences(saved, now) if isinstance(saved, Mapping) else []
    if changed:
        _log.warning("%s: the training goes on, but not bit for bit as before: %s", where, "; ".join(changed))


def tell_inexact(platform: str) -> None:
    """Log that a training on GPUs does not have the same bits each time, if XLA may add in any order there."""
    words = [word for word in os.environ.get("XLA_FLAGS", "").split() if word.partition("=")[0] == _DETERMINISTIC]
    if platform == "gpu" and (not words or words[-1].partition("=")[2].lower() in ("false", "0")):
        _log.warning(
            "XLA adds in any order on GPUs: this training resumes where it stopped, but not bit for bit; "
            "env: {XLA_FLAGS: %s=true} of its entry or method makes it exact, and slower",
            _DETERMINISTIC,
        )


def keep_compiled(spec: ExecutionSpec) -> None:
    """On accelerators, keep compiled programs for later attempts and other jobs, unless the user has set a place."""
    if spec.hardware.platform == "cpu" or getattr(jax.config, CACHE) is not None:
        return
    place = spec.hardware.cluster.root / _COMPILED / f"jaxlib-{version('jaxlib')}"
    jax.config.update(CACHE, str(place))  # type: ignore[no-untyped-call]  # untyped in JAX
