"""The call of an Optax optimizer: gradients as it expects them, its other arguments, and what it must not do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import jax
import jax.extend.core
import jax.numpy as jnp
import optax

from dispatcher.errors import ConfigError
from dispatcher.runtime.parameters import Arrays

# The mean loss of a batch as a function of the parameters.
ValueFn = Callable[..., jax.Array]

_UNEXPECTED: Final = re.compile(r"unexpected keyword argument '(\w+)'")
_MISSING: Final = re.compile(r"missing \d+ required keyword-only argument")


def conjugated(gradients: Arrays) -> Arrays:
    """JAX's gradients as Optax expects them, or the other way round.

    JAX's gradient of a complex number is the conjugate of the direction in which the loss grows fastest.
    """
    return {name: jnp.conj(array) if jnp.iscomplexobj(array) else array for name, array in gradients.items()}


def updated(
    optimizer: optax.GradientTransformation,
    gradients: Arrays,
    opt_state: Any,
    params: Arrays,
    *,
    value: jax.Array,
    value_fn: ValueFn | None,
) -> tuple[Arrays, Any]:
    """The optimizer's updates and its next state. It has the arguments of Optax's interface that it asks for:

    - `value`, `grad` and `value_fn` (step sizes by Polyak, line searches, `reduce_on_plateau`): the loss, its gradient
      as `jax.grad` returns it, and the loss as a function of the parameters;
    - `obj_fn` (Sophia), the same function, and `grad_fn(params, number)` (SAM), its gradients as Optax expects them.
    """
    if any(map(jnp.iscomplexobj, params.values())):
        _check_keeps_imaginary_parts(optimizer.update, gradients, opt_state, params)
    return _call(optimizer.update, (gradients, opt_state, params), _beside(gradients, params, value, value_fn))


def _beside(gradients: Arrays, params: Arrays, value: jax.Array, value_fn: ValueFn | None) -> dict[str, Any]:
    """The arguments of an update beside gradients, state and parameters."""
    given = {"value": value, "grad": conjugated(gradients)}
    if value_fn is None:
        return given
    loss = _on_all(value_fn, params)
    return {
        **given,
        "value_fn": loss,
        "obj_fn": loss,
        "grad_fn": lambda params, number=0: conjugated(jax.grad(loss)(params)),
    }


def _on_all(value_fn: ValueFn, params: Arrays) -> ValueFn:
    """`value_fn` of only those parameters that an optimizer of a part has; it ignores the other arguments of `updated`.

    A line search passes on what it does not use itself.
    """

    def loss(changed: Mapping[str, Any], *, obj_fn: Any = None, grad_fn: Any = None) -> jax.Array:
        given = {name: array for name, array in changed.items() if not isinstance(array, optax.MaskedNode)}
        return value_fn({**params, **given})

    return loss


def _call(update: Callable[..., Any], arguments: tuple[Any, ...], given: Mapping[str, Any]) -> tuple[Arrays, Any]:
    """Call `update` with those of the arguments `given` that it takes."""
    accepted = inspect.signature(update).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        given = {name: argument for name, argument in given.items() if name in accepted}
    try:
        found: tuple[Arrays, Any] = update(*arguments, **given)
    except TypeError as error:
        # Only the inner one of two optimizers knows that it does not take an argument.
        refused = _UNEXPECTED.search(str(error))
        if refused is not None and refused[1] in given:
            return _call(update, arguments, {name: given[name] for name in given if name != refused[1]})
        if _MISSING.search(str(error)):
            raise ConfigError(
                f"optimizer(): {error}: the trainer has {', '.join(given)} for it; call an optimizer that needs other "
                "arguments in a step of your own"
            ) from error
        raise
    return found


def _check_keeps_imaginary_parts(update: Callable[..., Any], gradients: Arrays, opt_state: Any, params: Arrays) -> None:
    """ConfigError for an optimizer that drops the imaginary parts of gradients or moments."""

    def traced(gradients: Arrays, opt_state: Any, params: Arrays) -> Any:
        # Not the training's loss, which may convert what it wants.
        given = _beside(gradients, params, jnp.float32(0), lambda params: optax.tree.norm(params, squared=True))
        return _call(update, (gradients, opt_state, params), given)

    shapes = sorted(set(_cast_to_real(jax.make_jaxpr(traced)(gradients, opt_state, params).jaxpr)))
    if shapes:
        raise ConfigError(
            "optimizer(): it converts complex numbers to real ones and so drops their imaginary parts (arrays "
            f"{', '.join(str(list(shape)) for shape in shapes)}): wrap it in optax.contrib.split_real_and_imaginary, "
            "set its mu_dtype or accumulator_dtype to a complex type, or use training.per_device_batch_size in place "
            "of optax.MultiSteps"
        )


def _cast_to_real(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of complex arrays that a jaxpr converts to real ones."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "convert_element_type":
            before, after = equation.invars[0].aval, equation.outvars[0].aval
            if _is_complex(before) and not _is_complex(after):
                yield tuple(before.shape)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _cast_to_real(inner)


def _is_complex(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.complexfloating)
