"""Trainings to measure. Also what `dispatcher job run --import` is given, so it imports nothing of this package."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from dispatcher.runtime.configuration import configuration
from dispatcher.runtime.language.trainer import LanguageTrainer
from dispatcher.runtime.language.transformer import Transformer
from dispatcher.runtime.registry import job

# Precedes the seconds since 1970 at which the first step was done.
FIRST_STEP = "first step done at "


@dataclass(frozen=True)
class Plain:
    """There is nothing to say but what every training is told."""


@job("bench/train")
class Train(LanguageTrainer[Plain, Transformer]):
    """The trainer as it comes."""

    MODEL = Transformer
    CONFIG = Plain

    def run_block(self, batch: Any, steps: int, requested: Any) -> Any:
        self.before_step(self.steps_done)
        return super().run_block(batch, steps, requested)

    def before_step(self, number: int) -> None:
        """Called before the step `number`, from 0, is begun; the one before may still be going on."""


@job("bench/start")
class Start(Train):
    """Tells when the first step was done."""

    def before_step(self, number: int) -> None:
        if number == 1:
            jax.block_until_ready(self.live_state)
            print(f"{FIRST_STEP}{time.time()}", flush=True)


class InTurns(Train):
    """Hands over to `turn` each time that `every` steps are done."""

    every: int
    turn: Callable[[], None]

    def before_step(self, number: int) -> None:
        if number and number % self.every == 0:
            jax.block_until_ready(self.live_state)
            self.turn()


def made(cls: type[Train], root: str, name: str, config: dict[str, Any]) -> Any:
    """The training of class `cls` with this configuration, its files below `root`."""
    with configuration(cls.checked_config(config)):
        return cls.local(root, name)
