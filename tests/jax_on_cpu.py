"""JAX for tests that run it in their own process: import this module before JAX."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import kept_programs
import pytest

# Exact equality is asserted; it is promised for one kind of device, and every machine has this one.
NAME, CPU = "JAX_PLATFORMS", "cpu"
with pytest.MonkeyPatch.context() as _patch:
    # JAX reads it when it is imported. It is not left behind: what attempts record of it is what other tests look at.
    _patch.setenv(NAME, os.environ.get(NAME, CPU))
    _patch.setenv("XLA_FLAGS", kept_programs.FLAGS)
    import jax

    # XLA reads its flags with the first device.
    jax.devices()


@pytest.fixture(scope="module", autouse=True)
def cpu_for_children(jax_cache: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NAME, os.environ.get(NAME, CPU))
        for name, value in kept_programs.environment(jax_cache).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(jax_cache: Path) -> None:
    """Compile each program once for all tests: most of their time would go there."""
    for name, value in kept_programs.environment(jax_cache).items():
        if name.startswith("JAX_"):
            jax.config.update(name.lower(), float(value) if value == "0" else value)
