"""Models of any structure: layers stacked by nnx.vmap, in containers, shared, of Linen. Each is trained as plain Flax
and Optax train it, and a resumed training has the bits of one that was not disturbed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from optax.contrib import MuonDimensionNumbers, muon
from small_trainings import CLASSES, FEATURES, Classification, arrays, made, samples, trained

from dispatcher.runtime.training.averages import _new
from dispatcher.runtime.training.data import Arrays, read_batch
from dispatcher.runtime.training.order import rows_at
from dispatcher.runtime.training.trainer import Trainer

pytestmark = pytest.mark.demo

STEPS, LAYERS, WIDTH, VOCABULARY = 4, 3, 8, 11
CONSTANT = {"schedule": "constant", "warmup": 0.0, "lr": 0.01, "weight_decay": 0.5}


def layers(make: Any, number: int, rngs: nnx.Rngs) -> Any:
    """That many layers in arrays with one more axis."""
    return nnx.split_rngs(splits=number)(nnx.vmap(make, in_axes=0, out_axes=0))(rngs)


def through(stacked: Any, hidden: Any, call: Any = lambda hidden, layer: layer(hidden)) -> Any:
    return nnx.scan(call, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(hidden, stacked)


class Block(nnx.Module):
    """Attention with biases, and a feed-forward layer."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, use_bias=False, rngs=rngs)

    def __call__(self, hidden: Any) -> Any:
        hidden = hidden + self.attention(self.norm(hidden), mask=nn.make_causal_mask(hidden[..., 0]))
        return hidden + self.down(nnx.gelu(self.up(hidden)))


class Gpt(nnx.Module):
    """With tied embeddings; its blocks are stacked, or in a list."""

    def __init__(self, rngs: nnx.Rngs, *, stacked: bool = True) -> None:
        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.head = self.embedding
        self.blocks = layers(Block, LAYERS, rngs) if stacked else nnx.List([Block(rngs) for _ in range(LAYERS)])

    def __call__(self, tokens: Any) -> Any:
        hidden = self.embedding(tokens)
        if isinstance(self.blocks, nnx.List):
            for block in self.blocks:
                hidden = block(hidden)
        else:
            hidden = through(self.blocks, hidden)
        return self.head.attend(hidden)


def next_token_loss(model: Any, tokens: Any) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens)[:, :-1], tokens[:, 1:])
    return losses.mean(axis=1)


class GptTraining(Trainer[Any, Any]):
    BEST = None

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return Gpt(rngs)

    def data(self) -> Any:
        return Arrays({"tokens": np.random.default_rng(0).integers(0, VOCABULARY, (32, 6)).astype(np.int32)})

    def loss(self, model: Any, batch: Any, rngs: nnx.Rngs) -> Any:
        return next_token_loss(model, batch["tokens"])


def batches(job: Any) -> Any:
    """The batches of a training, in their order."""
    source, rows = job.data(), job.training.batch_size
    for number in range(job.training.steps):
        yield read_batch(source, rows_at(number * rows + np.arange(rows), len(source), job.training.seed))


