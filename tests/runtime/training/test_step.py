"""Steps of a training: what plain Flax makes of them, microbatches, blocks, own steps, averages, what is not finite."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from pages import class_of_page
from small_trainings import CLASSES, FEATURES, Classification, Classifier, Weighted, arrays, made, samples, trained
from tiny_runs import environment
from written_metrics import read_metrics

from dispatcher.errors import ConfigError
from dispatcher.runtime.training.data import Arrays, read_batch
from dispatcher.runtime.training.order import rows_at
from dispatcher.runtime.training.trainer import Trainer
from dispatcher.runtime.training.values import Mean

pytestmark = pytest.mark.demo

PAGE = Path(__file__).parents[3] / "docs" / "trainer.md"


def batches(job: Any) -> list[Any]:
    """Those of a training, as its page says which they are."""
    source, rows = job.data(), job.training.batch_size
    return [
        read_batch(source, rows_at(number * rows + np.arange(rows), len(source), job.training.seed))
        for number in range(job.training.steps)
    ]


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    assert len(one) > 10
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


def lines(job: Any) -> list[dict[str, Any]]:
    return read_metrics(job.spec.result_path("metrics.jsonl"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Ten steps, one per call."""
    return trained(tmp_path_factory.mktemp("whole"), steps=10, eval_every=4)


