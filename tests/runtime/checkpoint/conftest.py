"""What the tests of checkpoints share: a training state, and a run that belongs to an attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dispatcher import contract

HERE = Path(__file__).parent


def make_state(step: int) -> dict[str, Any]:
    """A training state of every kind of leaf, different for every step."""
    params = {
        "dense": {"kernel": jnp.arange(12.0).reshape(3, 4) + step, "bias": jnp.full((4,), step, jnp.bfloat16)},
        "empty": jnp.zeros((0, 3)),
    }
    return {
        "params": params,
        "opt": optax.adamw(1e-3).init(params),
        "step": step,
        "loss": float(step) / 3,
        "key": jax.random.key(step),
        "lr": jnp.asarray(0.1),
        "seen": np.arange(step, step + 3),
        "scale": np.float32(step),
        "phase": f"step {step}",
        "frozen": True,
    }


def assert_same(found: Any, wanted: Any) -> None:
    """Bit for bit, with types and containers."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for (path, one), other in zip(
        jax.tree_util.tree_leaves_with_path(found), jax.tree_util.tree_leaves(wanted), strict=True
    ):
        assert_same_leaf(jax.tree_util.keystr(path), one, other)


def assert_same_leaf(name: str, one: Any, other: Any) -> None:
    """The same type, shape, bits and way to promote."""
    assert type(one) is type(other), name
    assert getattr(one, "dtype", None) == getattr(other, "dtype", None), name
    assert getattr(one, "weak_type", None) == getattr(other, "weak_type", None), name
    if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    if isinstance(one, bool | int | float | str):
        assert repr(one) == repr(other), name
    else:
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), name
        assert np.shape(one) == np.shape(other), name


@pytest.fixture
def state() -> Callable[[int], dict[str, Any]]:
    return make_state


@pytest.fixture
def same() -> Callable[[Any, Any], None]:
    return assert_same


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """Makes this process an attempt of an entry, in its own directory."""

    def become(number: int, job: str = "fft_spanish") -> Path:
        directory = tmp_path / "jobs" / job / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv(contract.ATTEMPT_DIR, str(directory))
        monkeypatch.setenv(contract.JOB_ID, job)
        monkeypatch.setenv(contract.ATTEMPT, str(number))
        return directory

    return become


@pytest.fixture
def child() -> Callable[..., str]:
    """Runs a script of `children/` in a process of its own; what it printed, with `stderr` what it complained of."""

    def run(script: str, *words: str | Path, timeout_s: float = 120, stderr: bool = False, **environment: str) -> str:
        command = [sys.executable, str(HERE / "children" / script), *map(str, words)]
        env = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
        assert ended.returncode == 0, f"{script} {words}: {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
        return ended.stderr if stderr else ended.stdout

    return run
