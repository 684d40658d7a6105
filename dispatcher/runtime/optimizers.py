"""Optimizers: AdamW, and Muon for a model's matrices with AdamW for all else. Parameters are a dict by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import optax
from optax.contrib import MuonDimensionNumbers, muon

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field

# The last part of the names of tables of vectors, for which Muon is not meant.
_TABLES = ("embedding",)


@dataclass(frozen=True)
class OptimizerConfig:
    """Gradients are clipped to the global norm `max_grad_norm`, null: not clipped.

    `b1`, `b2` and `eps` are AdamW's, also for the parameters that Muon leaves to it. `momentum` is Muon's.
    `weight_decay` is scaled by the learning rate.
    """

    kind: Literal["adamw", "muon"] = field("optimization/optimizer", default="adamw")
    b1: float = field("optimization/b1", default=0.9)
    b2: float = field("optimization/b2", default=0.95)
    eps: float = field("optimization/eps", default=1e-8)
    weight_decay: float = field("optimization/weight_decay", default=0.01)
    max_grad_norm: float | None = field("optimization/max_grad_norm", default=1.0)
    momentum: float = field("optimization/momentum", default=0.95)

    def __post_init__(self) -> None:
        faults = [
            f"optimization.{name} = {getattr(self, name)}: expected a fraction, from 0 to less than 1"
            for name in ("b1", "b2", "momentum")
            if not 0 <= getattr(self, name) < 1
        ]
        faults += [
            f"optimization.{name} = {getattr(self, name)}: expected a number, 0 or more"
            for name in ("eps", "weight_decay")
            if not 0 <= getattr(self, name) < math.inf
        ]
        if self.max_grad_norm is not None and not 0 < self.max_grad_norm < math.inf:
            faults.append(f"optimization.max_grad_norm = {self.max_grad_norm}: expected a number above 0, or null")
        if faults:
            raise ConfigError("\n".join(faults))


def make_optimizer(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The optimizer with this learning rate. Weight decay applies to matrices only, not to norm scales or biases.

    Muon (Jordan 2024) orthogonalizes the update of each matrix and scales it as in Liu et al. 2025 (arXiv:2502.16982)
    to the RMS of AdamW's update, so that one learning rate serves both. It decays only the matrices that it updates.
    """
    if config.kind == "muon":
        update = muon(
            schedule,
            beta=config.momentum,
            weight_decay=config.weight_decay,
            eps=config.eps,
            adam_b1=config.b1,
            adam_b2=config.b2,
            muon_weight_dimension_numbers=_orthogonal,
            consistent_rms=0.2,
        )
    else:
        update = optax.adamw(
            schedule, b1=config.b1, b2=config.b2, eps=config.eps, weight_decay=config.weight_decay, mask=_matrices
        )
    if config.max_grad_norm is None:
        return update
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), update)


def _matrices(parameters: Mapping[str, Any]) -> dict[str, bool]:
    return {name: array.ndim >= 2 for name, array in parameters.items()}


def _orthogonal(parameters: Mapping[str, Any]) -> dict[str, MuonDimensionNumbers | None]:
    return {name: MuonDimensionNumbers() if _uses_muon(name, array) else None for name, array in parameters.items()}


def _uses_muon(name: str, array: Any) -> bool:
    # Optax calls this again with placeholders, which have no shape, for parameters that Muon does not update.
    return getattr(array, "ndim", 0) == 2 and name.rsplit("/", 1)[-1] not in _TABLES