def test_a_training_with_batch_norm_and_dropout_is_what_plain_flax_makes_of_it(whole: Any) -> None:
    # In one program: operation by operation a hundred would be compiled.
    model = nnx.jit(lambda: Classifier(nnx.Rngs(0)))()
    optimizer = nnx.Optimizer(model, whole.optimizer(), wrt=nnx.Param)

    def loss(model: Any, batch: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["label"]).mean()

    @nnx.jit
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        value, gradients = nnx.value_and_grad(loss)(model, batch)
        optimizer.update(model, gradients)
        return value

    losses = [float(step(model, optimizer, batch)) for batch in batches(whole)]
    assert [line["loss"] for line in lines(whole)] == pytest.approx(losses, rel=1e-5)
    expected = {"/".join(map(str, path)): leaf.get_value() for path, leaf in nnx.to_flat_state(nnx.state(model))}
    assert whole.live_state.model.keys() == expected.keys()
    for name in ("hidden/kernel", "norm/mean", "norm/var", "output/bias", "dropout/rngs/count"):
        np.testing.assert_allclose(whole.live_state.model[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    seen = nnx.view(model, deterministic=True, use_running_average=True)
    held_out = samples(37, seed=2)
    # 37 rows in batches of 8: the padding of the last counts nowhere.
    assert whole.measured["held_out/loss"] == pytest.approx(float(nnx.jit(loss)(seen, held_out)), rel=1e-5)
    logits = np.asarray(nnx.jit(lambda model, x: model(x))(seen, held_out["x"]))
    accuracy = (logits.argmax(-1) == held_out["label"]).mean()
    assert whole.measured["held_out/accuracy"] == pytest.approx(accuracy)
    assert whole.best[1] == max(line["held_out/accuracy"] for line in lines(whole) if "held_out/accuracy" in line)


def test_steps_by_hand_have_the_bits_of_a_run(tmp_path: Path, whole: Any) -> None:
    job = made(tmp_path, steps=10)
    losses = [job.update(batch)["loss"] for batch in batches(job)]
    assert losses == [line["loss"] for line in lines(whole)]
    assert_same_bits(arrays(job), arrays(whole))
    with pytest.raises(ConfigError, match="have 7, 8 rows: expected one number, a multiple of 1,"):
        job.update({"x": np.zeros((8, FEATURES), np.float32), "label": np.zeros(7, np.int32)})


@pytest.fixture(scope="module")
def in_blocks(tmp_path_factory: pytest.TempPathFactory, jax_cache: Path) -> Any:
    """What trainings in single steps and in blocks came to, compiled as users have it: they are different programs."""
    command = [sys.executable, Path(__file__).with_name("blocks_of_steps.py"), tmp_path_factory.mktemp("blocks")]
    own = environment(jax_cache, XLA_FLAGS="")
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_blocks_of_steps_have_the_bits_of_single_ones(in_blocks: Any) -> None:
    whole, blocks = in_blocks["whole"], in_blocks["blocks"]
    assert blocks["digests"] == whole["digests"] and len(whole["digests"]) > 10
    assert blocks["told"] == whole["logged"] == whole["told"]
    assert blocks["logged"] == [whole["logged"][step - 1] for step in (4, 8, 10)]
    assert blocks["held out"] == whole["held out"]


def test_a_training_goes_on_in_the_middle_of_what_was_a_block(in_blocks: Any) -> None:
    whole, apart = in_blocks["whole"], in_blocks["apart"]
    assert apart["digests"] == whole["digests"]
    assert apart["told"] == whole["logged"][6:]


def test_blocks_that_other_settings_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.log_every = 10: expected a multiple of .*steps_per_call = 4"):
        made(tmp_path, steps_per_call=4, log_every=10)


def test_microbatches_of_other_weights_add_up_to_the_batch(tmp_path: Path) -> None:
    one = trained(tmp_path, "one", Weighted, steps=3)
    parts = trained(tmp_path, "parts", Weighted, steps=3, per_device_batch_size=2)
    assert parts.setup.microbatching.accumulation_steps == 4
    assert [line["loss"] for line in lines(parts)] == pytest.approx([line["loss"] for line in lines(one)], rel=1e-5)
    for name, array in one.live_state.params.items():
        np.testing.assert_allclose(array, parts.live_state.params[name], rtol=1e-4, atol=1e-6)


def test_each_step_and_each_microbatch_has_random_keys_of_its_own(tmp_path: Path) -> None:
    class Noisy(Weighted):
        def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
            noise = jnp.full(len(batch["x"]), jax.random.uniform(rngs.noise()))
            return super().loss(model, batch, rngs)[0], {"noise": noise, "square": noise**2}

    job = made(tmp_path, cls=Noisy, per_device_batch_size=2)
    first, second = (job.update(samples(8, seed=0)) for _ in range(2))
    assert abs(first["noise"] - second["noise"]) > 1e-4
    # Their variance over the four microbatches.
    assert first["square"] - first["noise"] ** 2 > 1e-4


class Clipped(Weighted):
    """The optimizer of the configuration."""

    optimizer = Trainer.optimizer


@pytest.mark.parametrize("per_device", [None, 2])
def test_gradients_of_the_whole_batch_are_clipped_as_optax_clips_them(tmp_path: Path, per_device: int | None) -> None:
    words = {"lr": 1.0, "schedule": "constant", "warmup": 0.0, "max_grad_norm": 0.5, "weight_decay": 0.0}
    job = trained(tmp_path, cls=Clipped, steps=4, optimization=words, per_device_batch_size=per_device)

    def loss(params: Any, batch: Any) -> Any:
        logits = batch["x"] @ params["kernel"] + params["bias"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        weights = jnp.where(batch["label"] == 0, 0.0, 10.0 ** batch["label"])
        return jnp.sum(losses * weights) / jnp.sum(weights)

    begun = made(tmp_path, "begun", Clipped, optimization=words)
    begun.begin()
    params = {name: np.asarray(array) for name, array in begun.live_state.params.items()}
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1.0, b2=0.95, weight_decay=0.0))
    state, norms = jax.jit(optimizer.init)(params), []

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        gradients = jax.grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, optax.tree.norm(gradients)

    for batch in batches(job):
        params, state, norm = step(params, state, batch)
        norms.append(float(norm))
    # Some are clipped and some are not, else Adam would not notice.
    assert min(norms) < 0.5 < max(norms) / 2
    assert [line["grad_norm"] for line in lines(job)] == pytest.approx(norms, rel=1e-4)
    for name, array in params.items():
        np.testing.assert_allclose(job.live_state.params[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


class Scalar(Classification):
    """Returns means, which are means of the batch only where no row is padded."""

    BEST = ("held_out/loss", "min")
    HELD_OUT = 37

    def evaluations(self) -> Any:
        return {"held_out": Arrays(samples(self.HELD_OUT, seed=2))}

    def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        return super().loss(model, batch, rngs)[0].mean()


class ScalarInFull(Scalar):
    HELD_OUT = 24


def test_a_single_number_is_refused_where_rows_are_padded_before_the_first_step(tmp_path: Path, whole: Any) -> None:
    job = made(tmp_path, cls=Scalar)
    with pytest.raises(TypeError, match="loss: a single number for a batch in which rows are padded"):
        job()
    assert job.steps_done == 0
    full = trained(tmp_path, "full", ScalarInFull, steps=2)
    assert [line["loss"] for line in lines(full)] == pytest.approx([line["loss"] for line in lines(whole)][:2])


def test_what_is_trained_is_any_filter(tmp_path: Path) -> None:
    class Head(Classification):
        TRAINABLE = nnx.All(nnx.Param, nnx.PathContains("output"))

        def evaluations(self) -> Any:
            return {}

    job = made(tmp_path, cls=Head, steps=2)
    job.begin()
    before = {name: np.asarray(array) for name, array in job.live_state.model.items() if "key" not in name}
    assert set(job.live_state.params) == {"output/kernel", "output/bias"}
    first = [line.split()[0] for line in job.setup.table().splitlines()[2:]]
    assert first[:3] == ["output/bias", "output/kernel", "not"]
    assert {"norm/mean", "hidden/kernel"} < set(first[3:-1])
    assert first[-1] == "optimizer"
    assert {*first} - {"not", "optimizer"} == {
        line.split()[0] for line in job.setup.table(trains=False).splitlines()[2:]
    }
    job()
    changed = {name for name, array in before.items() if np.any(array != np.asarray(job.live_state.model[name]))}
    assert changed == {"output/kernel", "output/bias", "norm/mean", "norm/var", "dropout/rngs/count"}

    class Everything(Classification):
        TRAINABLE = ...

    class Nothing(Classification):
        TRAINABLE = nnx.LoRAParam

    with pytest.raises(ConfigError, match=r"dropout/rngs/count \(uint32\).*: only floating-point numbers have"):
        made(tmp_path, cls=Everything).begin()
    with pytest.raises(ConfigError, match="the model has no such variables: it has BatchStat, Param, Rng"):
        made(tmp_path, cls=Nothing).begin()


def test_averages_are_saved_and_evaluations_use_them(tmp_path: Path) -> None:
    job = trained(tmp_path, "averaged", steps=6, ema=0.5, eval_every=3)
    by_hand = made(tmp_path, "by-hand", steps=6)
    by_hand.begin()
    expected = {name: np.asarray(array) for name, array in by_hand.live_state.params.items()}
    for number, batch in enumerate(batches(by_hand)):
        by_hand.update(batch)
        decay = min(0.5, (1 + number) / (10 + number))
        expected = {
            name: array * decay + np.asarray(by_hand.live_state.params[name]) * (1 - decay)
            for name, array in expected.items()
        }
    for name, array in expected.items():
        np.testing.assert_allclose(job.live_state.ema[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
    with_averages = job.evaluator({**job.live_state.model, **job.live_state.ema})
    assert job.measured["held_out/loss"] == with_averages["held_out/loss"]
    assert job.measured["held_out/loss"] != job.evaluator(job.live_state.model)["held_out/loss"]
    # A training that goes on has them too.
    trained(tmp_path, "apart", steps=3, ema=0.5, eval_every=3)
    assert_same_bits(arrays(trained(tmp_path, "apart", steps=6, ema=0.5, eval_every=3)), arrays(job))


class Frozen(nnx.Module):
    """A normalization that is trained with its rows' statistics, behind one that uses what it has."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before = nnx.BatchNorm(FEATURES, use_running_average=True, rngs=rngs)
        self.before.mean.set_value(jnp.full(FEATURES, 0.25))
        self.hidden = nnx.Linear(FEATURES, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.99, rngs=rngs)
        self.output = nnx.Linear(16, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.output(nnx.relu(self.norm(self.hidden(self.before(x)))))


class Normalized(Classification):
    def make_model(self, rngs: nnx.Rngs) -> Any:
        return Frozen(rngs)


@pytest.mark.parametrize("per_device", [None, 4])
def test_averaged_parameters_have_statistics_of_their_own(tmp_path: Path, per_device: int | None) -> None:
    words = {"ema": 0.9, "eval_every": 3, "per_device_batch_size": per_device}
    job = trained(tmp_path, "whole", Normalized, steps=6, **words)
    found = {name: np.asarray(array) for name, array in job.model_to_evaluate().items()}
    before = (job.data()[np.arange(64)]["x"] - 0.25) / np.sqrt(1 + 1e-5) * found["before/scale"] + found["before/bias"]
    hidden = before @ found["hidden/kernel"] + found["hidden/bias"]
    np.testing.assert_allclose(found["norm/mean"], hidden.mean(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["norm/var"], hidden.var(0), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found["before/mean"], 0.25)
    assert np.abs(np.asarray(job.live_state.variables["norm/mean"]) - found["norm/mean"]).max() > 0.01
    assert job.measured["held_out/loss"] == job.evaluator(job.live_state.model | job.live_state.ema)["held_out/loss"]
    # What evaluations use is in the checkpoint of their step.
    again = made(tmp_path, "again", Normalized, steps=6, **words)
    again.restore_from_path(job.path_of("step-00000006"))
    assert_same_bits(arrays(again), arrays(job))
    for steps in (3, 6):
        apart = trained(tmp_path, "apart", Normalized, steps=steps, **words)
    assert_same_bits(arrays(apart), arrays(job))


def test_computing_in_bfloat16_keeps_float32_parameters(tmp_path: Path, whole: Any) -> None:
    seen: set[Any] = set()

    class Looks(Classification):
        def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
            found = super().loss(model, batch, rngs)
            seen.update((model.hidden.kernel.dtype, batch["x"].dtype, model.norm.mean.dtype, found[0].dtype))
            return found

    job = trained(tmp_path, cls=Looks, steps=10, precision={"compute": "bfloat16"}, per_device_batch_size=4)
    # The running mean is no parameter.
    assert seen == {jnp.dtype("bfloat16"), jnp.dtype("float32")}
    state = job.live_state
    assert {leaf.dtype for leaf in jax.tree.leaves((state.params, state.opt_state)) if leaf.ndim} == {
        jnp.dtype("float32")
    }
    first, other = (lines(each)[-1]["loss"] for each in (whole, job))
    assert first != other
    assert other == pytest.approx(first, rel=0.2)


def test_parameters_have_the_types_that_the_model_gives_them_and_sums_more(tmp_path: Path) -> None:
    class Half(Classification):
        def evaluations(self) -> Any:
            return {}

        def make_model(self, rngs: nnx.Rngs) -> Any:
            return nnx.Linear(FEATURES, CLASSES, param_dtype=jnp.bfloat16, rngs=rngs)

    job = trained(tmp_path, cls=Half, steps=2, ema=0.9, per_device_batch_size=4)
    assert {array.dtype for array in job.live_state.params.values()} == {jnp.dtype("bfloat16")}
    assert {array.dtype for array in job.live_state.ema.values()} == {jnp.dtype("float32")}
    assert {array.dtype for array in job.model_to_evaluate().values()} == {jnp.dtype("bfloat16")}


class Breaks(Classification):
    """The loss of one step is infinite, and its gradients are finite: nothing tells but the loss of that step."""

    BEST = None

    AT = 2

    def evaluations(self) -> Any:
        return {}

    def make_model(self, rngs: nnx.Rngs) -> Any:
        model = Classifier(rngs)
        model.steps = nnx.BatchStat(jnp.zeros((), jnp.int32))
        return model

    def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        losses, metrics = super().loss(model, batch, rngs)
        now = model.steps.get_value()
        if not model.dropout.deterministic:
            model.steps.set_value(now + 1)
        return losses + jax.lax.stop_gradient(jnp.where(now == self.AT - 1, jnp.inf, 0.0)), metrics


def test_a_step_that_is_not_finite_stops_the_training_wherever_it_is_in_a_block(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match="the loss is inf at step 2 of 8"):
        trained(tmp_path, cls=Breaks, steps=8, steps_per_call=4, log_every=4)


def test_a_step_by_hand_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    job = made(tmp_path, cls=Breaks)
    job.update(samples(8, seed=3))
    with pytest.raises(FloatingPointError, match=r"the loss is inf at step 2 of 6: .*No checkpoint was saved yet"):
        job.update(samples(8, seed=4))


def test_a_step_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    class Skips(Breaks):
        optimizer = Trainer.optimizer

        def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
            losses, metrics = Classification.loss(self, model, batch, rngs)
            return losses * jnp.where(batch["label"][0] == 3, jnp.nan, 1.0), metrics

    rising = {"schedule": "constant", "lr": 0.4, "warmup": 0.5}
    job = made(tmp_path, cls=Skips, not_finite="skip", steps=8, optimization=rising)
    job.begin()
    good, bad = samples(8, seed=3), samples(8, seed=4)
    good["label"][0], bad["label"][0] = 0, 3
    first = job.update(good)
    before = arrays(job)
    second = job.update(bad)
    after = arrays(job)
    assert (first["skipped"], second["skipped"]) == (0, 1)
    assert {name for name in before if before[name].tobytes() != after[name].tobytes()} == {".step", ".faults"}
    third = job.update(good)
    assert third["skipped"] == 0
    # The optimizer's schedule does not count the step that was left out.
    assert [first["lr"], second["lr"], third["lr"]] == pytest.approx([0, 0.1, 0.1])
    assert all(np.isfinite(array).all() for array in arrays(job).values() if array.dtype.kind == "f")


def test_steps_that_are_left_out_are_counted_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Counted(Breaks):
        def make_model(self, rngs: nnx.Rngs) -> Any:
            return nnx.Linear(FEATURES, CLASSES, rngs=rngs)

        def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
            # Blocks of 2 steps: the first row of a batch tells whether its step counts.
            return jnp.where(batch["label"][0] < 2, jnp.nan, 1.0) * Classification.loss(self, model, batch, rngs)[0]

    with caplog.at_level("WARNING", logger="dispatcher"):
        job = trained(tmp_path, cls=Counted, not_finite="skip", steps=8, steps_per_call=2, log_every=4)
    labels = [batch["label"][0] for batch in batches(job)]
    expected = [sum(label < 2 for label in part) for part in (labels[:4], labels[4:])]
    assert 0 < sum(expected) < 8
    assert [line["skipped"] for line in lines(job)] == expected
    said = [record.getMessage() for record in caplog.records if "not finite" in record.getMessage()]
    assert len(said) == sum(count > 0 for count in expected)
    assert f"in {max(expected)} steps, which changed nothing" in "\n".join(said)


class Pair(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.generator = nnx.Linear(2, FEATURES, rngs=rngs)
        self.critic = nnx.Linear(FEATURES, 1, rngs=rngs)


class Adversarial(class_of_page(PAGE, "Gan", Trainer=Classification, job=lambda _: lambda cls: cls, optax=optax)):  # type: ignore[misc]
    """The page's step of its own: two optimizers, two losses, and no loss of the whole."""

    BEST = None

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return Pair(rngs)

    def evaluations(self) -> Any:
        return {}

    def scores(self, model: Any, batch: Any, rngs: nnx.Rngs) -> tuple[Any, Any]:
        made = model.generator(jax.random.normal(rngs(), (len(batch["x"]), 2)))
        return model.critic(made)[:, 0], model.critic(batch["x"])[:, 0]

    def generator_loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        return jnp.square(self.scores(model, batch, rngs)[0] - 1)

    def critic_loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        fake, real = self.scores(model, batch, rngs)
        return jnp.square(fake) + jnp.square(real - 1)


def test_the_step_with_two_optimizers_of_the_page_resumes_exactly(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole", Adversarial, steps=6, per_device_batch_size=4)
    assert lines(whole)[0].keys() >= {"critic_loss", "generator_loss"}
    assert whole.live_state.step == 6
    # Each optimizer has changed its own half.
    begun = made(tmp_path, "begun", Adversarial, per_device_batch_size=4)
    begun.begin()
    assert all(
        np.any(np.asarray(array) != np.asarray(whole.live_state.params[name]))
        for name, array in begun.live_state.params.items()
    )
    for steps in (2, 6):
        words = {"steps": steps, "steps_per_call": 2, "log_every": 2, "per_device_batch_size": 4}
        apart = trained(tmp_path, "apart", Adversarial, **words)
    assert_same_bits(arrays(apart), arrays(whole))


def test_the_step_of_the_page_leaves_out_what_is_not_finite_whole(tmp_path: Path) -> None:
    class Counted(Adversarial):
        def make_model(self, rngs: nnx.Rngs) -> Any:
            model = Pair(rngs)
            model.critic_passes = nnx.BatchStat(jnp.zeros(()))
            return model

        def critic_loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
            model.critic_passes.set_value(model.critic_passes.get_value() + 1)
            return super().critic_loss(model, batch, rngs)

        def step(self, state: Any, batch: Any) -> Any:
            new, metrics = super().step(state, batch)
            found = self.setup.updater.finish(
                state,
                params=new.params,
                opt_state=new.opt_state,
                variables=new.variables,
                loss=metrics["critic_loss"],
            )
            return found, metrics

    job = made(tmp_path, cls=Counted, not_finite="skip")
    good, bad = samples(8, seed=3), samples(8, seed=4)
    bad["x"][0] = np.nan
    job.update(good)
    before = arrays(job)
    job.update(bad)
    after = arrays(job)
    assert {name for name in before if before[name].tobytes() != after[name].tobytes()} == {".step", ".faults"}
    assert before[".variables['critic_passes']"] == 1


class Residual(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(FEATURES, FEATURES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + nnx.tanh(self.linear(x))


def test_the_rematerialized_blocks_of_the_page_train_as_others_do(tmp_path: Path) -> None:
    class Plain(class_of_page(PAGE, "Blocks", nnx=nnx, Block=Residual)):  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return x

    class Deep(Classification):
        MODEL = class_of_page(PAGE, "Blocks", nnx=nnx, Block=Residual)

        def make_model(self, rngs: nnx.Rngs) -> Any:
            return nnx.Sequential(self.MODEL(rngs), nnx.Linear(FEATURES, CLASSES, rngs=rngs))

        def evaluations(self) -> Any:
            return {}

    class Kept(Deep):
        MODEL = Plain

    deep = trained(tmp_path, "remat", Deep, steps=3)
    kept = trained(tmp_path, "kept", Kept, steps=3)
    assert [line["loss"] for line in lines(deep)] == pytest.approx([line["loss"] for line in lines(kept)], rel=1e-5)
    batch = jax.tree.map(jnp.asarray, samples(8, seed=0))
    assert ["remat" in str(jax.make_jaxpr(job.step)(job.live_state, batch)) for job in (deep, kept)] == [True, False]


def test_a_metric_of_a_step_is_a_single_number(tmp_path: Path) -> None:
    class Wrong(Adversarial):
        def step(self, state: Any, batch: Any) -> tuple[Any, Mapping[str, Any]]:
            return state, {"each": batch["x"]}

    class WrongMean(Adversarial):
        def step(self, state: Any, batch: Any) -> tuple[Any, Mapping[str, Any]]:
            return state, {"each": Mean(jnp.float32(1), batch["x"])}

    class Still(Adversarial):
        def step(self, state: Any, batch: Any) -> tuple[Any, Mapping[str, Any]]:
            return state, {"nothing": 0.0}

    still = made(tmp_path, cls=Still)
    still.update(samples(8, seed=0))
    assert int(still.live_state.step) == 1
    for cls in (Wrong, WrongMean):
        with pytest.raises(TypeError, match=r"each: float32\[8, 8\] as a metric of a step: expected a single number"):
            made(tmp_path, cls=cls).update(samples(8, seed=0))
