"""Points that fill a space more evenly than random ones: a Sobol' sequence, scrambled by the seed.

The point of a trial follows from the seed and its number alone, whatever was found. SciPy is imported here and nowhere
else; it is what Optuna's own QMCSampler uses, which counts its points in the study and not by the numbers of trials.
"""

from __future__ import annotations

from typing import Any

from scipy.stats import qmc

from dispatcher.tuning.space import Space, params_at


def point(space: Space, seed: int, number: int) -> dict[str, Any]:
    """The parameters of trial `number`."""
    sequence = qmc.Sobol(len(space), scramble=True, rng=seed)
    if number:
        sequence.fast_forward(number)
    places = sequence.random(1)[0]
    return params_at(space, dict(zip(space, map(float, places), strict=True)))
