"""The training loop, in this process and on one device."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from tiny_training import Tiny, made, text
from written_metrics import read_metrics

from dispatcher.errors import BatchSizeError, CheckpointError, ConfigError, DispatcherError
from dispatcher.runtime.configuration import to_dict
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs import batch_size_finder
from dispatcher.runtime.jobs.checkpointed import manager_at
from dispatcher.runtime.language.tokens import TokenWindows
from dispatcher.runtime.probe import JobProbe
from dispatcher.runtime.training.config import Microbatching, TrainingConfig
from dispatcher.runtime.training.loop import BEST_NAME

pytestmark = pytest.mark.demo


class Silent(Tiny):
    """Has nothing to evaluate on."""

    def evaluations(self) -> dict[str, Any]:
        return {}


def trained(root: Path, name: str = "tiny", cls: Any = Tiny, **words: Any) -> Any:
    job = made(root, name, cls, **words)
    job()
    return job


def arrays(job: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.asarray(array) for name, array in job.live_state.params.items()}


def lines(job: Any) -> list[dict[str, Any]]:
    return read_metrics(job.spec.result_path("metrics.jsonl"))


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(tmp_path_factory.mktemp("forty"), keep=2)


def test_it_learns(forty: Any) -> None:
    losses = [line["loss"] for line in lines(forty)]
    assert len(losses) == 40
    # The uniform guess of 16 tokens is ln 16 = 2.77.
    assert losses[0] > 2.6
    assert losses[-1] < 2.0
    assert lines(forty)[-1]["held_out/loss"] < 2.0


def test_what_is_kept_is_the_last_ones_and_the_best(forty: Any) -> None:
    with manager_at(str(forty.spec.relative_path), forty.spec) as checkpoints:
        names = {ref.name for ref in checkpoints.checkpoints()}
        best = checkpoints.find(BEST_NAME)
        latest = checkpoints.latest()
    assert names == {"step-00000030", "step-00000040", BEST_NAME}
    assert latest is not None
    assert latest.step == 40
    evaluated = {line["step"]: line["held_out/loss"] for line in lines(forty) if "held_out/loss" in line}
    assert list(evaluated) == [10, 20, 30, 40]
    assert best.step == min(evaluated, key=evaluated.__getitem__)
    assert forty.best == (best.step, evaluated[best.step])


def test_the_row_of_results(forty: Any) -> None:
    row = forty.result()
    assert row["steps"] == 40
    assert row["best_held_out/loss"] == forty.best[1]
    assert {"loss", "held_out/loss", "grad_norm", "lr"} < row.keys()
    assert not [name for name in row if name.startswith("speed/")]


def test_what_is_done_is_not_done_again(forty: Any) -> None:
    again = made(forty.spec.hardware.cluster.root, keep=2)
    assert again.done
    assert again()["loss"] == pytest.approx(forty.result()["loss"])
    assert again.state is None


def test_a_row_that_was_lost_or_damaged_is_made_again(tmp_path: Path) -> None:
    first = trained(tmp_path, steps=4)
    row = first.spec.result_path("result.json")
    for content in ("", "[1]", '{"steps": '):
        row.write_text(content)
        assert not made(tmp_path, steps=4).done
    again = {name: pytest.approx(value) for name, value in first.result().items()}
    assert made(tmp_path, steps=4)() == again
    row.unlink()
    assert made(tmp_path, steps=4)() == again


def test_more_steps_go_on_from_the_last(tmp_path: Path) -> None:
    constant = {"optimization.schedule": "constant", "optimization.warmup": 0.0}
    trained(tmp_path, "apart", steps=5, **constant)
    apart = trained(tmp_path, "apart", steps=9, **constant)
    at_once = trained(tmp_path, "at-once", steps=9, eval_every=5, **constant)
    for name, array in arrays(at_once).items():
        assert array.tobytes() == arrays(apart)[name].tobytes(), name


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.long)])
def test_parts_of_a_batch_add_up_to_it(tmp_path: Path, optimizer: str) -> None:
    words = {"steps": 3, "model.dropout": 0.0, "optimization.optimizer": optimizer}
    whole = trained(tmp_path, "whole", Silent, per_device_batch_size=None, **words)
    parts = trained(tmp_path, "parts", Silent, per_device_batch_size=2, **words)
    assert parts.setup.microbatching == Microbatching(accumulation_steps=4, microbatch_size=2)
    assert [line["loss"] for line in lines(whole)] == pytest.approx([line["loss"] for line in lines(parts)], rel=1e-4)
    for name, array in arrays(whole).items():
        np.testing.assert_allclose(array, arrays(parts)[name], rtol=1e-3, atol=2e-4, err_msg=name)


def test_the_seed_decides(tmp_path: Path) -> None:
    one, same, other = (
        arrays(trained(tmp_path, name, Silent, steps=2, seed=seed)) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert all(one[name].tobytes() == same[name].tobytes() for name in one)
    assert any(one[name].tobytes() != other[name].tobytes() for name in one)


def test_only_what_is_trainable_changes_and_it_starts_from_what_it_is_given(tmp_path: Path) -> None:
    class OnlyScales(Silent):
        class TRAINABLE(nnx.Param[Any]):  # type: ignore[misc]
            pass

        def make_model(self, rngs: Any) -> Any:
            model = super().make_model(rngs)
            model.norm.scale = self.TRAINABLE(model.norm.scale[...])
            return model

        def start_from(self) -> dict[str, Any]:
            return {"norm/scale": np.full(16, 3.0, np.float32), "embedding/embedding": np.zeros((16, 16), np.float32)}

    job = made(tmp_path, cls=OnlyScales, steps=2, ema=0.9)
    job.begin()
    frozen = {name: np.asarray(array) for name, array in job.live_state.variables.items()}
    assert set(job.live_state.params) == {"norm/scale"}
    assert (frozen["embedding/embedding"] == 0).all()
    np.testing.assert_array_equal(job.live_state.params["norm/scale"], 3.0)
    np.testing.assert_array_equal(job.live_state.ema["norm/scale"], 3.0)
    job()
    assert all(
        np.asarray(array).tobytes() == frozen[name].tobytes() for name, array in job.live_state.variables.items()
    )


def test_arrays_that_the_model_lacks_are_named(tmp_path: Path) -> None:
    class Wrong(Silent):
        def start_from(self) -> dict[str, Any]:
            return {"norm/offset": np.zeros(16)}

    with pytest.raises(ConfigError, match="the model has no arrays norm/offset"):
        made(tmp_path, cls=Wrong).begin()


def test_a_schedule_of_ones_own(tmp_path: Path) -> None:
    class Falling(Silent):
        def schedule(self) -> optax.Schedule:
            return optax.linear_schedule(1e-3, 0.0, self.training.steps)

    job = trained(tmp_path, cls=Falling, steps=4)
    assert [line["lr"] for line in lines(job)] == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


def test_a_checkpoint_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    trained(tmp_path, cls=Silent, steps=2)
    with pytest.raises(DispatcherError, match=r"model/blocks/0/feed_forward/up/kernel.*\[16, 24\].*\[16, 20\]"):
        trained(tmp_path, cls=Silent, steps=3, **{"model.d_ff": 20})


def test_tokens_from_files(tmp_path: Path) -> None:
    class FromFiles(Tiny):
        data = Tiny.__mro__[1].data  # type: ignore[attr-defined]  # those of LanguageTrainer
        evaluations = Tiny.__mro__[1].evaluations  # type: ignore[attr-defined]

    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "train.npy", text(1500, seed=1).astype(np.uint16))
    np.save(tmp_path / "data" / "eval.npy", text(200, seed=2).astype(np.uint16))
    files = {"data.train": "train.npy", "data.eval": "eval.npy", "data.seq_len": 12}
    from_files = trained(tmp_path, "files", FromFiles, steps=3, **files)
    from_memory = trained(tmp_path, "memory", steps=3)
    assert from_files.result()["loss"] == from_memory.result()["loss"]

    with pytest.raises(ConfigError, match=r"data\.train: required, but not set"):
        trained(tmp_path, "none", FromFiles, steps=3)
    with pytest.raises(ConfigError, match=r"none\.npy: no such file"):
        trained(tmp_path, "none", FromFiles, steps=3, **{**files, "data.train": "none.npy"})
    with pytest.raises(ConfigError, match=r"data\.seq_len = 0: expected at least 1"):
        trained(tmp_path, "none", FromFiles, steps=3, **{**files, "data.seq_len": 0})
    with pytest.raises(ConfigError, match=r"data\.seq_len = 21: expected at most 20, the model's model\.max_seq_len"):
        trained(tmp_path, "long", FromFiles, steps=3, **{**files, "data.seq_len": 21})
    with pytest.raises(ConfigError, match=r"eval\.npy: holds the token 15: expected 0 to \d+ \(model\.vocab_size\)"):
        trained(tmp_path, "few", FromFiles, steps=3, **{**files, "model.vocab_size": 15})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"steps": 0}, "training.steps = 0: expected at least 1"),
        ({"save_every": 0}, "training.save_every = 0"),
        ({"per_device_batch_size": -2}, "training.per_device_batch_size = -2: expected 1 or more, or -1"),
        ({"preemption_timeout_s": 0.0}, "training.preemption_timeout_s = 0.0"),
        ({"preemption_timeout_s": math.nan}, "training.preemption_timeout_s = nan"),
        ({"steps": 2**31}, "training.steps = 2147483648: expected at most 2147483647"),
        ({"seed": -1}, "training.seed = -1: expected 0 to 4294967295"),
    ],
)
def test_settings_that_make_no_sense_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        dataclasses.replace(TrainingConfig(steps=1), **words)


def test_microbatching() -> None:
    assert Microbatching.of(32, None, 4) == Microbatching(1, 32)
    assert Microbatching.of(32, 2, 4) == Microbatching(4, 8)
    assert Microbatching.within(32, 1000, 4) == Microbatching(1, 32)
    # Five would fit on each device, but four divide its eight rows.
    assert Microbatching.within(32, 5, 4) == Microbatching(2, 16)
    assert Microbatching.within(24, 5, 1) == Microbatching(6, 4)
    with pytest.raises(ConfigError, match="batch_size = 30: expected a multiple of 4 data shards"):
        Microbatching.of(30, None, 4)
    with pytest.raises(ConfigError, match="batch_size = 32: expected a multiple of 12"):
        Microbatching.of(32, 3, 4)


def test_the_key_is_part_of_a_checkpoint(forty: Any) -> None:
    with manager_at(str(forty.spec.relative_path), forty.spec) as checkpoints:
        latest = checkpoints.latest()
        assert latest is not None
        random = checkpoints.contents(latest).random
    assert random is not None
    assert random.key is not None
    assert jax.random.key_data(random.key).tolist() == jax.random.key_data(jax.random.key(0)).tolist()


def test_windows_too_short_for_one_row_are_refused() -> None:
    with pytest.raises(ConfigError, match="holds 12 tokens: expected at least 13"):
        TokenWindows(np.zeros(12, np.int32), 12)


def test_a_nan_is_never_the_best(tmp_path: Path) -> None:
    class Unlucky(Tiny):
        def evaluated(self) -> dict[str, float]:
            return {"held_out/loss": math.nan} if self.steps_done == 2 else super().evaluated()

    made = trained(tmp_path, "unlucky", Unlucky, steps=4, eval_every=2)
    assert made.best is not None
    assert made.best[0] == 4
    with manager_at(str(made.spec.relative_path), made.spec) as checkpoints:
        assert checkpoints.find("best").step == 4


def test_a_training_is_made_again_from_its_checkpoint_and_goes_on(tmp_path: Path) -> None:
    first = trained(tmp_path, "first", steps=6, save_every=3)
    spec = local(tmp_path, "second")
    second = Tiny.from_checkpoint_path(first.path_of("step-00000003"), spec)
    assert (second.steps_done, second.best) == (3, None)
    second()
    assert second.steps_done == 6
    for name, array in arrays(first).items():
        assert array.tobytes() == arrays(second)[name].tobytes(), name


def test_a_training_that_starts_from_another_ones_checkpoint_has_no_best_one_yet(tmp_path: Path, forty: Any) -> None:
    spec = local(forty.spec.hardware.cluster.root, "other")
    other = Tiny.from_checkpoint_path(forty.path_of("step-00000040"), spec)
    assert forty.metadata("step-00000040")["best"] is not None
    assert (other.steps_done, other.best, other.pending_metrics) == (40, None, None)


def test_after_a_rewind_to_before_the_best_checkpoint_the_search_starts_over(tmp_path: Path) -> None:
    class Scripted(Tiny):
        values: ClassVar = {2: 1.0, 4: 0.5}

        def evaluated(self) -> dict[str, float]:
            return {"held_out/loss": self.values[self.steps_done]}

    words = {"steps": 4, "eval_every": 2, "save_every": 1}
    assert trained(tmp_path, cls=Scripted, **words).best == (4, 0.5)
    again = made(tmp_path, cls=Scripted, **words)
    again.rewind("step-00000003")
    # The one of step 2 was replaced by the one that is set aside now.
    Scripted.values = {4: 2.0}
    again()
    assert again.best == (4, 2.0)
    assert [ref.step for ref in Scripted.checkpoints(again.spec) if ref.name == BEST_NAME] == [4]


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(tmp_path: Path) -> None:
    words = {"steps": 6, "save_every": 2, "optimization.schedule": "constant"}
    whole = trained(tmp_path, cls=Silent, **words)
    folder = tmp_path / "checkpoints" / str(whole.spec.relative_path) / "step-00000006"
    blob = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    blob.write_bytes(bytes(blob.stat().st_size))
    again = trained(tmp_path, cls=Silent, **{**words, "steps": 7})
    calm = trained(tmp_path, "calm", Silent, **{**words, "steps": 7})
    assert again.steps_done == 7
    for name, array in arrays(calm).items():
        assert array.tobytes() == arrays(again)[name].tobytes(), name


def test_when_every_checkpoint_is_damaged_it_does_not_begin_anew(tmp_path: Path) -> None:
    words = {"steps": 4, "save_every": 2, "eval_every": None}
    whole = trained(tmp_path, cls=Silent, **words)
    for tree in (tmp_path / "checkpoints" / str(whole.spec.relative_path)).glob("*/tree.json"):
        tree.unlink()
    # Also not the second time, when the damaged ones are out of the way.
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"no checkpoint to restore|every checkpoint was damaged"):
            trained(tmp_path, cls=Silent, **{**words, "steps": 5})


def test_the_row_of_a_shorter_training_does_not_stand_for_a_longer_one(tmp_path: Path) -> None:
    """Whose process ends when its last checkpoint is committed and no row is written yet."""
    constant = {"optimization.schedule": "constant", "eval_every": None}
    trained(tmp_path, cls=Silent, steps=4, **constant)

    class Dies(Silent):
        def result(self) -> None:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        trained(tmp_path, cls=Dies, steps=6, **constant)
    again = made(tmp_path, cls=Silent, steps=6, **constant)
    assert again()["steps"] == 6


def test_a_training_that_diverges_ends_with_the_step_and_the_learning_rate_and_is_not_saved(tmp_path: Path) -> None:
    diverging = {"optimization.schedule": "constant", "optimization.warmup": 0.0, "optimization.lr": 3e38}
    words = {"save_every": 3, "log_every": 100, "eval_every": None, **diverging}
    job = made(tmp_path, cls=Silent, **words)
    # Nobody reads what this step has measured, but the next step is told.
    with pytest.raises(FloatingPointError, match=r"the loss is nan at step 2 of 40: try a learning rate below 3e\+38"):
        job()
    assert type(job).checkpoints(job.spec) == []


def test_an_optimizers_state_that_is_not_a_number_is_not_saved(tmp_path: Path) -> None:
    job = made(tmp_path, cls=Silent)
    job.begin()
    state = job.live_state
    job.state = state.replace(opt_state=jax.tree.map(lambda leaf: leaf * float("nan"), state.opt_state))
    with pytest.raises(FloatingPointError, match=r"not finite after step 0 of 40: optimizer/"):
        job.save_state()
    assert type(job).checkpoints(job.spec) == []


class FromAnother(Silent):
    """Begins with the model of another training."""

    def start_from(self) -> Any:
        return self.load_model("default/default/tiny/best")


def test_a_probe_reads_the_checkpoints_of_the_job(forty: Any) -> None:
    cluster = forty.spec.hardware.cluster
    job = made(cluster.root, "another", cls=FromAnother)
    probe = JobProbe(FromAnother, to_dict(job.configuration_in_force), 1, 8, str(cluster.data), cluster.checkpoints)
    assert probe(8, 120.0).fits
    assert {path.name for path in Path(cluster.checkpoints, "default", "default").iterdir()} == {"tiny"}


class Hungry(Silent):
    """Its device has no more memory when it trains, in spite of what was found."""

    said = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 96 bytes.\nBuffers: many"

    def run_block(self, *words: Any) -> Any:
        raise jax.errors.JaxRuntimeError(self.said)


def test_a_batch_size_that_no_longer_fits_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def search(probe: Any, most: int, usable: Any) -> int:
        searched.append(most)
        return 4

    monkeypatch.setattr(batch_size_finder, "largest_that_fits", search)
    words = {"steps": 2, "per_device_batch_size": -1, "eval_every": None}
    job = made(tmp_path, "first", cls=Hungry, **words)
    with pytest.raises(BatchSizeError) as caught:
        job()
    said = str(caught.value)
    # What the dispatcher knows a lack of memory by, without the list of buffers.
    assert "4 rows per device were found to fit, and now they do not: RESOURCE_EXHAUSTED: Out of memory" in said
    assert "Buffers" not in said
    assert "was deleted: the next attempt searches again" in said
    with pytest.raises(BatchSizeError):
        made(tmp_path, "second", cls=Hungry, **words)()
    assert searched == [8, 8]

    monkeypatch.setattr(Hungry, "said", "INVALID_ARGUMENT: something else")
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT"):
            made(tmp_path, "third", cls=Hungry, **words)()
    assert searched == [8, 8, 8]


def test_a_batch_size_that_cannot_be_remembered_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size_finder, "largest_that_fits", lambda probe, most, usable: 4)
    (tmp_path / "batch_sizes").write_text("in the way")
    job = made(tmp_path, per_device_batch_size=-1)
    job.prepare()
    assert job.setup.microbatching == Microbatching(accumulation_steps=2, microbatch_size=4)