def unstacked(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of the model whose blocks are in a list."""
    found = {}
    for name, array in arrays.items():
        first, _, rest = name.partition("/")
        found |= {f"blocks/{i}/{rest}": array[i] for i in range(LAYERS)} if first == "blocks" else {name: array}
    return found


def dimensions_by_hand(params: dict[str, Any]) -> dict[str, MuonDimensionNumbers | None]:
    def of(name: str) -> MuonDimensionNumbers | None:
        if not name.endswith("/kernel"):
            return None
        if "/attention/" not in name:
            return MuonDimensionNumbers(0, 1)
        return MuonDimensionNumbers((0, 1), 2) if "/out/" in name else MuonDimensionNumbers(0, (1, 2))

    return {name: of(name) for name in params}


def test_a_stacked_gpt_with_muon_is_what_plain_optax_makes_of_its_layers_one_by_one(tmp_path: Path) -> None:
    job = made(tmp_path, "gpt", GptTraining, steps=STEPS, optimization={**CONSTANT, "optimizer": "muon"})
    job.begin()
    params = unstacked({name: jnp.array(array) for name, array in job.live_state.params.items()})
    graph, state = nnx.split(nnx.jit(lambda: Gpt(nnx.Rngs(0), stacked=False))())
    paths = {"/".join(map(str, path)): path for path, _ in nnx.to_flat_state(state)}
    assert paths.keys() == params.keys()
    update = muon(
        0.01,
        weight_decay=0.5,
        adam_b2=0.95,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=dimensions_by_hand,
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), update)

    @jax.jit
    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            model = nnx.merge(graph, nnx.from_flat_state([(paths[name], params[name]) for name in paths]))
            return next_token_loss(model, batch["tokens"]).mean()

        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    opt_state = optimizer.init(params)
    for batch in batches(job):
        params, opt_state = step(params, opt_state, batch)
    job()
    found = unstacked(job.live_state.params)
    for name, expected in params.items():
        # A softmax does not depend on it: its gradient is rounding, which Adam makes much of.
        if not name.endswith("/key/bias"):
            np.testing.assert_allclose(found[name], expected, rtol=2e-4, atol=2e-5, err_msg=name)


class LinenClassifier(nn.Module):
    """Blocks that nn.scan stacks, a convolution, batch normalization and dropout."""

    rate: float = 0.3

    @nn.compact
    def __call__(self, x: Any, *, train: bool) -> Any:
        hidden = nn.Conv(4, (3,), use_bias=False)(x[..., None]).reshape(len(x), -1)
        hidden = nn.BatchNorm(use_running_average=not train, momentum=0.8)(nn.Dense(WIDTH, use_bias=False)(hidden))
        along = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        hidden, _ = nn.scan(LinenBlock, length=LAYERS, **along)()(hidden, None)
        return nn.Dense(CLASSES)(nn.Dropout(self.rate, deterministic=not train)(hidden))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any) -> Any:
        return x + nn.relu(nn.Dense(WIDTH)(nn.LayerNorm()(x))), None


class Bridged(nnx.Module):
    """A model of Linen in one of NNX."""

    def __init__(self, rngs: nnx.Rngs, rate: float = 0.3) -> None:
        self.deterministic = False
        example = jnp.ones((1, FEATURES))
        self.net = nnx.bridge.ToNNX(LinenClassifier(rate), rngs=rngs).lazy_init(example, train=False)

    def __call__(self, x: Any) -> Any:
        if self.deterministic:
            return self.net(x, train=False)
        return self.net(x, train=True, mutable=["batch_stats"])


class Containers(nnx.Module):
    """Layers and an array in dicts, lists and tuples, stacked twice, one shared; others convolve, recur and attend."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.table = nnx.data(
            {"in": nnx.Linear(FEATURES, WIDTH, rngs=rngs), "norms": [nnx.BatchNorm(WIDTH, rngs=rngs)]}
        )
        self.twice = layers(lambda rngs: layers(lambda rngs: nnx.Linear(WIDTH, WIDTH, rngs=rngs), 2, rngs), 3, rngs)
        self.shared = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs)] * 2)
        self.conv = nnx.Conv(1, 4, (3,), param_dtype=jnp.bfloat16, rngs=rngs)
        self.named = nnx.Dict(lstm=nnx.RNN(nnx.LSTMCell(4, 4, rngs=rngs)), bare=nnx.Param(jnp.ones(4)))
        self.attention = nnx.data((nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs),))
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.factors = nnx.data({"last": [jnp.full(4, 0.5)]})
        self.out = nnx.Linear(4, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        hidden = self.table["norms"][0](self.table["in"](x))
        hidden = through(self.twice, hidden, lambda hidden, inner: through(inner, hidden))
        for layer in self.shared:
            hidden = layer(hidden)
        hidden = self.named["lstm"](self.conv(hidden[..., None]).astype(jnp.float32)) * self.named["bare"]
        return self.out(self.dropout(self.attention[0](hidden)[:, -1]) * self.factors["last"][0])


class Structured(Classification):
    optimizer = Trainer.optimizer
    KIND: Any = Bridged

    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        return self.KIND(rngs)


class OfContainers(Structured):
    KIND = Containers


def test_a_classifier_of_linen_is_what_plain_linen_and_optax_make_of_it(tmp_path: Path) -> None:
    class Undropped(Structured):
        def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
            return Bridged(rngs, rate=0.0)

    job = made(tmp_path, "linen", Undropped, steps=STEPS, optimization=CONSTANT)
    job.begin()
    linen = LinenClassifier(0.0)
    variables = jax.eval_shape(lambda: linen.init(jax.random.key(0), jnp.ones((1, FEATURES)), train=False))
    model = {
        name.removeprefix("net/"): jnp.array(array)
        for name, array in job.live_state.model.items()
        if "rngs" not in name
    }
    params, statistics = (
        jax.tree.unflatten(
            jax.tree.structure(collection), [model[name] for name in sorted(flatten_dict(collection, sep="/"))]
        )
        for collection in (variables["params"], variables["batch_stats"])
    )
    mask = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01, b2=0.95, weight_decay=0.5, mask=mask))

    def loss(params: Any, statistics: Any, batch: Any, **words: Any) -> Any:
        logits, changed = linen.apply(
            {"params": params, "batch_stats": statistics}, batch["x"], mutable=["batch_stats"], **words
        )
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), changed["batch_stats"]

    @jax.jit
    def step(params: Any, statistics: Any, opt_state: Any, batch: Any) -> Any:
        gradients, statistics = jax.grad(loss, has_aux=True)(params, statistics, batch, train=True)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), statistics, opt_state

    opt_state = optimizer.init(params)
    for batch in batches(job):
        params, statistics, opt_state = step(params, statistics, opt_state, batch)
    job()
    for collection in (params, statistics):
        for name, expected in flatten_dict(collection, sep="/").items():
            np.testing.assert_allclose(
                job.live_state.model[f"net/{name}"], expected, rtol=2e-4, atol=2e-5, err_msg=name
            )
    # An evaluation is without dropout, and with running statistics.
    held_out, _ = jax.jit(lambda *given: loss(*given, train=False))(params, statistics, samples(37, seed=2))
    assert job.measured["held_out/loss"] == pytest.approx(float(held_out), rel=1e-4)


