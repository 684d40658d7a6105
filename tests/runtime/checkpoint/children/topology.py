"""Saves and restores sharded states on the devices that XLA_FLAGS gives: topology.py (save|restore FOLDER)..."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dispatcher.runtime.checkpoint import CheckpointManager


def state(scale: float) -> dict[str, jax.Array]:
    """One array split over all devices, one on all of them, one on one; a key."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    matrix = scale * jnp.arange(64.0).reshape(8, 8)
    return {
        "split": jax.device_put(matrix, NamedSharding(mesh, PartitionSpec("data"))),
        "other": jax.device_put(matrix, NamedSharding(mesh, PartitionSpec(None, "data"))),
        "copied": jax.device_put(scale * jnp.arange(3.0), everywhere),
        "single": jax.device_put(jnp.float32(scale), jax.devices()[0]),
        "none": jax.device_put(jnp.zeros((8, 0)), NamedSharding(mesh, PartitionSpec("data"))),
        "key": jax.device_put(jax.random.key(int(scale)), everywhere),
    }


def save(folder: Path | str) -> None:
    with CheckpointManager(folder) as checkpoints:
        checkpoints.save(state(3.0), 1)


def restore(folder: Path | str) -> None:
    """What is restored is checked here, bit for bit and by its place."""
    target, wanted = state(0.0), state(3.0)
    with CheckpointManager(folder) as checkpoints:
        found = checkpoints.restore(target)
    for name, leaf in wanted.items():
        one, other = found[name], leaf
        there = target[name].sharding
        assert one.sharding.is_equivalent_to(there, one.ndim), (name, one.sharding, there)
        if name == "key":
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), name
        assert one.shape == other.shape


if __name__ == "__main__":
    for what, folder in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        {"save": save, "restore": restore}[what](folder)
    print(f"{jax.device_count()} devices")
