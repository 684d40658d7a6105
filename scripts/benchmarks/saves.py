"""The arms of saving and restoring: the checkpoint manager, plain Orbax, and the bare copy off the device."""

from __future__ import annotations

import functools
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as orbax

from benchmarks.figures import BenchError, Rounds, interleave
from dispatcher.runtime.checkpoint import CheckpointManager, Retention
from dispatcher.runtime.checkpoint.arrays import DATA_FILE_BYTES

_STEPS_ALONE = 5


def make_tree(gigabytes: float, leaves: int) -> dict[str, Any]:
    """Random float32 matrices, on the first device."""
    rows = max(1, int(gigabytes * 1e9 / leaves / 4 / 1024))
    generator = np.random.default_rng(0)
    tree = {f"layer{i:03d}": {"kernel": generator.standard_normal((rows, 1024), np.float32)} for i in range(leaves)}
    on_device: dict[str, Any] = jax.block_until_ready(jax.tree.map(jax.device_put, tree))
    return on_device


class HoldUp:
    """How long a save holds up a training that keeps two checkpoints, and the bare copy of the same tree."""

    def __init__(self, directory: Path, gigabytes: float, leaves: int) -> None:
        self._tree = make_tree(gigabytes, leaves)
        self._checkpoints = CheckpointManager(directory / "held", retention=Retention(last=2))
        self._number = 0
        self.slowed: list[float] = []
        self.lost: list[float] = []

    def measure(self, rounds: int) -> dict[str, Any]:
        """Seconds that `save` and the copy took, by rounds.

        Also, of each save: by how much the steps during the commit were slowed, as a multiple, and how many seconds
        the training lost by it in all. What comes first pays for imports and for memory that the process has not had.
        """
        self.copy()
        self.save()
        self.slowed.clear()
        self.lost.clear()
        found = interleave({"save": self.save, "copy": self.copy}, rounds)
        self._checkpoints.close()
        return {**found, "slowed": self.slowed, "lost": self.lost}

    def save(self) -> list[float]:
        alone = [self._step() for _ in range(_STEPS_ALONE)]
        usual = float(np.median(alone))
        self._number += 1
        begun = time.perf_counter()
        self._checkpoints.save(self._tree, self._number)
        held_s = time.perf_counter() - begun
        committing = threading.Thread(target=self._checkpoints.wait)
        committing.start()
        during = [self._step()]
        while committing.is_alive():
            during.append(self._step())
        self.slowed.append(float(np.median(during)) / usual)
        self.lost.append(held_s + sum(during) - usual * len(during))
        return [held_s]

    def copy(self) -> list[float]:
        # New arrays, not yet copied: JAX keeps what it once copied to the host.
        self._step()
        begun = time.perf_counter()
        copied = copy_to_host(self._tree)
        seconds = time.perf_counter() - begun
        del copied
        return [seconds]

    def _step(self) -> float:
        """Seconds of one step of a training, as far as saving is concerned: every array is replaced by another."""
        begun = time.perf_counter()
        self._tree = jax.block_until_ready(_changed(self._tree))
        return time.perf_counter() - begun


@functools.partial(jax.jit, donate_argnums=0)
def _changed(tree: Any) -> Any:
    return jax.tree.map(lambda array: array - 1e-3 * jax.numpy.tanh(array), tree)


def copy_to_host(tree: Any) -> list[np.ndarray[Any, Any]]:
    """All arrays of `tree` in memory of their own, on the host."""
    leaves = jax.tree.leaves(tree)
    for leaf in leaves:
        leaf.copy_to_host_async()
    arrays = [np.asarray(leaf) for leaf in leaves]
    # On a CPU these still are the device's own memory, which the next step may want to use.
    on_cpu = leaves[0].devices().pop().platform == "cpu"
    return [array.copy() for array in arrays] if on_cpu else arrays


class RoundTrip:
    """Save a tree and restore it: with the checkpoint manager, with Orbax as it comes, and with its options as ours."""

    def __init__(self, directory: Path, gigabytes: float, leaves: int) -> None:
        self._directory = directory
        self._tree = make_tree(gigabytes, leaves)
        self._target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self._tree)
        self.parts: dict[str, Rounds] = {}

    def measure(self, rounds: int) -> dict[str, Any]:
        """Seconds of save and restore together, by rounds, and in `parts` of each."""
        arms: dict[str, Callable[[Path], tuple[float, Any]]] = {
            "ours": self._ours,
            "orbax": functools.partial(self._orbax, False),
            "orbax_told_alike": functools.partial(self._orbax, True),
        }
        named = {name: functools.partial(self._timed, name, arm) for name, arm in arms.items()}
        # What comes first pays for imports and for memory that the process has not had.
        for run in named.values():
            run()
        self.parts.clear()
        return {**interleave(named, rounds), "parts": self.parts}

    def _timed(self, name: str, arm: Callable[[Path], tuple[float, Any]]) -> list[float]:
        folder = self._directory / name
        # New arrays, not yet copied: JAX keeps what it once copied to the host.
        self._tree = jax.block_until_ready(jax.jit(lambda tree: jax.tree.map(lambda x: x + 0, tree))(self._tree))
        begun = time.perf_counter()
        saved_s, restored = arm(folder)
        seconds = time.perf_counter() - begun
        self._check_equal(name, restored)
        shutil.rmtree(folder)
        self.parts.setdefault(name, []).append([saved_s, seconds - saved_s])
        return [seconds]

    def _ours(self, folder: Path) -> tuple[float, Any]:
        begun = time.perf_counter()
        with CheckpointManager(folder) as checkpoints:
            checkpoints.save(self._tree, 1)
            checkpoints.wait()
            saved_s = time.perf_counter() - begun
            return saved_s, jax.block_until_ready(checkpoints.restore(self._target))

    def _orbax(self, alike: bool, folder: Path) -> tuple[float, Any]:
        context = orbax.Context()
        if alike:
            context.array.saving.use_compression = False
            context.array.saving.ocdbt_target_data_file_size = DATA_FILE_BYTES
        with context:
            begun = time.perf_counter()
            orbax.save(folder, self._tree)
            saved_s = time.perf_counter() - begun
            return saved_s, jax.block_until_ready(orbax.load(folder, self._target))

    def _check_equal(self, name: str, restored: Any) -> None:
        """Raise BenchError unless the restored arrays are those that were saved."""
        pairs = zip(jax.tree_util.tree_leaves_with_path(restored), jax.tree.leaves(self._tree), strict=True)
        for (path, array), saved in pairs:
            if not bool(jax.numpy.array_equal(array, saved)):
                raise BenchError(f"{name}: {jax.tree_util.keystr(path)} is not what was saved")
