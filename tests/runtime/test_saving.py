"""When a training saves, what it never saves, and how it is rewound to an earlier checkpoint."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tiny_runs import Attempt, assert_same_bits, free_port, metric_lines, one_of_two, tiny_entry
from tiny_training import Tiny, made
from written_metrics import read_metrics

from dispatcher.errors import CheckpointError, ConfigError
from dispatcher.runtime.training import trainer as trainer_module
from dispatcher.runtime.training.policy import Policy

pytestmark = pytest.mark.demo

CONSTANT = {"optimization.schedule": "constant", "optimization.warmup": 0.0}
WORDS = {"steps": 8, "eval_every": 4, **CONSTANT}


class Silent(Tiny):
    """Has nothing to evaluate on."""

    def evaluations(self) -> dict[str, Any]:
        return {}


class Killed(Exception):
    """In the place of a kill."""


def dies_after(step: int) -> type[Tiny]:
    class Dies(Tiny):
        def run_block(self, *given: Any) -> Any:
            if self.steps_done == step:
                raise Killed
            return super().run_block(*given)

    return Dies


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A training with WORDS that nothing has disturbed."""
    job = made(tmp_path_factory.mktemp("calm"), **WORDS)
    job()
    return job


def names(job: Any) -> list[str]:
    return [ref.name for ref in type(job).checkpoints(job.spec)]


def arrays(job: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.asarray(array) for name, array in job.live_state.params.items()}


def lines(job: Any) -> list[dict[str, Any]]:
    return metric_lines(job.spec.result_path("metrics.jsonl"))


def with_steps_of(seconds: float, monkeypatch: pytest.MonkeyPatch) -> type[Silent]:
    """A training whose steps take so long by the clock that its timer reads."""

    class Slow(Silent):
        def run_block(self, *words: Any) -> Any:
            # None is asked for while another one is in progress.
            self.wait()
            now_s[0] += seconds
            return super().run_block(*words)

    now_s = [0.0]
    monkeypatch.setattr(trainer_module, "Policy", functools.partial(Policy, clock=lambda: now_s[0]))
    return Slow


def test_by_default_a_checkpoint_is_saved_when_ten_minutes_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = with_steps_of(100.0, monkeypatch)
    job = made(tmp_path, cls=slow, steps=20, keep=100, eval_every=None, **CONSTANT)
    assert job.training.save_every is None
    job()
    # Asked for with the step that begins after 600 s, and heard of one step later.
    assert names(job) == ["step-00000008", "step-00000016", "step-00000020"]


def test_a_save_that_something_else_has_made_puts_the_next_one_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = with_steps_of(1.0, monkeypatch)
    words = {"steps": 16, "keep": 100, "save_every": 6, "save_interval": "5s", "eval_every": None, **CONSTANT}
    job = made(tmp_path, cls=slow, **words)
    job()
    # At 6 and 12 for both reasons; what was asked for meanwhile is not heard as a second time.
    assert names(job) == ["step-00000006", "step-00000012", "step-00000016"]


@pytest.mark.slow
def test_processes_save_at_the_same_step_when_the_time_of_one_has_come(tmp_path: Path, jax_cache: Path) -> None:
    # Enough steps for several saves, of which none begins while another is in progress.
    words = {"steps": 100, "save_interval": 0.05, "eval_every": None, "keep": 1000, "per_device_batch_size": 2}
    address = f"127.0.0.1:{free_port()}"
    pair = [Attempt(tmp_path, jax_cache, 1, tiny_entry(**words), **one_of_two(address, number)) for number in range(2)]
    assert [attempt.end() for attempt in pair] == [0, 0]
    saved = sorted(path.parent.name for path in tmp_path.glob("runs/checkpoints/*/*/tiny/step-*/manifest.json"))
    assert len(saved) > 2
    assert saved[-1] == "step-00000100"


@pytest.mark.parametrize("value", ["10", "soon", 0, -1.0, True])
def test_an_interval_that_is_no_time_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"training.save_interval = .*expected"):
        made(tmp_path, save_interval=value)


def test_an_evaluation_that_fails_loses_nothing(tmp_path: Path, calm: Any) -> None:
    words = {**WORDS, "keep": 5}

    class Fails(Tiny):
        broken = True

        def evaluated(self) -> dict[str, float]:
            if self.steps_done == 8 and self.broken:
                raise Killed
            return super().evaluated()

    job = made(tmp_path, "failed", Fails, **words)
    with pytest.raises(Killed):
        job()
    assert names(job) == ["step-00000004", "best", "step-00000008"]

    again = made(tmp_path, "failed", Fails, **words)
    again.broken = False
    again()
    assert_same_bits({**arrays(calm), "a": np.ones(1)}, {**arrays(again), "a": np.ones(1)})
    assert lines(again) == lines(calm)
    assert again.result() == {name: pytest.approx(value) for name, value in calm.result().items()}


