"""What a training says that has come upon numbers that are not finite."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.runtime.step import LOSS


def step_error(
    faults: Sequence[str], step: int, steps: int, loss: float, lr: float, saved: str | None
) -> FloatingPointError:
    """For an update to `step`; `faults` as Programs.faults_of has them, `saved` is where the last checkpoint is."""
    what = f"the loss is {loss}" if LOSS in faults else "a gradient is not finite"
    gradients = [name for name in faults if name != LOSS]
    which = f" Gradients that are not finite: {_some(gradients)}." if gradients else ""
    return FloatingPointError(
        f"{what} at step {step} of {steps}: try a learning rate below {lr:g}.{which} {_last_good(saved)}"
    )


def state_error(faults: Sequence[str], step: int, steps: int, saved: str | None) -> FloatingPointError:
    """For the state after `step`; `faults` as Programs.faults has them."""
    return FloatingPointError(f"not finite after step {step} of {steps}: {_some(faults)}. {_last_good(saved)}")


def _last_good(saved: str | None) -> str:
    return "Nothing was saved yet" if saved is None else f"The last checkpoint, which is finite: {saved}"


def _some(names: Sequence[str]) -> str:
    """The first of `names`, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
