from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dispatcher.errors import ConfigError
from dispatcher.runtime.optimizers import OptimizerConfig, make_optimizer
from dispatcher.runtime.roles import ParameterKind, Role

PARAMETERS = {
    "embedding/embedding": np.full((3, 4), 2.0, np.float32),
    "layer/kernel": np.full((4, 4), 2.0, np.float32),
    "norm/scale": np.full(4, 2.0, np.float32),
}
ROLES = {
    "embedding/embedding": Role(ParameterKind.EMBEDDING),
    "layer/kernel": Role(ParameterKind.KERNEL, (0,), (1,)),
    "norm/scale": Role(ParameterKind.SCALE),
}


def steps(config, gradients, rate=0.1):
    """The parameters after one update with each of `gradients`."""
    optimizer = make_optimizer(config, optax.constant_schedule(rate), ROLES)

    @jax.jit
    def update(gradient, state, parameters):
        change, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, change), state

    parameters, state = PARAMETERS, optimizer.init(PARAMETERS)
    for gradient in gradients:
        parameters, state = update(gradient, state, parameters)
    return parameters


def constant(value):
    return {name: np.full_like(array, value) for name, array in PARAMETERS.items()}


def test_two_steps_of_adamw_by_hand():
    config = OptimizerConfig(b1=0.8, b2=0.9, eps=0.0, weight_decay=0.5, max_grad_norm=None)
    found = steps(config, [constant(1.0), constant(3.0)])

    value, first, second = 2.0, 0.0, 0.0
    for number, gradient in enumerate((1.0, 3.0), start=1):
        first = 0.8 * first + 0.2 * gradient
        second = 0.9 * second + 0.1 * gradient**2
        direction = (first / (1 - 0.8**number)) / np.sqrt(second / (1 - 0.9**number))
        value -= 0.1 * (direction + 0.5 * value)
    np.testing.assert_allclose(found["layer/kernel"], value, rtol=1e-5)
    np.testing.assert_allclose(found["embedding/embedding"], value, rtol=1e-5)


def test_a_norms_scale_does_not_decay():
    config = OptimizerConfig(eps=0.0, weight_decay=0.5, max_grad_norm=None)
    np.testing.assert_allclose(steps(config, [constant(1.0)])["norm/scale"], 2.0 - 0.1, rtol=1e-5)


def test_gradients_are_clipped_by_their_norm_together():
    # Adam is blind to the scale of all gradients together, but not when the next ones are not clipped.
    numbers = sum(array.size for array in PARAMETERS.values())
    small = 1 / np.sqrt(numbers)
    config = OptimizerConfig(max_grad_norm=1.0, weight_decay=0.0)
    clipped = steps(config, [constant(100.0), constant(small / 2)])
    by_hand = steps(OptimizerConfig(max_grad_norm=None, weight_decay=0.0), [constant(small), constant(small / 2)])
    for name in PARAMETERS:
        np.testing.assert_allclose(clipped[name], by_hand[name], rtol=1e-4)


def test_muon_makes_the_update_of_a_matrix_orthogonal_and_of_adams_size():
    gradient = {name: np.zeros_like(array) for name, array in PARAMETERS.items()}
    gradient["layer/kernel"] = np.asarray(jax.random.normal(jax.random.key(0), (4, 4)))
    config = OptimizerConfig(kind="muon", weight_decay=0.0, max_grad_norm=None)
    update = (2.0 - steps(config, [gradient])["layer/kernel"]) / 0.1
    singular = jnp.linalg.svd(update, compute_uv=False) / (0.2 * np.sqrt(4))
    # Five Newton-Schulz rounds with Jordan's coefficients bring singular values near one, not to it.
    assert 0.6 < float(singular.min()) <= float(singular.max()) < 1.3


