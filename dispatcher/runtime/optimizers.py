"""Optimizers: AdamW, and Muon for a model's matrices with AdamW for all else.

Parameters are a dict by name; their roles (`roles`) say which are matrices, and which decay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import optax
from optax.contrib import MuonDimensionNumbers, muon

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field
from dispatcher.runtime.roles import Role


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

    def uses_muon(self, role: Role) -> bool:
        """Whether Muon updates a parameter of this role; else AdamW does."""
        return self.kind == "muon" and role.is_matrix

    def decays(self, role: Role) -> bool:
        """Whether a parameter of this role decays. What Muon leaves to AdamW does not."""
        return self.weight_decay > 0 and (role.decays if self.kind == "adamw" else self.uses_muon(role))

    def update_text(self, role: Role) -> str:
        """How a parameter of this role is updated, such as `muon, decays`."""
        return ("muon" if self.uses_muon(role) else "adamw") + (", decays" if self.decays(role) else "")

    @property
    def depends_on_roles(self) -> bool:
        return self.kind == "muon" or self.weight_decay > 0


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, roles: Mapping[str, Role]
) -> optax.GradientTransformation:
    """The optimizer with this learning rate, of parameters with these `roles` by name.

    AdamW decays kernels and embeddings, not scales, biases and what is of unknown role. Muon (Jordan 2024)
    orthogonalizes the update of each matrix, of stacked ones each for itself, and scales it as in Liu et al. 2025
    (arXiv:2502.16982) to the RMS of AdamW's update, so that one learning rate serves both. It decays only the matrices
    that it updates.
    """

    def decaying(parameters: Mapping[str, Any]) -> dict[str, bool]:
        return {name: config.decays(roles[name]) for name in parameters}

    def matrices(parameters: Mapping[str, Any]) -> dict[str, MuonDimensionNumbers | None]:
        return {name: _dimension_numbers(roles[name]) for name in parameters}

    if config.kind == "muon":
        update = muon(
            schedule,
            beta=config.momentum,
            weight_decay=config.weight_decay,
            eps=config.eps,
            adam_b1=config.b1,
            adam_b2=config.b2,
            muon_weight_dimension_numbers=matrices,
            consistent_rms=0.2,
        )
    else:
        update = optax.adamw(
            schedule, b1=config.b1, b2=config.b2, eps=config.eps, weight_decay=config.weight_decay, mask=decaying
        )
    if config.max_grad_norm is None:
        return update
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), update)


def _dimension_numbers(role: Role) -> MuonDimensionNumbers | None:
    return MuonDimensionNumbers(role.inputs, role.outputs) if role.is_matrix else None