def test_a_step_that_is_evaluated_again_stands_once_in_the_log(tmp_path: Path, calm: Any) -> None:
    """Killed after an evaluation and before the next checkpoint."""
    with pytest.raises(Killed):
        made(tmp_path, "killed", dies_after(6), **WORDS)()
    again = made(tmp_path, "killed", **WORDS)
    again()
    assert [line["step"] for line in lines(again)] == list(range(1, 9))
    assert lines(again) == lines(calm)


def test_the_best_checkpoint_alone_is_enough_to_go_on(tmp_path: Path, calm: Any) -> None:
    job = made(tmp_path, "killed", dies_after(6), **WORDS)
    with pytest.raises(Killed):
        job()
    job._manager(job.path_of("best"))[0]._series.storage.remove("step-00000004")
    assert names(job) == ["best"]
    again = made(tmp_path, "killed", **WORDS)
    again()
    for name, array in arrays(calm).items():
        assert array.tobytes() == arrays(again)[name].tobytes(), name
    assert lines(again) == lines(calm)


class Breaks(Silent):
    """Its gradient, or its parameters, are not finite from one step on; the loss is."""

    gradient_from = math.inf
    weights_from = math.inf

    def make_model(self, rngs: Any) -> Any:
        model = super().make_model(rngs)
        model.updates = nnx.BatchStat(jnp.zeros((), jnp.int32))
        return model

    def loss(self, model: Any, batch: Any, key: Any) -> Any:
        nats, count = super().loss(model, batch, key)
        model.updates.set_value(model.updates.get_value() + 1)
        # The square root of zero is zero, and has no derivative.
        away = jnp.where(model.updates.get_value() >= self.gradient_from, 0.0, 1.0)
        return nats + jnp.sqrt(jnp.sum(0.0 * model.norm.scale[...]) + away) - away, count

    def optimizer(self) -> optax.GradientTransformation:
        plain = super().optimizer()

        def update(gradients: Any, state: Any, params: Any = None) -> Any:
            inner, count = state
            changes, inner = plain.update(gradients, inner, params)
            broken = jnp.where(count + 1 >= self.weights_from, jnp.nan, 0.0)
            changes = {**changes, "norm/scale": changes["norm/scale"] + broken}
            return changes, (inner, count + 1)

        return optax.GradientTransformation(lambda params: (plain.init(params), jnp.zeros((), jnp.int32)), update)


class BadGradient(Breaks):
    gradient_from = 6


class BadWeights(Breaks):
    weights_from = 6


def test_a_gradient_that_is_not_finite_stops_before_the_save(tmp_path: Path) -> None:
    words = {"steps": 20, "save_every": 4, "log_every": 100, "per_device_batch_size": None, **CONSTANT}
    job = made(tmp_path, cls=BadGradient, **words)
    with pytest.raises(FloatingPointError) as caught:
        job()
    said = str(caught.value)
    assert said.startswith("a gradient is not finite at step 6 of 20: try a lower learning rate. ")
    assert "Gradients that are not finite: norm/scale. " in said
    assert said.endswith(f"{job.path_of('step-00000004')}")
    # It was noticed with the next step, before anything else was saved.
    assert (job.steps_done, names(job)) == (7, ["step-00000004"])


def test_parameters_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    words = {"steps": 20, "save_every": 3, "log_every": 100, "eval_every": None, **CONSTANT}
    job = made(tmp_path, cls=BadWeights, **words)
    with pytest.raises(FloatingPointError) as caught:
        job()
    said = str(caught.value)
    # The loss and the gradients of that step were computed with what was there before.
    assert said.startswith("not finite after step 6 of 20: norm/scale. The last checkpoint, which is finite: "), said
    assert said.endswith(job.path_of("step-00000003"))
    assert names(job) == ["step-00000003"]


