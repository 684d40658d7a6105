"""What a trainer's hooks may say, and how it is told before the first step what they may not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flax import nnx
from small_trainings import CLASSES, FEATURES, Classification, Weighted, made, samples, trained

from dispatcher.errors import CheckpointError, CheckpointMismatchError, ConfigError
from dispatcher.runtime.checkpoint.tree import saved_names
from dispatcher.runtime.configuration import field
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs import batch_size_finder
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.training.data import Arrays
from dispatcher.runtime.training.evaluation import check_best, numbers
from dispatcher.runtime.training.trainer import Trainer

pytestmark = pytest.mark.demo


@dataclass(frozen=True)
class Size:
    width: int = field("classifier/width", default=3)


@dataclass(frozen=True)
class Noise:
    scale: float = field("noise/scale", default=0.1)


def test_a_configuration_of_ones_own_leaves_the_trainers_settings(tmp_path: Path) -> None:
    class Sized(Classification):
        @classmethod
        def config(cls) -> Any:
            return Noise

        @classmethod
        def model_classes(cls) -> Any:
            return (Size,)

        def make_model(self, rngs: nnx.Rngs) -> Any:
            return nnx.Linear(FEATURES, self.model_config.width, rngs=rngs)

    job = made(tmp_path, cls=Sized, steps=2)
    assert (job.args, job.model_config, job.training.steps) == (Noise(), Size(), 2)
    assert job.setup.layout.abstract.params["kernel"].shape == (FEATURES, 3)


def test_the_names_of_the_trainers_own_metrics_are_taken(tmp_path: Path) -> None:
    class Taken(Weighted):
        def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
            value, metrics = super().loss(model, batch, rngs)
            return value, {"loss": metrics["accuracy"]}

    with pytest.raises(ValueError, match="loss: a metric beside the loss has the name of one of the trainer's own"):
        made(tmp_path, cls=Taken).update(samples(8, seed=0))


def test_the_metric_of_the_best_is_looked_up_before_the_first_step(tmp_path: Path) -> None:
    class Wrong(Classification):
        BEST = ("held_out/acuracy", "max")

    job = made(tmp_path, cls=Wrong)
    with pytest.raises(ConfigError, match=r"'held_out/acuracy' \(did you mean 'held_out/accuracy'\?\), or None"):
        job()
    assert job.state is None


def test_what_evaluated_adds_without_evaluations_needs_no_best(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Watched(Classification):
        BEST: Any = Trainer.BEST

        def evaluations(self) -> Any:
            return {}

        def evaluated(self) -> dict[str, float]:
            return {**super().evaluated(), "energy": np.float32(math.nan)}

    job = made(tmp_path, "watched", Watched, steps=1)
    seen: list[int] = []
    # As in a notebook.
    job.on_step = lambda step, metrics: seen.append(step)
    assert "best_step" not in job()
    assert seen == [1]
    assert "never the best" not in caplog.text
    Watched.BEST = ("energy", "min")
    assert "best_step" not in trained(tmp_path, "watched", Watched, steps=2).result()
    assert "watched: step 2: energy is nan, never the best" in caplog.text


@pytest.mark.parametrize("value, seen", [(np.ones(3), r"an array \[3\]"), ("low", "str"), (None, "NoneType")])
def test_what_evaluated_adds_are_numbers(value: Any, seen: str) -> None:
    with pytest.raises(TypeError, match=rf"evaluated\(\): 'energy' is {seen}: expected a single number"):
        numbers({"loss": 1, "energy": value})


def test_a_schedule_is_a_function(tmp_path: Path) -> None:
    class Constant(Classification):
        optimizer = Trainer.optimizer

        def schedule(self) -> Any:
            return 1e-3

    with pytest.raises(ConfigError, match=r"schedule\(\) is 0\.001: expected a function of the step"):
        made(tmp_path, cls=Constant).begin()


def test_evaluations_have_names(tmp_path: Path) -> None:
    class Listed(Classification):
        def evaluations(self) -> Any:
            return [Arrays(samples(8, seed=2))]

    with pytest.raises(ConfigError, match=r"evaluations\(\) is list: expected sources by name"):
        made(tmp_path, cls=Listed).begin()


@pytest.mark.parametrize("best", ["held_out/loss", ("held_out/loss", "lower"), ("held_out/loss",)])
def test_the_best_is_a_metric_and_a_direction(best: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a metric and 'min' or 'max': \('held_out/loss', 'min'\), or None"):
        check_best(best, [])


def test_a_model_that_is_none_is_named(tmp_path: Path) -> None:
    class Wrong(Classification):
        def make_model(self, rngs: nnx.Rngs) -> Any:
            return (super().make_model(rngs), rngs)

    with pytest.raises(ConfigError, match=r"make_model returned tuple: expected a model, an nnx\.Module"):
        made(tmp_path, cls=Wrong)()


def test_an_axis_without_a_rule_is_told_with_its_array(tmp_path: Path) -> None:
    class Unmapped(Classification):
        AXIS_RULES: ClassVar = {"embd": None}

        def make_model(self, rngs: nnx.Rngs) -> Any:
            kernel = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("embed", None))
            return nnx.Linear(FEATURES, CLASSES, kernel_init=kernel, rngs=rngs)

    with pytest.raises(ConfigError, match=r"kernel \[8, 4\]: unknown axis 'embed' \(did you mean 'embd'\?\)"):
        made(tmp_path, cls=Unmapped).begin()


class Former(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.trunk = nnx.Linear(FEATURES, 16, rngs=rngs)
        self.output = nnx.Linear(16, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.output(nnx.relu(self.trunk(x)))


class Now(Former):
    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(rngs)
        self.body = nnx.List([self.trunk])
        del self.trunk

    def __call__(self, x: Any) -> Any:
        return self.output(nnx.relu(self.body[0](x)))


class FormerTraining(Classification):
    BEST = None
    MADE: Any = Former

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return self.MADE(rngs)


class NowTraining(FormerTraining):
    MADE = Now
    RENAMED_FROM: ClassVar = {"body/0": "trunk"}


class UsesNow(InferenceJob[None, Now]):
    RENAMED_FROM = NowTraining.RENAMED_FROM

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return Now(rngs)

    def run(self) -> None:
        return None


def test_a_training_with_a_renamed_layer_resumes(tmp_path: Path) -> None:
    words = {"ema": 0.9}
    whole = trained(tmp_path, "whole", FormerTraining, steps=6, **words)
    trained(tmp_path, "apart", FormerTraining, steps=3, **words)
    used = UsesNow.from_checkpoint_path("default/default/apart/step-00000003", local(tmp_path, "use"))
    nameless = type("Nameless", (NowTraining,), {"RENAMED_FROM": {}, "__module__": __name__})
    with pytest.raises(
        CheckpointMismatchError, match=r"body/0/kernel: missing in the checkpoint[\s\S]*RENAMED_FROM of the"
    ):
        trained(tmp_path, "apart", nameless, steps=6, **words)
    apart = trained(tmp_path, "apart", NowTraining, steps=6, **words)
    for name, array in whole.model_to_evaluate().items():
        now = apart.model_to_evaluate()[name.replace("trunk", "body/0")]
        np.testing.assert_allclose(now, array, rtol=1e-5, atol=1e-6, err_msg=name)
    assert used.arrays.keys() == apart.live_state.model.keys()
    # From now on they are saved under their new names.
    assert trained(tmp_path, "apart", nameless, steps=8, **words).steps_done == 8


def test_two_arrays_cannot_come_from_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"RENAMED_FROM: a/kernel and b/kernel would both be a/kernel"):
        saved_names(["a/kernel", "b/kernel"], ["a/kernel"], {"b": "a"})
    chain, today = {"head": "out", "old": "head"}, ["mu/head/kernel", "mu/old/kernel"]
    before = {"mu/head/kernel": "mu/out/kernel", "mu/old/kernel": "mu/head/kernel"}
    assert saved_names(today, list(before.values()), chain) == before
    assert saved_names(today, today, chain) == dict(zip(today, today, strict=True))
    assert saved_names(["optimizer/0/mu/b/kernel", "model/ab/kernel"], ["optimizer/0/mu/a/kernel"], {"b": "a"}) == {
        "optimizer/0/mu/b/kernel": "optimizer/0/mu/a/kernel",
        "model/ab/kernel": "model/ab/kernel",
    }


def test_a_search_for_a_batch_size_calls_no_hook_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(Classification):
        CALLS: ClassVar[list[str]] = []

        def data(self) -> Any:
            self.CALLS.append("data")
            return super().data()

        def make_model(self, rngs: nnx.Rngs) -> Any:
            self.CALLS.append("make_model")
            return nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    monkeypatch.setattr(batch_size_finder, "largest_that_fits", lambda probe, most, usable: 4)
    job = trained(tmp_path, cls=Counting, steps=1, per_device_batch_size=-1)
    assert job.setup.microbatching.accumulation_steps == 2
    # The form of the model, and its arrays.
    assert sorted(Counting.CALLS) == ["data", "make_model", "make_model"]
