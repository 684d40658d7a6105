"""What a save and a restore cost beside plain Orbax, and how long a save holds up its caller: `python measure.py`."""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dispatcher.runtime.checkpoint import CheckpointManager


@dataclass(frozen=True)
class Figures:
    """Seconds, medians over the rounds."""

    save_and_restore_s: float
    orbax_s: float
    orbax_same_options_s: float
    held_up_s: float
    copy_to_host_s: float

    def lines(self) -> list[str]:
        """The table, as text."""
        return [
            f"save + restore with checksums      {self.save_and_restore_s:7.3f} s",
            f"plain Orbax, its defaults          {self.orbax_s:7.3f} s   "
            f"{self.save_and_restore_s / self.orbax_s:5.2f}x",
            f"plain Orbax, without compression   {self.orbax_same_options_s:7.3f} s   "
            f"{self.save_and_restore_s / self.orbax_same_options_s:5.2f}x",
            f"save() holds up its caller         {self.held_up_s:7.3f} s",
            f"bare copy from device to host      {self.copy_to_host_s:7.3f} s   "
            f"{self.held_up_s / self.copy_to_host_s:5.2f}x",
        ]


def make_tree(leaves: int = 200, gigabytes: float = 1.0) -> dict[str, Any]:
    """Random float32 matrices, on the first device."""
    rows = max(1, int(gigabytes * 1e9 / leaves / 4 / 1024))
    generator = np.random.default_rng(0)
    tree = {f"layer{i:03d}": {"kernel": generator.standard_normal((rows, 1024), np.float32)} for i in range(leaves)}
    on_device: dict[str, Any] = jax.block_until_ready(jax.tree.map(jax.device_put, tree))
    return on_device


def measure(tree: Any, folder: Path, rounds: int = 3) -> Figures:
    """Each way in turn, `rounds` times, so that a machine's slow minutes meet all of them."""
    ours, theirs, same, held, copies = [], [], [], [], []
    for number in range(rounds + 1):
        seconds, held_s = _ours(tree, folder / "ours")
        rows = (
            seconds,
            _orbax(tree, folder / "orbax", True),
            _orbax(tree, folder / "same", False),
            held_s,
            _copy(tree),
        )
        # The first round pays for imports and for memory that the process has not had yet.
        if number:
            for kept, value in zip((ours, theirs, same, held, copies), rows, strict=True):
                kept.append(value)
    return Figures(*map(statistics.median, (ours, theirs, same, held, copies)))


def _ours(tree: Any, folder: Path) -> tuple[float, float]:
    def run() -> float:
        with CheckpointManager(folder) as checkpoints:
            began = time.perf_counter()
            checkpoints.save(tree, 1)
            held_s = time.perf_counter() - began
            checkpoints.wait()
            jax.block_until_ready(checkpoints.restore(tree))
        return held_s

    return _timed(run, folder)


def _orbax(tree: Any, folder: Path, compress: bool) -> float:
    from orbax.checkpoint import v1 as orbax

    def run() -> float:
        context = orbax.Context()
        context.array.saving.use_compression = compress
        with context:
            orbax.save_async(folder, tree).result()
            target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
            jax.block_until_ready(orbax.load(folder, target))
        return 0.0

    return _timed(run, folder)[0]


def _copy(tree: Any) -> float:
    began = time.perf_counter()
    copied = [np.array(leaf, copy=True) for leaf in jax.tree.leaves(tree)]
    seconds = time.perf_counter() - began
    del copied
    return seconds


def _timed(run: Callable[[], float], folder: Path) -> tuple[float, float]:
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    extra = run()
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return seconds, extra


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        figures = measure(make_tree(gigabytes=float(sys.argv[1]) if len(sys.argv) > 1 else 1.0), Path(place), rounds=5)
    print("\n".join(figures.lines()))
