"""What is saved comes back bit for bit, or an error says which leaf does not fit."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from dispatcher.errors import CheckpointError, CheckpointMismatchError, UsageError
from dispatcher.runtime.checkpoint import CheckpointManager, Contents, RandomState


def test_every_kind_of_leaf_comes_back_as_it_was(tmp_path, state, same):
    with CheckpointManager(tmp_path / "a'; echo foo") as checkpoints:
        ref = checkpoints.save(state(7), 7)
        same(checkpoints.restore(state(0)), state(7))
        assert checkpoints.latest() == ref
        assert checkpoints.find("step-00000007") == ref


def test_a_directory_holds_what_the_protocol_says(tmp_path, state):
    with CheckpointManager(tmp_path) as checkpoints:
        beside = Contents(job={"job": "gpt/train"}, config="training: {lr: 1.0}\n", position={"epoch": 1})
        checkpoints.save(
            state(1), 1, metadata={"note": "naïve"}, metrics={"loss": 2.5, "acc": float("nan")}, beside=beside
        )
    folder = tmp_path / "step-00000001"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint", "config.json", "config.yaml", "job.json", "manifest.json", "position.json", "rng", "tree.json",
    ]  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    del files["manifest.json"]
    assert {each["path"]: each["size"] for each in manifest["files"]} == files
    assert manifest["metrics"] == {"loss": 2.5, "acc": None}
    assert json.loads((folder / "config.json").read_text()) == {"note": "naïve"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001"], "scratch is gone"


def test_contents_come_back(tmp_path, state):
    beside = Contents(job={"job": "x"}, config="a: 1\n", position=[3, {"shard": "b"}])
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(state(1), 1, metadata={"n": [1, 2]}, beside=beside)
        restored = checkpoints.load(state(0))
        said = replace(restored.contents, random=None)
        assert said == Contents(metadata={"n": [1, 2]}, job={"job": "x"}, config="a: 1\n", position=[3, {"shard": "b"}])
        assert checkpoints.contents(restored.ref).config == "a: 1\n"


def test_contents_that_are_no_plain_data_are_refused(tmp_path, state):
    with (
        CheckpointManager(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match=r"position of the data iterator cannot be saved: .*set"),
    ):
        checkpoints.save(state(1), 1, beside=Contents(position={1, 2}))
    assert not list(tmp_path.glob("step*"))


@pytest.mark.parametrize(
    "array",
    [
        jnp.arange(5, dtype=jnp.int4),
        jnp.ones((2, 3), jnp.float8_e4m3fn),
        jnp.array([1 + 2j, jnp.nan]),
        jnp.array([True, False]),
        jnp.float32(3),
        jax.random.split(jax.random.key(3, impl="rbg"), 4),
        np.array([2**63], dtype=np.uint64),
        np.ones((2,), ml_dtypes.bfloat16),
        np.array(-0.0),
        2**100,
        float("-inf"),
        -0.0,
        "",
        False,
    ],
    ids=str,
)
def test_leaf(tmp_path, same, array):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save({"x": array}, 1)
        same(checkpoints.restore({"x": array}), {"x": array})


def test_trees_of_one_leaf_and_of_none(tmp_path, same):
    with CheckpointManager(tmp_path) as checkpoints:
        for number, pytree in enumerate((jnp.ones(3), {}, None, {"only": 3}), start=1):
            checkpoints.save(pytree, number)
            same(checkpoints.restore(pytree), pytree)


def test_shapes_are_enough_to_restore_into(tmp_path, state, same):
    wanted = {"a": jnp.arange(3.0), "z": jnp.zeros((0,)), "n": 3}
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(wanted, 1)
        same(checkpoints.restore(jax.eval_shape(lambda: wanted) | {"n": 0}), wanted)


def test_a_flax_model_comes_back(tmp_path, same):
    class Model(nnx.Module):
        def __init__(self, seed: int) -> None:
            rngs = nnx.Rngs(seed)
            self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 2, rngs=rngs)])
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    saved = nnx.state(Model(1))
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(saved, 1)
        same(checkpoints.restore(nnx.state(Model(2))), saved)


def test_orbax_alone_can_read_it(tmp_path):
    from orbax.checkpoint import v1 as orbax

    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save({"params": {"w": jnp.arange(4.0)}, "n": 3}, 1)
    found = orbax.load(tmp_path / "step-00000001" / "checkpoint")
    assert np.array_equal(found["params"]["w"], np.arange(4.0))


def test_what_is_saved_is_the_state_at_the_call(tmp_path):
    """The next step may take the arrays' memory, and the caller may change its NumPy arrays, while they are written."""

    @functools.partial(jax.jit, donate_argnums=0)
    def train(tree):
        return jax.tree.map(lambda x: x * 1.01 + 1, tree)

    device = train({f"layer{i}": jnp.full((512, 512), float(i)) for i in range(40)})
    host = np.arange(1_000_000)
    wanted = jax.tree.map(lambda x: np.array(x, copy=True), {"device": device, "host": host})
    target = {"device": jax.eval_shape(lambda: device), "host": np.empty_like(host)}
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save({"device": device, "host": host}, 1)
        host[:] = -1
        for _ in range(20):
            device = train(device)
        jax.block_until_ready(device)
        found = checkpoints.restore(target)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, found, wanted)))


