"""JAX for tests that run it in their own process: import this module before JAX."""

from __future__ import annotations

import os

# Exact equality is asserted; it is promised for one kind of device, and every machine has this one.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(jax_cache):
    """Compile each program once for all tests: most of their time would go there."""
    jax.config.update("jax_compilation_cache_dir", str(jax_cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