def test_rewinding_to_a_checkpoint(tmp_path: Path) -> None:
    words = {"steps": 12, "save_every": 3, "keep": 10, "eval_every": 6, **CONSTANT}
    first = made(tmp_path, **words)
    first()
    assert names(first)[-2:] == ["step-00000012", "best"]
    expected = arrays(first)

    back = made(tmp_path, **words)
    with pytest.raises(CheckpointError, match=r"no such checkpoint \(known: .*step-00000003"):
        back.rewind("step-00000004")
    back.rewind("step-00000003")
    # Until it runs nothing has changed.
    assert names(first)[-2:] == ["step-00000012", "best"]

    dies = made(tmp_path, cls=dies_after(5), **words)
    dies.rewind("step-00000003")
    with pytest.raises(Killed):
        dies()
    assert names(dies) == ["step-00000003"]
    aside = tmp_path / "checkpoints" / str(first.spec.relative_path) / "set-aside"
    assert sorted(path.name.partition(".")[0] for path in aside.iterdir()) == [
        "best", "step-00000006", "step-00000009", "step-00000012",
    ]  # fmt: skip
    # The next run goes on from there by itself, and finds a best one again.
    again = made(tmp_path, **words)
    again()
    assert [line["step"] for line in read_metrics(again.spec.result_path("metrics.jsonl"))] == list(range(1, 13))
    assert names(again)[0] == "step-00000003"
    assert {"best", "step-00000012"} < set(names(again))
    for name, array in expected.items():
        assert array.tobytes() == arrays(again)[name].tobytes(), name
    latest = type(again).latest(again.spec)
    assert latest is not None
    assert latest.name == "step-00000012"


@pytest.mark.parametrize("checkpoint", ["best", "step-00000006"])
def test_rewinding_to_the_end_of_a_training_that_is_done(tmp_path: Path, checkpoint: str) -> None:
    """Its best checkpoint was saved after its last one, and is found again."""
    words = {"steps": 6, "save_every": 3, "keep": 10, **CONSTANT}
    first = made(tmp_path, **words)
    expected = first()
    again = made(tmp_path, **words)
    again.rewind(checkpoint)
    assert again() == expected
    assert "best" in names(again)
    assert again.saved_row() == expected


def test_a_shorter_training_that_is_rewound_has_a_row_of_its_own(tmp_path: Path) -> None:
    words = {"save_every": 3, "keep": 10, "eval_every": 3, **CONSTANT}
    made(tmp_path, steps=6, **words)()
    shorter = made(tmp_path, steps=3, **words)
    shorter.rewind("step-00000003")
    row = shorter()
    assert row is not None
    assert (row["steps"], row["best_step"]) == (3, 3)


def test_a_second_run_does_not_rewind_again(tmp_path: Path) -> None:
    words = {"steps": 6, "save_every": 3, "keep": 10, "eval_every": None, **CONSTANT}
    made(tmp_path, cls=Silent, **words)()
    job = made(tmp_path, cls=Silent, **words)
    job.rewind("step-00000003")
    job()
    before = type(job).checkpoints(job.spec)
    job()
    assert type(job).checkpoints(job.spec) == before


def test_a_gradient_of_half_precision_is_finite_when_its_square_is_not(tmp_path: Path) -> None:
    class Half(Silent):
        def make_model(self, rngs: Any) -> Any:
            model = super().make_model(rngs)
            model.half = nnx.Param(jnp.zeros((), jnp.float16))
            return model

        def loss(self, model: Any, batch: Any, key: Any) -> Any:
            nats, count = super().loss(model, batch, key)
            return nats + count * 1000.0 * model.half.get_value().astype(jnp.float32), count

        def optimizer(self) -> optax.GradientTransformation:
            return optax.sgd(1e-6)  # others square a gradient themselves

    job = made(tmp_path, cls=Half, steps=2, per_device_batch_size=None, **CONSTANT)
    job()
    assert job.steps_done == 2
    assert 1000 < job.measured["grad_norm"] < 1100


def test_a_rewind_holds_when_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest is still there, or was the only one that was set aside: what is saved next counts all the same."""
    words = {"steps": 12, "save_every": 3, "keep": 10, "eval_every": None, **CONSTANT}
    made(tmp_path, cls=Silent, **words)()
    for calls in (0, 1):
        job = made(tmp_path, cls=Silent, **words)
        storage = job._manager(job.path_of("x"))[0]._series.storage
        left = [calls]
        plain = storage.set_aside

        def dies(name: str, folder: str, left: list[int] = left, plain: Any = plain) -> Any:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return plain(name, folder)

        monkeypatch.setattr(storage, "set_aside", dies)
        job.rewind("step-00000003")
        with pytest.raises(Killed):
            job()
        latest = Silent.latest(job.spec)
        assert latest is not None
        assert latest.name == "step-00000003"
    again = made(tmp_path, cls=Silent, **{**words, "steps": 5, "save_every": 2})
    again()
    latest = Silent.latest(again.spec)
    assert latest is not None
    assert (latest.name, latest.step) == ("step-00000005", 5)
