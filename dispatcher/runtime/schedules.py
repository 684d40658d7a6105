"""Learning rate schedules: functions from the number of steps done to a learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import optax

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field


@dataclass(frozen=True)
class ScheduleConfig:
    """Linear warmup from 0 to `lr`, followed by one of these:

    - `constant`: `lr`;
    - `cosine`: cosine decay to `min_lr_ratio * lr`;
    - `wsd`: `lr`, with a linear decay to `min_lr_ratio * lr` at the end (warmup-stable-decay, Hu et al. 2024,
      arXiv:2404.06395).

    `warmup` and `decay` are fractions of the steps, `min_lr_ratio` is a fraction of `lr`.
    """

    kind: Literal["constant", "cosine", "wsd"] = field("optimization/schedule", default="cosine")
    lr: float = field("optimization/lr", default=1e-3)
    warmup: float = field("optimization/warmup", default=0.05)
    decay: float = field("optimization/decay", default=0.2)
    min_lr_ratio: float = field("optimization/min_lr_ratio", default=0.0)

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf:
            raise ConfigError(f"optimization.lr = {self.lr}: expected a number, 0 or more")
        for name in ("warmup", "decay", "min_lr_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"optimization.{name} = {getattr(self, name)}: expected a fraction, from 0 to 1")
        if self.kind == "wsd" and self.warmup + self.decay > 1:
            raise ConfigError(f"optimization: warmup {self.warmup} + decay {self.decay}: expected at most 1")


def make_schedule(config: ScheduleConfig, steps: int) -> optax.Schedule:
    """The schedule of a training of `steps` steps."""
    warmup = round(config.warmup * steps)
    after = max(1, steps - warmup)
    if config.kind == "constant":
        rest = optax.constant_schedule(config.lr)
    elif config.kind == "cosine":
        rest = optax.cosine_decay_schedule(config.lr, after, alpha=config.min_lr_ratio)
    else:
        decay = round(config.decay * steps)
        rest = optax.join_schedules(
            [
                optax.constant_schedule(config.lr),
                optax.linear_schedule(config.lr, config.min_lr_ratio * config.lr, max(1, decay)),
            ],
            [steps - warmup - decay],
        )
    return optax.join_schedules([optax.linear_schedule(0.0, config.lr, max(1, warmup)), rest], [warmup])
