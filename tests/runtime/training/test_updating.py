"""Updates by Optax: complex parameters, optimizers that want the loss, and what a step must not return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from optax import contrib
from small_trainings import CLASSES, FEATURES, Classification, arrays, made, samples, trained

from dispatcher.errors import ConfigError
from dispatcher.runtime.training.data import read_batch
from dispatcher.runtime.training.order import rows_at
from dispatcher.runtime.training.trainer import Trainer

pytestmark = pytest.mark.demo

STEPS = 6


class Plain(Classification):
    """A linear model, and the optimizer that a test names."""

    BEST = None
    MADE_OPTIMIZER: Any = None

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def evaluations(self) -> Any:
        return {}

    def optimizer(self) -> Any:
        return type(self).MADE_OPTIMIZER()

    def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        return super().loss(model, batch, rngs)[0]


class Spectrum(nnx.Module):
    """A complex layer between real ones, and a complex number."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.enter = nnx.Linear(FEATURES, 6, rngs=rngs)
        self.mix = nnx.Linear(6, 6, dtype=jnp.complex64, param_dtype=jnp.complex64, rngs=rngs)
        self.turn = nnx.Param(jnp.asarray(0.5 + 0.5j, jnp.complex64))
        self.output = nnx.Linear(6, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        mixed = self.mix(jnp.fft.fft(self.enter(x))) * self.turn[...]
        return self.output(jnp.abs(mixed) + jnp.imag(mixed))


class Complex(Plain):
    def make_model(self, rngs: nnx.Rngs) -> Any:
        return Spectrum(rngs)


def with_optimizer(cls: Any, optimizer: Any, **more: Any) -> Any:
    return type(cls.__name__, (cls,), {"MADE_OPTIMIZER": staticmethod(optimizer), "__module__": __name__, **more})


def by_plain_optax(job: Any, *, conjugate: bool = False, **arguments: Any) -> tuple[Any, Any]:
    """The parameters and the losses that Optax alone comes to, from the state and the batches of `job`."""
    source, rows = job.data(), job.training.batch_size
    numbers = [rows_at(step * rows + np.arange(rows), len(source), job.training.seed) for step in range(STEPS)]
    batches = jax.tree.map(lambda *each: np.stack(each), *[read_batch(source, each) for each in numbers])
    layout, optimizer = job.setup.layout, optax.with_extra_args_support(job.optimizer())
    begun = job.fresh_state()

    def step(carry: Any, batch: Any) -> Any:
        def value_fn(params: Any) -> Any:
            return jnp.mean(job.loss(layout.model.merge(params, begun.variables), batch, nnx.Rngs(0)))

        params, state = carry
        value, gradient = jax.value_and_grad(value_fn)(params)
        known = {"value": value, "grad": gradient, "value_fn": value_fn, "obj_fn": value_fn}
        known["grad_fn"] = lambda params, number: jax.grad(value_fn)(params)
        updates = jax.tree.map(jnp.conj, gradient) if conjugate else gradient
        updates, state = optimizer.update(updates, state, params, **{name: known[name] for name in arguments})
        return (optax.apply_updates(params, updates), state), value

    (params, _), values = jax.jit(lambda carry: jax.lax.scan(step, carry, batches))(
        (begun.params, optimizer.init(begun.params))
    )
    return params, values


def assert_resumes(tmp_path: Path, cls: Any, whole: Any, **words: Any) -> None:
    """A training that was stopped in its middle has the bits of one that was not."""
    for steps in (STEPS // 2, STEPS):
        apart = trained(tmp_path, "apart", cls, steps=steps, **words)
    found, expected = arrays(apart), arrays(whole)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert array.tobytes() == expected[name].tobytes(), name


def labels(params: Any) -> Any:
    return {name: "complex" if jnp.iscomplexobj(array) else "real" for name, array in params.items()}


COMPLEX = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adamw": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(0.02, weight_decay=0.1)),
    "parts": lambda: optax.partition({"complex": optax.adam(0.02), "real": optax.sgd(0.1)}, labels),
    "finite": lambda: optax.apply_if_finite(optax.lion(0.01), 3),
    "split": lambda: contrib.split_real_and_imaginary(optax.MultiSteps(optax.adam(0.02), 2).gradient_transformation()),
}


@pytest.mark.parametrize(
    "kind, per_device", [("sgd", None), ("adamw", 4), ("parts", None), ("finite", 4), ("split", 4)]
)
def test_complex_parameters_descend_as_with_plain_optax(tmp_path: Path, kind: str, per_device: int | None) -> None:
    cls = with_optimizer(Complex, COMPLEX[kind])
    words = {"per_device_batch_size": per_device, "ema": 0.9}
    job = trained(tmp_path, "whole", cls, steps=STEPS, **words)
    assert job.live_state.params["mix/kernel"].dtype == jnp.complex64
    expected, losses = by_plain_optax(job, conjugate=True)
    assert job.measured["loss"] == pytest.approx(float(losses[-1]), rel=1e-4)
    for name, array in expected.items():
        np.testing.assert_allclose(job.live_state.params[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    assert_resumes(tmp_path, cls, job, **words)


def test_a_step_of_ones_own_has_gradients_of_complex_parameters_that_descend(tmp_path: Path) -> None:
    class Own(Complex):
        def step(self, state: Any, batch: Any) -> Any:
            updater = self.setup.updater
            found = updater.gradients(state, batch, self.loss)
            updates, opt_state = optax.sgd(0.1).update(found.gradients, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            return updater.finish(state, params=params, opt_state=opt_state, loss=found.loss), {"loss": found.loss}

    own = made(tmp_path, "own", with_optimizer(Own, lambda: optax.sgd(0.1)))
    whole = made(tmp_path, "whole", with_optimizer(Complex, lambda: optax.sgd(0.1)))
    assert [own.update(samples(8, seed=1)) for _ in range(2)][1]["loss"] == pytest.approx(
        [whole.update(samples(8, seed=1)) for _ in range(2)][1]["loss"]
    )


@pytest.mark.parametrize(
    "optimizer",
    [lambda: optax.MultiSteps(optax.adam(0.1), 2), lambda: optax.adam(0.1, mu_dtype=jnp.bfloat16)],
    ids=["MultiSteps", "mu_dtype"],
)
def test_an_optimizer_that_drops_imaginary_parts_is_refused(tmp_path: Path, optimizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"drops their imaginary parts \(arrays .*\[6, 6\].*split_real_and_imaginary"):
        made(tmp_path, cls=with_optimizer(Complex, optimizer)).update(samples(8, seed=1))


def test_an_optimizer_whose_state_becomes_complex_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"estim_lr: float32\[\] before and complex64\[\] after it: wrap the optimizer"
    ):
        made(tmp_path, cls=with_optimizer(Complex, contrib.prodigy)).update(samples(8, seed=1))


def test_complex_numbers_are_no_metrics(tmp_path: Path) -> None:
    class Phase(Complex):
        def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
            return super().loss(model, batch, rngs), {"turn": jnp.full(len(batch["x"]), model.turn[...])}

    with pytest.raises(TypeError, match=r"turn: complex64: expected real numbers"):
        made(tmp_path, cls=with_optimizer(Phase, lambda: optax.sgd(0.1))).update(samples(8, seed=1))


WANTING = {
    "plateau": (lambda: optax.chain(optax.adam(0.1), contrib.reduce_on_plateau(patience=1, rtol=0.5)), ["value"]),
    "polyak": (optax.polyak_sgd, ["value"]),
    "lbfgs": (optax.lbfgs, ["value", "grad", "value_fn"]),
    "backtracking": (
        lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(15, store_grad=True)),
        ["value", "grad", "value_fn"],
    ),
    "sam": (
        lambda: contrib.sam(
            optax.sgd(0.1), optax.chain(contrib.normalize(), optax.sgd(0.1)), reset_state=False, opaque_mode=True
        ),
        ["grad_fn"],
    ),
    "sophia": (lambda: contrib.sophia(0.1, update_interval=2), ["obj_fn"]),
}


@pytest.mark.parametrize("kind, per_device", [(kind, 4 if kind in ("lbfgs", "sam") else None) for kind in WANTING])
def test_optimizers_that_want_the_loss_do_as_with_plain_optax(
    tmp_path: Path, kind: str, per_device: int | None
) -> None:
    optimizer, arguments = WANTING[kind]
    cls = with_optimizer(Plain, optimizer)
    job = trained(tmp_path, "whole", cls, steps=STEPS, per_device_batch_size=per_device)
    expected, losses = by_plain_optax(job, **dict.fromkeys(arguments))
    assert job.measured["loss"] == pytest.approx(float(losses[-1]), rel=1e-3)
    for name, array in expected.items():
        np.testing.assert_allclose(job.live_state.params[name], array, rtol=1e-2, atol=1e-3, err_msg=name)
    assert_resumes(tmp_path, cls, job, per_device_batch_size=per_device)


def test_a_line_search_of_complex_parameters_finds_the_way_down(tmp_path: Path) -> None:
    job = made(tmp_path, cls=with_optimizer(Complex, optax.lbfgs))
    losses = [job.update(samples(8, seed=1))["loss"] for _ in range(8)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] / 2


def test_a_line_search_over_a_part_of_the_parameters(tmp_path: Path) -> None:
    def parts() -> Any:
        return optax.chain(
            optax.masked(optax.lbfgs(), {"kernel": True, "bias": False}, mask_compatible_extra_args=True),
            optax.masked(optax.set_to_zero(), {"kernel": False, "bias": True}),
        )

    job = made(tmp_path, cls=with_optimizer(Plain, parts))
    losses = [job.update(samples(8, seed=1))["loss"] for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] / 2


def test_an_optimizer_whose_inner_one_takes_less_gets_what_both_take(tmp_path: Path) -> None:
    """It passes on what it is given, so only the inner one refuses what it does not know."""

    def wrapped() -> Any:
        inner = optax.sgd(0.1)

        def refusing(updates: Any, state: Any, params: Any = None, *, value: Any) -> Any:
            assert value is not None
            return inner.update(updates, state, params)

        def update(updates: Any, state: Any, params: Any = None, **given: Any) -> Any:
            return refusing(updates, state, params, **given)

        return optax.GradientTransformationExtraArgs(inner.init, update)

    own = made(tmp_path, "own", with_optimizer(Plain, wrapped))
    whole = made(tmp_path, "whole", with_optimizer(Plain, lambda: optax.sgd(0.1)))
    assert [own.update(samples(8, seed=1))["loss"] for _ in range(3)] == pytest.approx(
        [whole.update(samples(8, seed=1))["loss"] for _ in range(3)]
    )


def test_an_optimizer_that_wants_what_the_trainer_does_not_have_is_told(tmp_path: Path) -> None:
    def wanting() -> Any:
        def update(updates: Any, state: Any, params: Any = None, *, accuracy: Any, **_: Any) -> Any:
            return updates, state

        return optax.GradientTransformationExtraArgs(lambda params: (), update)

    with pytest.raises(ConfigError, match=r"'accuracy': the trainer has value, grad, value_fn, obj_fn, grad_fn for it"):
        made(tmp_path, cls=with_optimizer(Plain, wanting)).update(samples(8, seed=1))


def test_a_variable_that_is_nan_is_named_before_the_first_step(tmp_path: Path) -> None:
    class Unseen(Plain):
        def make_model(self, rngs: nnx.Rngs) -> Any:
            model = super().make_model(rngs)
            model.seen = nnx.BatchStat(jnp.full(3, jnp.nan))
            return model

    job = made(tmp_path, cls=with_optimizer(Unseen, lambda: optax.sgd(0.1)))
    with pytest.raises(
        FloatingPointError, match=r"not finite before the first step: seen\. Such a state is never saved"
    ):
        job()
    assert job.steps_done == 0


def test_a_variable_that_the_first_step_makes_nan_is_named_then(tmp_path: Path) -> None:
    class Unseen(Plain):
        def make_model(self, rngs: nnx.Rngs) -> Any:
            model = super().make_model(rngs)
            model.mean = nnx.BatchStat(jnp.zeros(2))
            return model

        def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
            seen = jnp.asarray([len(batch["x"]), 0])
            model.mean.set_value(jnp.asarray([1.0, 0.0]) / seen)
            return super().loss(model, batch, rngs)

    job = made(tmp_path, cls=with_optimizer(Unseen, lambda: optax.sgd(0.1)), steps=100)
    with pytest.raises(FloatingPointError, match=r"not finite after step 1: mean\."):
        job()
    assert job.steps_done == 1


def updated_by(returned: Any) -> Any:
    """A training whose step returns that of the state after a default step and its metrics."""

    class Own(Plain):
        def step(self, state: Any, batch: Any) -> Any:
            return returned(*Trainer.step(self, state, batch))

    return with_optimizer(Own, lambda: optax.adam(0.1))


@pytest.mark.parametrize(
    "returned, told",
    [
        (lambda state, metrics: state, r"step\(\) returned State: expected \(state, metrics by name\)"),
        (lambda state, metrics: (state, [1.0]), r"step\(\) returned tuple: expected"),
        (lambda state, metrics: (state.tree, metrics), r"step\(\) returned dict: expected \(state, metrics\)"),
        (lambda state, metrics: (state.replace(opt_state=()), metrics), r"opt_state/0/count: removed"),
        (
            lambda state, metrics: (state.replace(variables={"mean": jnp.zeros(2)}), metrics),
            r"variables/mean: added, float32\[2\]",
        ),
        (
            lambda state, metrics: (
                state.replace(params=jax.tree.map(lambda array: array.astype(jnp.bfloat16), state.params)),
                metrics,
            ),
            r"params/kernel: float32\[8, 4\] before and bfloat16\[8, 4\] after it",
        ),
    ],
)
def test_a_step_that_returns_something_else_is_told(tmp_path: Path, returned: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        made(tmp_path, cls=updated_by(returned)).update(samples(8, seed=1))


def test_a_step_that_finishes_without_some_parameters_is_told(tmp_path: Path) -> None:
    class Forgets(Plain):
        def step(self, state: Any, batch: Any) -> Any:
            params = {"kernel": state.params["kernel"]}
            return self.setup.updater.finish(state, params=params, opt_state=state.opt_state), {}

    with pytest.raises(ConfigError, match=r"finish\(params=\.\.\.\): expected all of state\.params .*: bias"):
        made(tmp_path, cls=with_optimizer(Forgets, lambda: optax.sgd(0.1))).update(samples(8, seed=1))


def test_what_a_step_of_ones_own_breaks_is_called_a_parameter(tmp_path: Path) -> None:
    class Breaks(Plain):
        def step(self, state: Any, batch: Any) -> Any:
            params = {**state.params, "bias": state.params["bias"] * jnp.nan}
            return self.setup.updater.finish(state, params=params, opt_state=state.opt_state), {}

    with pytest.raises(FloatingPointError, match=r"a gradient or a parameter is not .* Not finite in step\(\): bias\."):
        made(tmp_path, cls=with_optimizer(Breaks, lambda: optax.sgd(0.1))).update(samples(8, seed=1))
