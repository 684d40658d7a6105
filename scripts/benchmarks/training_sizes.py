"""The trainings that are measured: what they are told, and their text. Needs no JAX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

# A step takes tens of milliseconds: on two cores, and on a GPU of 2023.
_SMALL = {
    "model": {"vocab_size": 512, "num_layers": 4, "d_model": 128, "num_heads": 4, "num_kv_heads": 2, "d_ff": 352},
    "data": {"seq_len": 128},
    "training": {"batch_size": 4},
}
_LARGE = {
    "model": {
        "vocab_size": 32_768, "num_layers": 12, "d_model": 1024, "num_heads": 16, "num_kv_heads": 4, "d_ff": 2816,
        "dtype": "bfloat16",
    },
    "data": {"seq_len": 1024},
    "training": {"batch_size": 8},
}  # fmt: skip


# A step takes a fraction of a millisecond, so what surrounds it counts.
_SHORT = {
    "model": {"vocab_size": 64, "num_layers": 1, "d_model": 32, "num_heads": 2, "num_kv_heads": 1, "d_ff": 64},
    "data": {"seq_len": 16},
    "training": {"batch_size": 4},
}


def prepare(directory: Path, platform: str, steps: int, *, short: bool = False, **training: Any) -> dict[str, Any]:
    """The configuration of a training of `steps` steps, its text written into `directory`; no row comes twice.

    `short`: of steps that take a fraction of a millisecond. `training` overrides the usual settings.
    """
    usual = _SHORT if short else _SMALL if platform == "cpu" else _LARGE
    settings = {"steps": steps, **usual["training"], **training}
    seq_len = usual["data"]["seq_len"]
    text = directory / "text.npy"
    np.save(text, _tokens(steps * settings["batch_size"] * seq_len + 1, usual["model"]["vocab_size"]))
    return {
        "model": {**usual["model"], "max_seq_len": seq_len},
        "data": {"train": str(text), "seq_len": seq_len},
        "training": settings,
    }


def _tokens(count: int, vocabulary: int) -> np.ndarray[Any, Any]:
    """Each is the one before plus 3, three times out of four: something can be learnt in a few steps."""
    generator = np.random.default_rng(0)
    jumps = np.where(generator.random(count) < 0.75, 3, generator.integers(0, vocabulary, count))
    return (np.cumsum(jumps) % vocabulary).astype(np.int32)