def test_muon_leaves_tables_and_vectors_to_adam_without_decay():
    config = OptimizerConfig(kind="muon", b1=0.8, b2=0.9, eps=1e-12, weight_decay=0.5, max_grad_norm=None)
    found = steps(config, [constant(3.0)])
    # With Nesterov's look ahead: the first moment as it will be when the same gradient comes once more.
    first = 0.8 * (0.2 * 3.0) / (1 - 0.8**2) + 0.2 * 3.0 / (1 - 0.8)
    for name in ("embedding/embedding", "norm/scale"):
        np.testing.assert_allclose(found[name], 2.0 - 0.1 * first / 3.0, rtol=1e-5)


def test_muons_matrices_decay():
    still = {name: np.zeros_like(array) for name, array in PARAMETERS.items()}
    found = steps(OptimizerConfig(kind="muon", weight_decay=0.5, max_grad_norm=None), [still])
    assert found["layer/kernel"] == pytest.approx(2.0 * (1 - 0.1 * 0.5))


def test_stacked_and_split_kernels_are_the_matrices_that_they_are_made_of() -> None:
    config = OptimizerConfig(kind="muon", weight_decay=0.5, max_grad_norm=None)
    gradient = np.asarray(jax.random.normal(jax.random.key(0), (3, 8, 2, 4)))
    names = [f"query/{layer}" for layer in range(3)]

    def update(parameters, roles, gradients):
        optimizer = make_optimizer(config, optax.constant_schedule(0.1), roles)
        changes, _ = jax.jit(optimizer.update)(gradients, optimizer.init(parameters), parameters)
        return changes

    stacked = update(
        {"query": np.ones_like(gradient)}, {"query": Role(ParameterKind.KERNEL, (1,), (2, 3))}, {"query": gradient}
    )
    apart = update(
        dict.fromkeys(names, np.ones((8, 8), np.float32)),
        dict.fromkeys(names, Role(ParameterKind.KERNEL, (0,), (1,))),
        {name: gradient[layer].reshape(8, 8) for layer, name in enumerate(names)},
    )
    for layer, name in enumerate(names):
        np.testing.assert_allclose(stacked["query"][layer].reshape(8, 8), apart[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "role", "text"),
    [
        ("adamw", Role(ParameterKind.KERNEL, (0,), (1,)), "adamw, decays"),
        ("adamw", Role(ParameterKind.KERNEL), "adamw, decays"),
        ("adamw", Role(ParameterKind.EMBEDDING), "adamw, decays"),
        ("adamw", Role(ParameterKind.BIAS), "adamw"),
        ("adamw", Role(ParameterKind.SCALE), "adamw"),
        ("adamw", Role(ParameterKind.UNKNOWN), "adamw"),
        ("muon", Role(ParameterKind.KERNEL, (0,), (1,)), "muon, decays"),
        ("muon", Role(ParameterKind.KERNEL), "adamw"),
        ("muon", Role(ParameterKind.EMBEDDING), "adamw"),
        ("muon", Role(ParameterKind.UNKNOWN), "adamw"),
    ],
)
def test_the_text_about_a_role_is_what_its_parameter_sees(kind: str, role: Role, text: str) -> None:
    config = OptimizerConfig(kind=kind, weight_decay=0.5, max_grad_norm=None)  # type: ignore[arg-type]
    assert config.update_text(role) == text
    parameters = {"one": np.ones((2, 2), np.float32)}
    optimizer = make_optimizer(config, optax.constant_schedule(0.1), {"one": role})
    still = {"one": np.zeros((2, 2), np.float32)}
    changes, _ = optimizer.update(still, optimizer.init(parameters), parameters)
    np.testing.assert_allclose(changes["one"], -0.05 if "decays" in text else 0.0, atol=1e-7)


def test_numbers_that_no_optimizer_can_use_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        OptimizerConfig(b1=1.0, b2=math.nan, eps=-1e-8, weight_decay=-1.0, max_grad_norm=0.0, momentum=2.0)
    named = [line.split(" = ")[0] for line in str(caught.value).splitlines()]
    assert named == [
        f"optimization.{name}" for name in ("b1", "b2", "momentum", "eps", "weight_decay", "max_grad_norm")
    ]
    OptimizerConfig(b1=0.0, eps=0.0, max_grad_norm=None)
