"""The arrays of a model in the checkpoint of its training, without the optimizer's state."""

from __future__ import annotations

from typing import Any

import jax

from dispatcher.errors import CheckpointError
from dispatcher.runtime import adapters
from dispatcher.runtime.checkpoint import Restored
from dispatcher.runtime.checkpoint.tree import saved_names
from dispatcher.runtime.jobs.checkpointed import CheckpointedJob
from dispatcher.runtime.parameters import AbstractModel, Arrays
from dispatcher.runtime.sharding import abstract_array
from dispatcher.runtime.training.placement import Placement
from dispatcher.runtime.training.precision import Precision, parameter_names
from dispatcher.runtime.training.state import EMA, MODEL


def kept_arrays(model: AbstractModel, placement: Placement, precision: Precision) -> dict[str, Any]:
    """Shape, type and sharding of each array of a model, as a training with this precision keeps them."""
    places = placement.shardings(model.variables)
    names = parameter_names(model.variables)
    shapes = jax.eval_shape(lambda arrays: precision.stored(arrays, names), model.shapes())
    return {name: abstract_array(shape, places[name]) for name, shape in shapes.items()}


def load_arrays(
    job: CheckpointedJob[Any], rel_path: str, target: dict[str, Any], *, averaged: bool
) -> tuple[Arrays, Restored]:
    """The model's arrays in a checkpoint, and what else it holds.

    With `averaged` the averages of parameters in place of those that the checkpoint has averages of. CheckpointError
    when it has adapters that the model does not have: without them it is another model.
    """
    saved = job.leaves_from_path(rel_path)
    there = saved_names([f"{kind}/{name}" for kind in (MODEL, EMA) for name in target], saved, job.RENAMED_FROM)
    lost = [name for name in saved if name.endswith(f"/{adapters.A}") and name.startswith(f"{MODEL}/")]
    lost = [name.removeprefix(f"{MODEL}/") for name in lost if name not in there.values()]
    if lost:
        raise CheckpointError(
            f"{rel_path} has adapters that the model does not have ({', '.join(lost[:3])}): add them to the model, or "
            "use the checkpoint of a MergeAdapters job"
        )
    averages = {
        name: jax.ShapeDtypeStruct(array.shape, saved[average].dtype, sharding=array.sharding)  # type: ignore[no-untyped-call]
        for name, array in target.items()
        if averaged and (average := there[f"{EMA}/{name}"]) in saved
    }
    others = {name: array for name, array in target.items() if name not in averages}
    restored = job.load_from_path(rel_path, {MODEL: others, EMA: averages}, partial=True)
    found = {name: array.astype(target[name].dtype) for name, array in restored.tree[EMA].items()}
    return restored.tree[MODEL] | found, restored
