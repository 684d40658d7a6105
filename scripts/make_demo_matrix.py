#!/usr/bin/env python3
"""Write the demo's matrix: one pretraining, then language x configuration x seed x method fine-tunes that need it.

Usage: python scripts/make_demo_matrix.py [MANIFEST]      (default: matrix/matrix.json)
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from dispatcher.matrix import write_manifest

LANGUAGES = ("czech", "greek", "hindi", "russian", "turkish", "vietnamese")
# Adapters start from zero and need larger steps than pretrained weights.
LEARNING_RATES = {
    "A": {"fft": 3e-3, "lora": 1e-2},
    "B": {"fft": 1e-3, "lora": 2e-2},
}
METHODS = ("fft", "lora")
SEEDS = (42, 43)
PRETRAIN = "pretrain_all_cfgA_s0_main"
# Every job has a folder of its own below it.
OUTPUT = "runs"


def entries() -> list[dict[str, Any]]:
    """The pretraining first, then all fine-tunes."""
    pretrain = {
        "job_id": PRETRAIN,
        "method": "pretrain",
        "lang": "all",
        "config_id": "A",
        "seed": 0,
        "steps": 600,
        "output_dir": OUTPUT,
        "run_kind": "main",
        "gpus": 0,
    }
    axes = itertools.product(METHODS, LANGUAGES, LEARNING_RATES, SEEDS)
    return [pretrain, *(fine_tune(*point) for point in axes)]


def fine_tune(method: str, lang: str, config_id: str, seed: int) -> dict[str, Any]:
    """One fine-tune of the pretrained model; its files are below the workspace's runs/."""
    job_id = f"{method}_{lang}_cfg{config_id}_s{seed}_main"
    return {
        "job_id": job_id,
        "method": method,
        "lang": lang,
        "config_id": config_id,
        "seed": seed,
        "steps": 200,
        "learning_rate": LEARNING_RATES[config_id][method],
        "base": f"names/pretrain/{PRETRAIN}/best",
        "output_dir": OUTPUT,
        "run_kind": "main",
        "needs": [PRETRAIN],
        "gpus": 0,
    }


if __name__ == "__main__":
    write_manifest(sys.argv[1] if len(sys.argv) > 1 else "matrix/matrix.json", entries())
