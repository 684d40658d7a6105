"""A model that is no language model, used and evaluated from its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from pages import class_of_page

from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime.checkpoint.tree import named_leaves
from dispatcher.runtime.configuration import configuration, field
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs.evaluation import EvaluationJob
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.jobs.inference_config import mesh_sizes
from dispatcher.runtime.launching import make_job
from dispatcher.runtime.training.config import TrainingConfig
from dispatcher.runtime.training.data import Arrays
from dispatcher.runtime.training.trainer import Trainer

pytestmark = pytest.mark.demo

PAGE = Path(__file__).parents[2] / "docs" / "trainer.md"
CONFIG = {
    "training": {"steps": 6, "batch_size": 4, "log_every": 1, "ema": 0.8, "axis_rules": {"features": "expert"},
                 "mesh": {"expert": 1}},
    "optimization": {"lr": 0.1, "warmup": 0.0},
    "model": {"outputs": 2},
}  # fmt: skip


@dataclass(frozen=True)
class RegressionConfig:
    outputs: int = field("model/outputs", default=1)


class Regression(nnx.Module):
    """Named arrays in and out."""

    CONFIG = RegressionConfig

    def __init__(self, config: RegressionConfig, *, rngs: nnx.Rngs) -> None:
        kernel = nnx.with_partitioning(nnx.initializers.normal(), (None, "features"))
        self.linear = nnx.Linear(3, config.outputs, kernel_init=kernel, rngs=rngs)

    def __call__(self, batch: Any) -> Any:
        return {"y": self.linear(batch["x"])}


def rows(count: int, *, seed: int) -> dict[str, Any]:
    x = np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
    return {"x": x, "y": x @ np.array([[1, 2], [0, 1], [-1, 0]], np.float32)}


@dataclass(frozen=True)
class FitsConfig:
    spread_rows: int = field("fits/spread_rows", default=7)
    lr: float = field("optimization/lr")


class Fits(Trainer[FitsConfig, Regression]):
    MODEL = Regression
    CONFIG = FitsConfig

    def data(self) -> Any:
        return Arrays(rows(32, seed=1))

    def evaluations(self) -> dict[str, Any]:
        # Neither number of rows is divided by the batch.
        return {"held_out": Arrays(rows(7, seed=2)), "other": Arrays(rows(5, seed=3))}

    def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        errors = model(batch)["y"] - batch["y"]
        return (errors**2).mean(axis=1), {"worst": abs(errors).max(axis=1)}

    def evaluated(self) -> dict[str, float]:
        kernel = self.model_to_evaluate()["linear/kernel"]
        found = Use.from_trainer(self).predict({"x": rows(self.args.spread_rows, seed=4)["x"]})["y"]
        return {**super().evaluated(), "largest": float(abs(kernel).max()), "spread": found.std()}


class EvaluateFits(EvaluationJob[TrainingConfig]):
    TRAINER = Fits


class Use(InferenceJob[TrainingConfig, Regression]):
    MODEL = Regression

    @classmethod
    def config(cls) -> type[Any]:
        return TrainingConfig

    def run(self) -> None:
        return None


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with configuration(Fits.checked_config(CONFIG)):
        job = Fits.local(tmp_path_factory.mktemp("fits"), "fits")
    job.row = job()  # type: ignore[attr-defined]
    return job


def restored(cls: Any, trained: Any, **inference: Any) -> Any:
    spec = local(trained.spec.hardware.cluster.root, "other")
    return make_job(cls, spec, {"inference": inference}, restore=trained.path_of("step-00000006"))


def expected(trained: Any, x: Any, *, averaged: bool = True) -> Any:
    arrays = trained.live_state.ema if averaged else trained.live_state.params
    return x @ np.asarray(arrays["linear/kernel"]) + np.asarray(arrays["linear/bias"])


def test_evaluations_of_a_checkpoint_are_those_of_the_training(trained: Any) -> None:
    names = {
        "largest",
        "spread",
        *(f"{source}/{metric}" for source in ("held_out", "other") for metric in ("loss", "worst")),
    }
    at_the_end = {name: trained.row[name] for name in names}
    job = restored(EvaluateFits, trained)
    assert job() == {"step": 6, **at_the_end}
    # Other batches add up the same means, to rounding.
    row = restored(EvaluateFits, trained, batch_size=2)()
    assert {name: row[name] for name in names} == pytest.approx(at_the_end)
    without = restored(EvaluateFits, trained, ema=False)()
    errors = expected(trained, rows(7, seed=2)["x"], averaged=False) - rows(7, seed=2)["y"]
    assert without["held_out/loss"] == pytest.approx(float((errors**2).mean()), rel=1e-4)
    assert without["held_out/loss"] != pytest.approx(row["held_out/loss"], rel=1e-4)
    assert without["largest"] != row["largest"]
    predicted = expected(trained, rows(7, seed=4)["x"], averaged=False)
    assert without["spread"] == pytest.approx(float(predicted.std()), rel=1e-4)


def test_the_settings_of_a_trainer_its_job_and_its_model(trained: Any) -> None:
    assert trained.args == FitsConfig(lr=0.1)
    assert trained.model_config == RegressionConfig(outputs=2) == restored(Use, trained).model_config
    assert trained.training.steps == 6


class Embed(InferenceJob[Any, Regression]):
    MODEL = Regression

    def run(self) -> None:
        return None

    def forward(self, model: Any, batch: Any) -> Any:
        (x,) = batch.values()
        return model.linear(x)


def test_recall_among_all_items_as_on_the_page(trained: Any) -> None:
    names = {"Trainer": Fits, "Embed": Embed, "cached_property": cached_property, "np": np}
    towers = class_of_page(PAGE, "Towers", **names)
    towers.queries, towers.items = rows(7, seed=4)["x"], rows(90, seed=5)["x"]
    scores = expected(trained, towers.queries) @ expected(trained, towers.items).T
    # The rank of the item of each query: four are among the first ten.
    ranks = [0, 9, 10, 5, 89, 40, 3]
    towers.targets = np.array([np.argsort(-row)[rank] for row, rank in zip(scores, ranks, strict=True)])
    row = restored(type("EvaluateTowers", (EvaluationJob,), {"TRAINER": towers}), trained)()
    assert row["items/recall_at_10"] == pytest.approx(4 / 7)
    assert row["held_out/loss"] == trained.row["held_out/loss"]


def test_a_best_metric_that_no_evaluation_gave_is_told_with_its_step_saved(trained: Any, tmp_path: Path) -> None:
    class Largest(Fits):
        BEST = ("largest", "max")

    class Wrong(Fits):
        BEST = ("langest", "max")

    with configuration(Wrong.checked_config(CONFIG)):
        job = Wrong.local(tmp_path, "wrong")
    with pytest.raises(ConfigError, match=r"no evaluation gives 'langest' \(did you mean 'largest'\?\), or None"):
        job()
    with configuration(Largest.checked_config(CONFIG)):
        mended = Largest.local(tmp_path, "wrong")
    assert mended()["best_largest"] == trained.row["largest"]
    assert mended.steps_done == 6


def test_an_evaluation_needs_a_checkpoint_and_something_to_evaluate_on(tmp_path: Path, trained: Any) -> None:
    class Nothing(Fits):
        def evaluations(self) -> dict[str, Any]:
            return {}

        evaluated = Trainer.evaluated  # type: ignore[assignment]  # not that of Fits

    nothing = type("EvaluateNothing", (EvaluationJob,), {"TRAINER": Nothing})
    with pytest.raises(ConfigError, match=r"Nothing\.evaluations\(\) is empty: there is nothing to evaluate"):
        restored(nothing, trained)
    with pytest.raises(UsageError, match="this job starts from a checkpoint"):
        make_job(EvaluateFits, local(tmp_path, "none"), {"training": {"steps": 6}})


def test_any_batch_is_predicted_by_averages_of_the_parameters(trained: Any) -> None:
    job, x = restored(Use, trained), rows(7, seed=4)["x"]
    assert job.setup.mesh.shape["expert"] == 1
    found = job.predict({"x": x})
    assert {name: type(array) for name, array in found.items()} == {"y": np.ndarray}
    np.testing.assert_allclose(found["y"], expected(trained, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(job.predict(Arrays({"x": x}), batch_size=3)["y"], found["y"], rtol=1e-6)
    np.testing.assert_allclose(Use.from_trainer(trained).predict({"x": x})["y"], found["y"], rtol=1e-6)
    np.testing.assert_allclose(
        restored(Use, trained, ema=False).predict({"x": x})["y"],
        expected(trained, x, averaged=False),
        rtol=1e-5,
        atol=1e-6,
    )
    with pytest.raises(UsageError, match="there are no rows to predict from"):
        job.predict({"x": x[:0]})


def test_a_forward_of_ones_own_has_a_row_for_each_row(trained: Any) -> None:
    class Sums(Use):
        def forward(self, model: Any, batch: Any) -> Any:
            return {"sum": model(batch)["y"].sum()}

    with pytest.raises(
        TypeError, match=r"forward: sum has the shape \[\] for a batch of 7 rows: expected \[7, \.\.\.\]"
    ):
        restored(Sums, trained).predict({"x": rows(7, seed=4)["x"]})


def test_computing_in_bfloat16_returns_what_the_policy_says(trained: Any) -> None:
    x = rows(7, seed=4)["x"]
    spec = local(trained.spec.hardware.cluster.root, "other")
    precision = {"training": {"precision": {"compute": "bfloat16", "output": "float32"}}}
    job = make_job(Use, spec, precision, restore=trained.path_of("step-00000006"))
    found = job.predict({"x": x})["y"]
    assert found.dtype == np.float32
    assert 0 < np.abs(found - expected(trained, x)).max() < 0.1
    assert {str(leaf.dtype) for leaf in named_leaves(job.arrays).values()} == {"float32"}


def test_a_mesh_has_every_axis_that_the_training_names() -> None:
    rules = {"embed": "fsdp", "mlp": ["tensor", "expert"], "heads": None}
    assert mesh_sizes({}, {"data": 2, "pipeline": 4}, rules) == {"pipeline": 1, "fsdp": 1, "expert": 1}
    assert mesh_sizes({"fsdp": -1}, {}, rules) == {"fsdp": -1, "expert": 1}


def test_only_the_models_arrays_are_read(trained: Any) -> None:
    job = restored(Use, trained)
    assert sorted(job.arrays) == ["linear/bias", "linear/kernel"]
    assert all(isinstance(array, jax.Array) for array in job.arrays.values())