def test_leaves_that_do_not_fit_are_all_named(tmp_path):
    saved = {"params": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)}, "old": jnp.ones(1), "n": 1, "key": jax.random.key(0)}
    wanted = {
        "params": {"w": jnp.ones((2, 4)), "b": jnp.ones(3, jnp.bfloat16)},
        "new": jnp.ones((5, 5)),
        "n": jnp.ones(()),
        "key": jax.random.key(0, impl="rbg"),
    }
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(saved, 1)
        with pytest.raises(CheckpointMismatchError) as caught:
            checkpoints.restore(wanted)
        assert sorted(caught.value.problems) == [
            "key: key<fry>[] in the checkpoint, key<rbg>[] in the target",
            "n: int in the checkpoint, float32[] in the target",
            "new: missing in the checkpoint; the target has float32[5, 5]",
            "old: float32[1] in the checkpoint; unknown to the target",
            "params/b: float32[3] in the checkpoint, bfloat16[3] in the target",
            "params/w: float32[2, 3] in the checkpoint, float32[2, 4] in the target",
        ]
        assert str(caught.value).startswith(f"{tmp_path}/step-00000001/checkpoint: 6 leaves do not fit")


def test_a_part_can_be_restored(tmp_path, state, same):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save(state(3), 3)
        same(checkpoints.restore({"params": state(0)["params"]}, partial=True), {"params": state(3)["params"]})
        same(checkpoints.restore({"step": 0}, partial=True), {"step": 3})


