"""A training that takes seconds, for tests: every part of a real one, and nothing of its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatcher.runtime.configuration import configuration, field
from dispatcher.runtime.language.tokens import TokenWindows
from dispatcher.runtime.language.trainer import LanguageTrainer
from dispatcher.runtime.language.transformer import Transformer
from dispatcher.runtime.registry import job

LENGTH = 12


@dataclass(frozen=True)
class Text:
    """`tokens` is how many tokens there are to train on."""

    tokens: int = field("text/tokens", default=1500)


@job("tests/tiny")
class Tiny(LanguageTrainer[Text, Transformer]):
    """Learns a text of random tokens that follow each other by a rule, most of the time."""

    MODEL = Transformer
    CONFIG = Text

    def data(self) -> TokenWindows:
        return TokenWindows(text(self.args.tokens, seed=1), LENGTH)

    def evaluations(self) -> dict[str, Any]:
        return {"held_out": TokenWindows(text(200, seed=2), LENGTH)}


def text(count: int, *, seed: int) -> np.ndarray[Any, Any]:
    """Each token is the one before plus 3 modulo 16, three times out of four."""
    generator = np.random.default_rng(seed)
    jumps = generator.integers(0, 16, count)
    kept = generator.random(count) < 0.75
    tokens = np.zeros(count, np.int32)
    for place in range(1, count):
        tokens[place] = (tokens[place - 1] + 3) % 16 if kept[place] else jumps[place]
    return tokens


CONFIG: dict[str, Any] = {
    "model": {
        "vocab_size": 16,
        "num_layers": 1,
        "d_model": 16,
        "num_heads": 4,
        "num_kv_heads": 2,
        "d_ff": 24,
        "max_seq_len": LENGTH + 8,
        "dropout": 0.1,
    },
    "training": {"steps": 40, "batch_size": 8, "per_device_batch_size": 4, "log_every": 1, "eval_every": 10},
    "optimization": {"lr": 1e-2},
}


def config(**training: Any) -> dict[str, Any]:
    """CONFIG with these words of `training`; those with a dot are other keys (`model.num_layers`)."""
    said = {key: dict(value) for key, value in CONFIG.items()}
    for key, value in training.items():
        group, _, word = key.rpartition(".")
        said.setdefault(group or "training", {})[word] = value
    return said


def made(root: Any, name: str = "tiny", cls: type[Any] = Tiny, **training: Any) -> Any:
    """The job with such a configuration."""
    with configuration(cls.checked_config(config(**training))):
        return cls.local(root, name)
