"""The errors of a training whose loss, gradients, parameters or state are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from dispatcher.runtime.training.compiled import Block, at_step
from dispatcher.runtime.training.values import LEARNING_RATE, LOSS, read

if TYPE_CHECKING:
    from dispatcher.runtime.training.trainer import Trainer


def block_error(trainer: Trainer[Any, Any], end: int, block: Block) -> FloatingPointError:
    """The error of the first step that was not finite in the block that ends at step `end`. Collective."""
    flags = jax.device_get(block.faults)
    first = int(flags.any(axis=1).argmax())
    found = read(at_step(block.metrics, first))
    return _step_error(
        trainer.setup.compiled.fault_names(flags[first]),
        end - len(flags) + first + 1,
        trainer.training.steps,
        loss=found.get(LOSS),
        lr=found.get(LEARNING_RATE),
        saved=trainer.last_saved(),
        own_step=getattr(trainer.step, "__qualname__", None) != "Trainer.step",
    )


def _step_error(
    faults: Sequence[str],
    step: int,
    steps: int,
    *,
    loss: float | None,
    lr: float | None,
    saved: str | None,
    own_step: bool = False,
) -> FloatingPointError:
    """The error of the update to `step`; `faults` from CompiledTraining.fault_names, `saved` is the last checkpoint.

    What a step of the user's own checks of each parameter may be its gradient or the parameter itself.
    """
    checked = "gradient or a parameter" if own_step else "gradient"
    if LOSS not in faults:
        what = f"a {checked} is not finite"
    else:
        what = "the loss is not finite" if loss is None or math.isfinite(loss) else f"the loss is {loss}"
    # Flax has NaN for the rows that a table lacks.
    data = ", and look in the rows for such numbers and for ids that nnx.Embed does not have" if LOSS in faults else ""
    names = [name for name in faults if name != LOSS]
    which = (
        f" {'Not finite in step()' if own_step else 'Gradients that are not finite'}: {_some(names)}." if names else ""
    )
    lower = "lower learning rate" if lr is None else f"learning rate below {lr:g}"
    return FloatingPointError(f"{what} at step {step} of {steps}: try a {lower}{data}.{which} {_last_good(saved)}")


def start_error(faults: Sequence[str], when: str) -> FloatingPointError:
    """The error of a state that could not be saved although nothing has diverged; `when`, such as `after step 1`;
    `faults` from CompiledTraining.nonfinite_arrays."""
    return FloatingPointError(
        f"not finite {when}: {_some(faults)}. Such a state is never saved: give these arrays numbers, "
        "and mark what the training has not seen yet by a count or a mask in place of NaN"
    )


def state_error(faults: Sequence[str], step: int, steps: int, saved: str | None) -> FloatingPointError:
    """The error of the state after `step`; `faults` from CompiledTraining.nonfinite_arrays."""
    return FloatingPointError(f"not finite after step {step} of {steps}: {_some(faults)}. {_last_good(saved)}")


def _last_good(saved: str | None) -> str:
    return "No checkpoint was saved yet" if saved is None else f"The last checkpoint, which is finite: {saved}"


def _some(names: Sequence[str]) -> str:
    """The first three of `names`, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
