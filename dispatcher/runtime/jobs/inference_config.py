"""The settings of jobs that use a trained model, and those of its training on which the model depends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.errors import ConfigError
from dispatcher.runtime.configuration import field
from dispatcher.runtime.execution import DATA_AXIS, TENSOR_AXIS
from dispatcher.runtime.training.placement import listed
from dispatcher.runtime.training.precision import Precision


@dataclass(frozen=True)
class InferenceConfig:
    """`mesh` has the sizes of the mesh's axes, `fsdp` shards large parameters, as in a training; neither comes from the
    checkpoint, since a model may be used on other devices. `batch_size` rows are computed at once, over all devices;
    null: all, in an evaluation as many as in the training. `ema`: averages of the parameters are used in their place
    where the checkpoint has them.
    """

    mesh: dict[str, int] = field("inference/mesh", default_factory=dict)
    fsdp: bool = field("inference/fsdp", default=False)
    batch_size: int | None = field("inference/batch_size", default=None)
    ema: bool = field("inference/ema", default=True)

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"inference.batch_size = {self.batch_size}: expected at least 1, or null")


@dataclass(frozen=True)
class TrainedWith:
    """Settings of the training that come with its checkpoint."""

    mesh: dict[str, int] = field("training/mesh", default_factory=dict)
    axis_rules: dict[str, str | list[str] | None] = field("training/axis_rules", default_factory=dict)
    precision: Precision = field("training/precision", default_factory=Precision)


def mesh_sizes(inference: Mapping[str, int], training: Mapping[str, int], rules: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the mesh's axes: those of `inference`; 1 for all others that the training's mesh and rules name.

    So the model finds every axis that it was written for, on whatever devices it is used.
    """
    named = [*training, *(axis for to in rules.values() for axis in listed(to))]
    # Axes that every mesh has.
    return {name: 1 for name in named if name not in (DATA_AXIS, TENSOR_AXIS)} | dict(inference)


def rows_at_once(wanted: int, shards: int) -> int:
    """The least number of rows that is at least `wanted` and is divided by the data shards."""
    return -(-wanted // shards) * shards
