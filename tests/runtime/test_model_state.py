"""What a loss changes of a model beside its weights: carried as plain Flax carries it, or refused by name."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from stateful_training import Model, Rematerialized, Seen, Stateful
from tiny_training import LENGTH, Tiny, made

from dispatcher.errors import ModelStateError
from dispatcher.runtime.configuration import configuration
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.language.tokens import Tokens, negative_log_likelihood
from dispatcher.runtime.model_state import Watch
from dispatcher.runtime.training.data import read_batch
from dispatcher.runtime.training.order import rows_at

pytestmark = pytest.mark.demo

STEPS = 12
CONSTANT = {"optimization.schedule": "constant", "optimization.warmup": 0.0, "eval_every": 6, "steps": STEPS}


def by_hand(job: Any, parts: int) -> tuple[Model, float]:
    """The same training as one writes it with Flax alone: the model, and the evaluation loss."""
    # In one program: operation by operation a hundred would be compiled.
    model = nnx.jit(lambda: Model(job.model_config, rngs=nnx.Rngs(job.training.seed)))()
    optimizer = nnx.Optimizer(model, job.optimizer(), wrt=nnx.Param)

    def loss(model: Model, batch: Any) -> Any:
        nats, counts = negative_log_likelihood(model(batch.inputs), batch.targets)
        return nats.sum(), counts.sum()

    @nnx.jit
    def step(model: Model, optimizer: Any, batches: Any) -> None:
        nats, gradient, count = 0.0, None, 0
        for batch in batches:
            (more, predictions), part = nnx.value_and_grad(loss, has_aux=True)(model, batch)
            nats, count = nats + more, count + predictions
            gradient = part if gradient is None else jax.tree.map(jnp.add, gradient, part)
        optimizer.update(model, jax.tree.map(lambda array: array / count, gradient))

    source, rows = job.data(), job.training.batch_size
    for number in range(job.training.steps):
        batch = read_batch(source, rows_at(number * rows + np.arange(rows), len(source), job.training.seed))
        columns = [np.split(array, parts) for array in batch]
        split = [Tokens(*each) for each in zip(*columns, strict=True)]
        step(model, optimizer, split)
    evaluated = nnx.view(model, deterministic=True, use_running_average=True)
    held_out = job.evaluations()["held_out"]
    nats, count = nnx.jit(loss)(evaluated, read_batch(held_out, np.arange(len(held_out))))
    return model, float(nats) / int(count)


def as_numpy(value: Any) -> Any:
    return np.asarray(jax.random.key_data(value) if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else value)


def state_of(job: Any) -> dict[str, Any]:
    return {name: as_numpy(array) for name, array in (job.live_state.params | job.live_state.variables).items()}


@pytest.mark.parametrize(
    ("cls", "per_device"),
    [
        pytest.param(Stateful, None, id="whole batches"),
        pytest.param(Rematerialized, 4, id="rematerialized, microbatches"),
        pytest.param(Stateful, 4, id="microbatches", marks=pytest.mark.long),
        pytest.param(Rematerialized, None, id="rematerialized, whole batches", marks=pytest.mark.long),
    ],
)
def test_a_training_is_what_plain_flax_makes_of_it(tmp_path: Path, cls: Any, per_device: int | None) -> None:
    job = made(tmp_path, cls=cls, per_device_batch_size=per_device, **CONSTANT)
    job()
    model, held_out = by_hand(job, job.setup.microbatching.accumulation_steps)
    found = state_of(job)
    expected = {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(nnx.state(model))}
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        array = as_numpy(leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf)
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-5, err_msg=name)
    assert job.measured["held_out/loss"] == pytest.approx(held_out, rel=1e-4)
    # The state has moved, and an evaluation has not moved it.
    assert found["seen"] == STEPS * 8
    assert found["dropout/rngs/count"] == STEPS * job.setup.microbatching.accumulation_steps
    assert abs(found["norm/mean"]).max() > 0.01


def test_parameters_that_are_only_converted_are_not_taken_for_changed_ones(tmp_path: Path) -> None:
    """nnx.remat returns all variables, the parameters in the type that computes."""
    words = {**CONSTANT, "steps": 2, "eval_every": None, "precision": {"compute": "bfloat16"}}
    plain, rematerialized = (made(tmp_path, cls.__name__, cls, **words) for cls in (Stateful, Rematerialized))
    for job in (plain, rematerialized):
        job()
    expected, found = state_of(plain), state_of(rematerialized)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0.05, atol=5e-3, err_msg=name)


def test_a_resumed_training_has_the_bits_of_one_that_was_not_disturbed(tmp_path: Path) -> None:
    whole = made(tmp_path, "whole", Stateful, **CONSTANT)
    whole()
    for steps in (5, STEPS):
        apart = made(tmp_path, "apart", Stateful, **{**CONSTANT, "steps": steps, "eval_every": None})
        apart()
    expected, found = state_of(whole), state_of(apart)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert array.tobytes() == found[name].tobytes(), name


class Use(InferenceJob[Any, Model]):
    MODEL = Model

    @classmethod
    def config(cls) -> type[Any]:
        return Tiny.CONFIG

    def run(self) -> None:
        return None


def test_inference_uses_what_the_training_has_counted(tmp_path: Path) -> None:
    job = made(tmp_path, cls=Stateful, **CONSTANT)
    job()
    restored = Use.from_checkpoint_path(job.path_of(f"step-{STEPS:08d}"), local(tmp_path, "use"))
    with configuration(job.configuration_in_force):
        live = Use.from_trainer(job)
    batch = read_batch(job.evaluations()["held_out"], np.arange(8))
    for use in (restored, live):
        assert use.model.norm.use_running_average
        nats, count = negative_log_likelihood(use.model(batch.inputs), batch.targets)
        again, _ = negative_log_likelihood(use.model(batch.inputs), batch.targets)
        # Nothing is drawn.
        assert (nats == again).all()
    (mean,) = job.setup.compiled.evaluate(job.live_state.model, batch, np.ones(8, bool)).values()
    assert float(nats.sum()) == pytest.approx(float(mean.total), rel=1e-5)
    assert int(count.sum()) == int(mean.weight) == 8 * LENGTH


class Counts(Model):
    def __init__(self, config: Any, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.calls = 0

    def __call__(self, tokens: Any, **words: Any) -> Any:
        self.calls += 1
        return super().__call__(tokens, **words)


class Averages(Model):
    def __call__(self, tokens: Any, **words: Any) -> Any:
        self.scale = self.scale * 0.9
        return super().__call__(tokens, **words)


class Plain(Model):
    def __init__(self, config: Any, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.hidden.average = jnp.zeros(3)


class Nested(Model):
    def __init__(self, config: Any, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.hidden.history = nnx.static([])

    def __call__(self, tokens: Any, **words: Any) -> Any:
        self.hidden.history.append(1)
        return super().__call__(tokens, **words)


class Grows(Model):
    def __call__(self, tokens: Any, **words: Any) -> Any:
        self.last = Seen(jnp.zeros(3))
        return super().__call__(tokens, **words)


class Widens(Model):
    def __call__(self, tokens: Any, **words: Any) -> Any:
        logits = super().__call__(tokens, **words)
        self.seen.set_value(jnp.zeros(2))
        return logits


class Number(Model):
    def __init__(self, config: Any, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.temperature = nnx.Param(1.0)


class Slashes(Model):
    def __init__(self, config: Any, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        one, other = Seen(jnp.zeros(3)), Seen(jnp.zeros(3))
        self.parts = nnx.Dict({"a/b": one, "a": nnx.Dict({"b": other})})


class Decays(Model):
    def __call__(self, tokens: Any, **words: Any) -> Any:
        self.output.kernel.set_value(self.output.kernel.get_value() * 0.99)
        return super().__call__(tokens, **words)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Counts, r"calls: an attribute that a step changes \(0 to 1\): hold it in an nnx.Variable"),
        (Averages, r"scale: an array in no nnx.Variable that a step changes: hold it in an nnx.Variable"),
        (Plain, r"hidden/average: an array in no nnx.Variable: hold it in one, or in nnx.data"),
        (Nested, r"hidden/history/1: an attribute that a step adds: hold it in an nnx.Variable"),
        (Grows, r"last: a variable that a step adds"),
        (Widens, r"seen: int32\[\] before a step and float32\[2\] after it: keep shape and type"),
        (Number, r"temperature: Param of float: hold an array in it"),
        (Slashes, r"parts/a/b: the name of several variables"),
        (Decays, r"output/kernel: is trainable, so only the optimizer may change it"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(tmp_path: Path, model: Any, message: str) -> None:
    class Wrong(Stateful):
        MODEL = model

    with pytest.raises(ModelStateError, match=message):
        made(tmp_path, cls=Wrong, **CONSTANT)()


class Boxes(nnx.Module):
    def __init__(self) -> None:
        self.box = nnx.data({"layers": [nnx.Linear(2, 2, rngs=nnx.Rngs(0))], "calls": 1})


def test_what_a_step_changes_in_a_container_is_refused_by_name() -> None:
    def faults(change: Any) -> str:
        model = Boxes()
        watch = Watch(model)
        change(model.box)
        with pytest.raises(ModelStateError) as caught:
            watch.changes()
        return str(caught.value)

    assert Watch(Boxes()).changes() == {}
    assert "box/calls: an attribute that a step changes (1 to 2)" in faults(lambda box: box.update(calls=2))
    assert "box/more: an attribute that a step adds" in faults(lambda box: box.update(more=2))
    assert "box/layers/1/kernel: a variable that a step adds" in faults(
        lambda box: box["layers"].append(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    )
    assert "box/layers/0/bias: a variable that a step removes" in faults(lambda box: box["layers"].pop())


def test_a_loss_may_put_layers_into_a_mode_of_its_own_and_pop_what_they_have_sown(tmp_path: Path) -> None:
    class Sows(Model):
        def __init__(self, config: Any, *, rngs: nnx.Rngs) -> None:
            super().__init__(config, rngs=rngs)
            # As of a pass when it was made.
            self.first = nnx.Intermediate(jnp.ones(()))

        def __call__(self, tokens: Any, **words: Any) -> Any:
            self.norm.eval()
            self.size = nnx.Intermediate(jnp.ones(()))
            return super().__call__(tokens, **words)

    class Trains(Stateful):
        MODEL = Sows

    job = made(tmp_path, cls=Trains, **{**CONSTANT, "steps": 2})
    job()
    assert (state_of(job)["norm/mean"] == 0).all()
    assert state_of(job)["seen"] == 16


@functools.cache
def target_network() -> type[nnx.Module]:
    class Online(nnx.Param[Any]):
        pass

    class Both(Model):
        ONLINE = Online

        def __init__(self, config: Any, *, rngs: nnx.Rngs) -> None:
            super().__init__(config, rngs=rngs)
            self.online = Online(jnp.zeros(config.vocab_size))

        def __call__(self, tokens: Any, **words: Any) -> Any:
            target = self.output.bias
            target.set_value(jax.lax.stop_gradient(0.5 * target.get_value() + 0.5 * self.online.get_value()))
            return super().__call__(tokens, **words) + self.online.get_value()

    return Both


def test_weights_that_are_not_trained_may_follow_those_that_are(tmp_path: Path) -> None:
    model: Any = target_network()

    class Follows(Stateful):
        MODEL = model
        TRAINABLE = model.ONLINE

        def optimizer(self) -> optax.GradientTransformation:
            return optax.sgd(1.0)

    job = made(tmp_path, cls=Follows, per_device_batch_size=None, **{**CONSTANT, "steps": 2})
    job.begin()
    before = state_of(job)
    job()
    after = state_of(job)
    # After two steps it is half of what the trained ones were after one of them.
    assert abs(after["output/bias"]).max() > 0
    assert {name for name in before if before[name].tobytes() != after[name].tobytes()} == {
        "online", "output/bias", "norm/mean", "norm/var", "dropout/rngs/count", "seen",
    }  # fmt: skip
