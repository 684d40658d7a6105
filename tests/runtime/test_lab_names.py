"""Classes as a lab has written them, with the names of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_training import Text, Tiny, made

from dispatcher.errors import UsageError
from dispatcher.runtime.configuration import configuration, field
from dispatcher.runtime.jobs.lab_names import InferenceJob, RestoreableJob, Trainer
from dispatcher.runtime.language.transformer import Transformer
from dispatcher.runtime.quick import quick
from dispatcher.runtime.training.state import State

pytestmark = pytest.mark.demo


@dataclass(frozen=True)
class Counting:
    steps: int = field("training/steps", default=5)
    per_device_batch_size: int = field("training/per_device_batch_size", default=4)
    block_size: int = field("architecture/block_size", default=32)


class Counts(RestoreableJob[Counting]):
    @classmethod
    def config(cls) -> list[Any]:
        return [Counting]

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.counts = {"sum": jnp.zeros(3), "drawn": jnp.zeros(())}
        self.step = 0

    def restore_from_path(self, rel_path: str | Path) -> None:
        self.counts, metadata = self.get_tree_and_metadata_from_path(rel_path, self.counts)
        self.step = metadata["step"]

    def run(self) -> dict[str, float]:
        for step in range(self.step, self.args.steps):
            self.key, used = jax.random.split(self.key)
            self.counts = {"sum": self.counts["sum"] + 1, "drawn": jax.random.uniform(used) + random.random()}
            self.step = step + 1
            suffix = Path("step") / str(self.step)
            self.save_tree_and_metadata(suffix, self.counts, {"step": self.step})
            self.register(str(suffix))
        return {"drawn": float(self.counts["drawn"])}


def test_a_job_of_the_lab_is_saved_and_restored(tmp_path: Path) -> None:
    j = quick(Counts, "counts", out_path=tmp_path).init()
    whole = j.create()
    row = whole()
    assert Counts.latest(whole.spec).name == "step/5"  # type: ignore[union-attr]
    assert whole.get_metadata("step/3") == whole.get_metadata_from_path("default/default/counts/step/3") == {"step": 3}
    assert (whole.get_tree(Path("step/3"), whole.counts)["sum"] == 3).all()
    # Random numbers go on as they did.
    again = Counts.from_checkpoint("step/3", whole.spec)
    assert again.step == 3
    assert again.run() == row
    j.close()


def test_trees_and_metadata_alone(tmp_path: Path) -> None:
    with configuration({}):
        job = Counts.local(tmp_path, "alone")
    tree = {"a": np.arange(4), "b": {"c": jnp.ones(2)}}
    job.save_tree("tree", tree)
    found = job.get_tree_from_path("default/default/alone/tree", tree)
    assert jax.tree.map(lambda one, other: bool((one == other).all()), tree, found) == {"a": True, "b": {"c": True}}
    assert job.get_tree("tree", {"a": tree["a"]}, partial=True)["a"].tolist() == [0, 1, 2, 3]
    job.save_metadata("scores", {"best": 0.5})
    job.save_metadata_from_path("default/default/alone/scores", {"best": 0.75})
    assert job.get_metadata("scores") == {"best": 0.75}
    with pytest.raises(UsageError, match=r"checkpoint '.*/tree' has a tree, which metadata alone would replace"):
        job.save_metadata("tree", {"best": 1.0})
    assert job.get_tree("tree", tree)["a"].tolist() == [0, 1, 2, 3]


def test_what_a_job_knows_of_its_devices(tmp_path: Path) -> None:
    with configuration({}):
        job = Counts.local(tmp_path, "devices")
    assert job.replicas == job.local_replicas == job.mesh.size == jax.device_count()
    assert (job.per_device_batch_size, job.block_size) == (4, 32)


class Trains(Trainer[Text, Transformer]):
    pass


class Uses(InferenceJob[Text, Transformer]):
    MODEL = Transformer

    @classmethod
    def config(cls) -> type[Any]:
        return Text

    def run(self) -> None:
        return None


def test_a_trainer_and_what_uses_its_model(tmp_path: Path) -> None:
    class Lab(Trains, Tiny):
        """The tiny language trainer with the lab's names."""

    trainer = made(tmp_path, "lab", Lab, steps=1)
    trainer.begin()
    assert isinstance(trainer.state, State)
    assert jax.tree.structure(trainer.state_sharding) == jax.tree.structure(trainer.state)
    assert trainer.per_device_batch_size * trainer.replicas == trainer.setup.microbatching.microbatch_size
    assert trainer.block_size == trainer.data_config.seq_len
    use = Uses.from_trainer(trainer)
    assert use.mesh is trainer.mesh
    assert use.state.params["norm/scale"] is trainer.state.params["norm/scale"]
    assert use.state_sharding.params["norm/scale"] == use.state.params["norm/scale"].sharding
    assert use.local_replicas == trainer.local_replicas == jax.device_count()
