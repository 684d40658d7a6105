"""`gpt/train/pretrain`: pretraining of a transformer on token files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dispatcher.runtime.configuration import field
from dispatcher.runtime.language.trainer import LanguageTrainer
from dispatcher.runtime.language.transformer import Transformer
from dispatcher.runtime.registry import job


@dataclass(frozen=True)
class TokensConfig:
    """Makes `data.train` a required setting; in DataConfig it is optional."""

    train: Path = field("data/train")


@job("gpt/train/pretrain")
class Pretrain(LanguageTrainer[TokensConfig, Transformer]):
    """Train a transformer on the tokens of .npy files: data.train, and data.eval to evaluate on."""

    MODEL = Transformer
    CONFIG = TokensConfig
