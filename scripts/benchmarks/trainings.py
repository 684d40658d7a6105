"""Trainings to measure. Also what `dispatcher job run --import` is given, so it imports nothing of this package."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from dispatcher.runtime.configuration import configuration
from dispatcher.runtime.jobs.trainer import BaseTrainer
from dispatcher.runtime.registry import job
from dispatcher.runtime.stream import Batch, DataSource
from dispatcher.runtime.transformer import Transformer

# Precedes the seconds since 1970 at which the first step was done.
FIRST_STEP = "first step done at "


@dataclass(frozen=True)
class Plain:
    """There is nothing to say but what every training is told."""


@job("bench/train")
class Train(BaseTrainer[Plain, Transformer]):
    """The trainer as it comes."""

    MODEL = Transformer
    CONFIG = Plain

    def train_source(self) -> DataSource:
        return _Watched(super().train_source(), self.before_batch)

    def before_batch(self, number: int) -> None:
        """Called before the batch `number`, from 0, is read; the update from the one before may still be going on."""


@job("bench/start")
class Start(Train):
    """Tells when the first step was done."""

    def before_batch(self, number: int) -> None:
        if number == 1:
            jax.block_until_ready(self.live_state)
            print(f"{FIRST_STEP}{time.time()}", flush=True)


class InTurns(Train):
    """Hands over to `turn` each time that `every` steps are done."""

    every: int
    turn: Callable[[], None]

    def before_batch(self, number: int) -> None:
        if number and number % self.every == 0:
            jax.block_until_ready(self.live_state)
            self.turn()


class _Watched:
    def __init__(self, inner: DataSource, before: Callable[[int], None]) -> None:
        self._inner = inner
        self._before = before
        self._read = 0

    def rows(self, epoch: int) -> int:
        return self._inner.rows(epoch)

    def read(self, epoch: int, start: int, stop: int) -> Batch:
        self._before(self._read)
        self._read += 1
        return self._inner.read(epoch, start, stop)


def made(cls: type[Train], root: str, name: str, config: dict[str, Any]) -> Any:
    """The training of class `cls` with this configuration, its files below `root`."""
    with configuration(cls.checked_config(config)):
        return cls.local(root, name)
