"""The package's own pretraining."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dispatcher.runtime.configuration import field
from dispatcher.runtime.jobs.trainer import BaseTrainer
from dispatcher.runtime.registry import job
from dispatcher.runtime.transformer import Transformer


@dataclass(frozen=True)
class TokensConfig:
    """What DataConfig leaves open: there is nothing to train on but a file."""

    train: Path = field("data/train")


@job("gpt/train/pretrain")
class Pretrain(BaseTrainer[TokensConfig, Transformer]):
    """Train a transformer on the tokens of .npy files: data.train, and data.held_out to evaluate on."""

    MODEL = Transformer
    CONFIG = TokensConfig