def test_averaged_parameters_of_a_linen_model_have_statistics_of_their_own(tmp_path: Path) -> None:
    job = trained(tmp_path, "averaged", Structured, steps=STEPS, ema=0.9, optimization=CONSTANT)
    found = {name.removeprefix("net/"): array for name, array in job.model_to_evaluate().items()}
    statistics = {name: array for name, array in found.items() if name.startswith("BatchNorm_0/") and name[-1] in "nr"}
    assert sorted(statistics) == ["BatchNorm_0/mean", "BatchNorm_0/var"]
    given = {"params": found.keys() - statistics.keys(), "batch_stats": statistics.keys()}
    variables = {kind: unflatten_dict({name: found[name] for name in names}, sep="/") for kind, names in given.items()}
    rows = job.data()[np.arange(64)]["x"]
    _, changed = jax.jit(lambda: LinenClassifier(0.0).apply(variables, rows, train=True, mutable=["batch_stats"]))()
    for name, array in statistics.items():
        # Of all rows: what one pass adds to the running ones.
        expected = (flatten_dict(changed["batch_stats"], sep="/")[name] - 0.8 * array) / 0.2
        np.testing.assert_allclose(array, expected, rtol=1e-3, atol=1e-4)
        assert np.abs(job.live_state.variables[f"net/{name}"] - array).max() > 0.01


def test_statistics_are_told_from_what_a_pass_changes_in_another_way() -> None:
    old, new, far = np.array([0.5, -3.0, 1e3]), np.array([2.0, 1e4, 0.25]), np.array([1.5, 4.0, 1001.0])
    kept = np.full(3, 7.0)
    running = _new(old, 0.9 * old + 0.1 * new, 0.9 * (old + far) + 0.1 * new, far, kept)
    np.testing.assert_allclose(running, new, rtol=1e-3, atol=1e-3)
    old, far = np.array([0.5, -3.0, 1.0]), np.array([1.5, 4.0, 2.0])
    unit = [array / np.linalg.norm(array) for array in (old, old + far)]
    np.testing.assert_array_equal(_new(old, *unit, far, kept), kept)
    np.testing.assert_array_equal(_new(old, old, old + far, 0 * far, kept), old)


@pytest.mark.parametrize("cls", [Structured, OfContainers])
def test_a_training_of_any_structure_resumes_bit_for_bit(tmp_path: Path, cls: Any) -> None:
    words = {"optimization": {**CONSTANT, "optimizer": "muon"}, "ema": 0.9}
    whole = trained(tmp_path, "whole", cls, steps=STEPS, **words)
    for steps in (2, STEPS):
        apart = trained(tmp_path, "apart", cls, steps=steps, **words)
    expected, found = arrays(whole), arrays(apart)
    assert expected.keys() == found.keys()
    assert [name for name in expected if expected[name].tobytes() != found[name].tobytes()] == []


def test_the_first_table_says_what_decays_and_what_is_muons(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        job = made(tmp_path, "table", OfContainers, optimization={**CONSTANT, "optimizer": "muon"})
        job.prepare()
    lines = {
        line.split()[0]: line for line in caplog.text.splitlines() if line.startswith(("table/", "twice/", "named/"))
    }
    assert "kernel 8 -> 8, 3x2 stacked  muon, decays" in lines["twice/kernel"]
    assert [word for word in ("bias", "adamw") if word not in lines["twice/bias"].split()] == []
    assert [word for word in ("scale", "adamw") if word not in lines["table/norms/*/scale"].split()] == []
    assert [word for word in ("unknown", "adamw") if word not in lines["named/bare"].split()] == []
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("table: named/bare: of unknown role, so updated by AdamW without weight decay")


def test_a_table_says_nothing_of_an_optimizer_of_ones_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Own(OfContainers):
        optimizer = Classification.optimizer

    with caplog.at_level(logging.INFO):
        made(tmp_path, "own", Own).prepare()
    assert "role" in caplog.text
    assert "updated by" not in caplog.text
    assert "unknown role" not in caplog.text
