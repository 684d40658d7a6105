"""Which outputs of a traced function are inputs that it has passed through.

Flax's transformations return every variable of a model: nnx.remat by itself, nnx.scan slice by slice, with the axis of
the layers moved to the front and back again. The jaxpr tells those that were only passed on from those that changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core

# Equations that call one function with their own inputs, and the parameter that has it.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


class _Source(NamedTuple):
    """The input `number`; axis i of the output is its axis `axes[i]`."""

    number: int
    axes: tuple[int, ...]

    @classmethod
    def whole(cls, number: int, variable: Any) -> _Source:
        return cls(number, tuple(range(getattr(variable.aval, "ndim", 0))))


def passed_through(jaxpr: Any) -> list[int | None]:
    """For each output of a jaxpr the index of the input that it is; None: it is computed, or it cannot be told."""
    found = zip(_sources(jaxpr), jaxpr.outvars, strict=True)
    return [
        source.number if source is not None and source == _Source.whole(source.number, output) else None
        for source, output in found
    ]


def _sources(jaxpr: Any) -> list[_Source | None]:
    """The input of which each output has the values, perhaps with its axes in another order."""
    known: dict[Any, _Source] = {
        variable: _Source.whole(index, variable) for index, variable in enumerate(jaxpr.invars)
    }

    def of(variable: Any) -> _Source | None:
        # A literal is a constant and not hashable.
        return None if isinstance(variable, jax.extend.core.Literal) else known.get(variable)

    for equation in jaxpr.eqns:
        for output, found in zip(equation.outvars, _through(equation), strict=True):
            before = of(equation.invars[found.number]) if found is not None else None
            if found is not None and before is not None:
                known[output] = _Source(before.number, tuple(before.axes[axis] for axis in found.axes))
    return [of(variable) for variable in jaxpr.outvars]


def _through(equation: Any) -> Sequence[_Source | None]:
    """For each output of an equation which of the equation's inputs it is."""
    name, params = equation.primitive.name, equation.params
    if name in _CALLS:
        return _sources(_inner(params[_CALLS[name]]))
    if name == "transpose":
        return [_Source(0, tuple(params["permutation"]))]
    if name == "scan":
        return _scanned(params)
    if name == "while":
        return _repeated(params["body_jaxpr"], params["body_nconsts"], params["cond_nconsts"])
    if name == "cond":
        return _branched([_sources(_inner(branch)) for branch in params["branches"]])
    return [None] * len(equation.outvars)


def _scanned(params: Any) -> list[_Source | None]:
    """Carries that each turn passes on, and outputs whose every slice is that of an input."""
    constants, carries = params["num_consts"], params["num_carry"]
    inner = _inner(params["jaxpr"])
    slices = [
        _Source(source.number, (0, *(axis + 1 for axis in source.axes)))
        if source is not None and source.number >= constants + carries
        else None
        for source in _sources(inner)[carries:]
    ]
    return _kept(inner, carries, constants, skipped=0) + slices


def _repeated(body: Any, constants: int, skipped: int) -> list[_Source | None]:
    inner = _inner(body)
    return _kept(inner, len(inner.outvars), constants, skipped=skipped)


def _kept(inner: Any, carries: int, constants: int, *, skipped: int) -> list[_Source | None]:
    """Of the first outputs of a loop's body, those that are its own carry; before it the loop has `skipped` inputs."""
    wanted = [_Source.whole(constants + number, variable) for number, variable in enumerate(inner.outvars[:carries])]
    return [
        _Source(skipped + one.number, one.axes) if one == found else None
        for one, found in zip(wanted, _sources(inner), strict=False)
    ]


def _branched(branches: Sequence[Sequence[_Source | None]]) -> list[_Source | None]:
    """What is the same input in all branches; the first input of the equation chooses one."""
    first, *others = branches
    return [
        _Source(source.number + 1, source.axes)
        if source is not None and all(other[place] == source for other in others)
        else None
        for place, source in enumerate(first)
    ]


def _inner(jaxpr: Any) -> Any:
    """The jaxpr of a closed one."""
    return getattr(jaxpr, "jaxpr", jaxpr)