def test_leaves_that_cannot_be_saved_are_named(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        with pytest.raises(CheckpointError, match="opt/fn: a function cannot be saved"):
            checkpoints.save({"opt": {"fn": make_nothing}}, 1)
        with pytest.raises(CheckpointError, match=r"two leaves .* 'a\.b' and 'a/b'|two leaves .* 'a/b' and 'a\.b'"):
            checkpoints.save({"a.b": jnp.ones(2), "a": {"b": jnp.ones(3)}}, 1)


def make_nothing() -> None:
    """Stands for something that is no array."""


@pytest.mark.parametrize("name", ["", "../up", "/etc", "a//b", ".hidden", "latest", "ckpt.tmp/x", "a b", "best.old-1"])
def test_names_that_cannot_be_used(tmp_path, name):
    with CheckpointManager(tmp_path) as checkpoints, pytest.raises(UsageError, match="checkpoint "):
        checkpoints.save({"x": 1}, 1, name=name or "/")


@pytest.mark.parametrize("place", ["http://bucket/x", "s3://", "ftp://a/b"])
def test_places_that_cannot_be_used(place):
    with pytest.raises(UsageError, match="expected a directory or one of s3://"):
        CheckpointManager(place)


@pytest.mark.parametrize("place", ["s3://AKIA1:hush@bucket/x", "s3://bucket/x?secret=hush", "http://a:hush@b/c"])
def test_credentials_in_a_url_are_refused_and_not_shown(place):
    with pytest.raises(UsageError, match=r"x: no credentials in a URL|c: no credentials in a URL") as caught:
        CheckpointManager(place)
    assert "hush" not in str(caught.value)


def test_random_numbers_go_on_where_they_were(tmp_path):
    mine = np.random.Generator(np.random.Philox(5))
    random.seed(1)
    np.random.seed(2)
    random.gauss(0, 1), np.random.standard_normal(), mine.integers(9, dtype=np.uint32)
    key = jax.random.split(jax.random.key(9, impl="rbg"), 3)
    with CheckpointManager(tmp_path) as checkpoints:
        ref = checkpoints.save({"x": 1}, 1, beside=Contents(random=RandomState.capture(key, {"shuffle": mine})))
        checkpoints.wait()
        wanted = draw(mine), np.asarray(jax.random.normal(key[1], (4,)))
        for generator in (random.seed, np.random.seed):
            generator(99)
        mine.random(17)
        found_key = checkpoints.contents(ref).random.restore({"shuffle": mine})
    assert (draw(mine), np.asarray(jax.random.normal(found_key[1], (4,))).tolist()) == (wanted[0], wanted[1].tolist())
    assert found_key.dtype == key.dtype
    assert jax.random.key_impl(found_key) == "rbg"
    json.loads((tmp_path / "step-00000001" / "rng").read_text())


def draw(mine: np.random.Generator) -> list[float]:
    numbers = [random.random(), random.gauss(0, 1), random.gauss(0, 1)]
    numbers += np.random.standard_normal(3).tolist()
    return numbers + mine.random(3).tolist() + mine.integers(9, size=3, dtype=np.uint32).tolist()


def test_old_keys_keep_their_kind():
    key = jax.random.PRNGKey(5)
    said = json.loads(json.dumps(RandomState.capture(key).to_json()))
    assert np.array_equal(RandomState.from_json(said, "rng").restore(), key)
    with jax.default_prng_impl("rbg"), pytest.raises(CheckpointError, match=r"implementation 'threefry2x32'.* 'rbg'"):
        RandomState.from_json(said, "rng")


def test_an_error_in_the_background_comes_out_at_the_next_call(tmp_path, state):
    with CheckpointManager(tmp_path / "run") as checkpoints:
        checkpoints.save(state(1), 1)
        checkpoints.wait()
        (tmp_path / "run" / "step-00000002").mkdir()
        (tmp_path / "run" / "step-00000002" / "mine.txt").write_text("not a checkpoint")
        checkpoints.save(state(2), 2)
        with pytest.raises(CheckpointError, match="step-00000002: exists and is not a checkpoint"):
            checkpoints.save(state(3), 3)
        checkpoints.save(state(3), 3)
        checkpoints.wait()
        assert [each.step for each in checkpoints.checkpoints()] == [1, 3]
    assert (tmp_path / "run" / "step-00000002" / "mine.txt").exists()
    assert not (tmp_path / "run" / "ckpt.tmp").exists()


def test_nothing_can_be_saved_inside_of_a_checkpoint(tmp_path):
    with CheckpointManager(tmp_path) as checkpoints:
        checkpoints.save({"x": 1}, 1, name="best")
        checkpoints.save({"x": 1}, 1, name="best/of/all")
        with pytest.raises(CheckpointError, match="best is a checkpoint itself"):
            checkpoints.wait()


def test_there_is_nothing_to_restore(tmp_path: Path):
    with CheckpointManager(tmp_path / "none") as checkpoints:
        assert checkpoints.latest() is None
        assert checkpoints.checkpoints() == []
        assert checkpoints.resume({"x": 1}) is None
        with pytest.raises(CheckpointError, match="there is no checkpoint to restore"):
            checkpoints.restore({"x": 1})
        with pytest.raises(CheckpointError, match="no such checkpoint; there are no checkpoints"):
            checkpoints.find("best")
    assert not (tmp_path / "none").exists(), "looking creates nothing"


def test_a_process_that_ends_without_waiting_still_commits(tmp_path, child):
    child("ends.py", tmp_path)
    with CheckpointManager(tmp_path) as checkpoints:
        assert checkpoints.restore({"x": np.zeros((2000, 1000))})["x"].sum() == 2_000_000
