"""The trainings that are measured: what they are told, and their text. Needs no JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

# A step takes tens of milliseconds: on two cores, and on a GPU of 2023.
_SMALL = {
    "model": {"vocabulary": 512, "layers": 4, "width": 128, "heads": 4, "kv_heads": 2, "feed_forward": 352},
    "data": {"length": 128},
    "training": {"batch_size": 4},
}
_LARGE = {
    "model": {
        "vocabulary": 32_768, "layers": 12, "width": 1024, "heads": 16, "kv_heads": 4, "feed_forward": 2816,
        "dtype": "bfloat16",
    },
    "data": {"length": 1024},
    "training": {"batch_size": 8},
}  # fmt: skip


def prepare(directory: Path, platform: str, steps: int, **training: Any) -> dict[str, Any]:
    """The configuration of a training of `steps` steps, its text written into `directory`; no row comes twice.

    `training` is said over the usual.
    """
    usual = _SMALL if platform == "cpu" else _LARGE
    said = {"steps": steps, **usual["training"], **training}
    length = usual["data"]["length"]
    text = directory / "text.npy"
    np.save(text, _tokens(steps * said["batch_size"] * length + 1, usual["model"]["vocabulary"]))
    return {
        "model": {**usual["model"], "context": length},
        "data": {"train": str(text), "length": length},
        "training": said,
    }


def _tokens(count: int, vocabulary: int) -> np.ndarray[Any, Any]:
    """Each is the one before plus 3, three times out of four: something can be learnt in a few steps."""
    generator = np.random.default_rng(0)
    jumps = np.where(generator.random(count) < 0.75, 3, generator.integers(0, vocabulary, count))
    return (np.cumsum(jumps) % vocabulary).astype(np.int32)
