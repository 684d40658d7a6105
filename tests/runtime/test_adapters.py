from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_trainings import CLASSES, FEATURES, Classification, arrays, made, samples, trained

from dispatcher.errors import CheckpointError, ConfigError
from dispatcher.runtime.adapters import adapted, add_adapters, merge_adapters, report
from dispatcher.runtime.execution import local
from dispatcher.runtime.jobs.inference import InferenceJob
from dispatcher.runtime.jobs.merge_adapters import MergeAdapters
from dispatcher.runtime.language.transformer import Transformer, TransformerConfig
from dispatcher.runtime.parameters import AbstractModel, arrays_of, parameter_count

pytestmark = pytest.mark.demo

CONFIG = TransformerConfig(
    vocab_size=11, num_layers=1, d_model=16, num_heads=2, num_kv_heads=1, d_ff=24, max_seq_len=16
)
LAYERS = {
    "attention/query": (16, 16),
    "attention/key": (16, 8),
    "attention/value": (16, 8),
    "attention/output": (16, 16),
    "feed_forward/gate": (16, 24),
    "feed_forward/up": (16, 24),
    "feed_forward/down": (24, 16),
}


@pytest.fixture
def model() -> Transformer:
    # In one program: operation by operation a hundred would be compiled.
    return nnx.jit(lambda: Transformer(CONFIG, rngs=nnx.Rngs(0)))()


def test_fresh_adapters_leave_the_model_exactly_as_it_was(model):
    tokens = np.arange(22).reshape(2, 11) % 11
    # One operation at a time: compiled as a whole, the two programs are fused and so rounded differently.
    with jax.disable_jit():
        before = model(tokens)
        add_adapters(model, 2, rngs=nnx.Rngs(3))
        np.testing.assert_array_equal(model(tokens), before)


def test_every_linear_layer_gets_one_of_the_given_rank(model):
    add_adapters(model, 2, rngs=nnx.Rngs(3))
    adapters = arrays_of(model, nnx.LoRAParam)
    assert {name: array.shape for name, array in adapters.items()} == {
        f"blocks/0/{layer}/lora_{letter}": shape
        for layer, (inputs, outputs) in LAYERS.items()
        for letter, shape in (("a", (inputs, 2)), ("b", (2, outputs)))
    }
    assert parameter_count(adapters) == sum(2 * (inputs + outputs) for inputs, outputs in LAYERS.values())
    assert all((adapters[f"blocks/0/{layer}/lora_b"] == 0).all() for layer in LAYERS)


def fill(model: Any, seed: int = 5) -> None:
    """Adapters as a training leaves them: not zero."""
    for number, name in enumerate(adapted(model)):
        layer: Any = model
        for part in name.split("/") if name else ():
            layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
        value = layer.lora_b.get_value()
        drawn = jax.random.normal(jax.random.key(seed + number), value.shape, value.dtype)
        layer.lora_b.set_value(drawn)


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(2, FEATURES, decode=False, rngs=rngs)
        self.output = nnx.Linear(FEATURES, CLASSES, rngs=rngs)
        self.table = nnx.Embed(5, FEATURES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        tokens = jnp.stack([x, jnp.tanh(x), -x], axis=1)
        return self.output(self.attention(tokens + self.table(jnp.arange(3))).mean(axis=1))


class Stacked(nnx.Module):
    """Three layers in arrays with one more axis, run by nnx.scan."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def create(rngs: nnx.Rngs) -> Any:
            return nnx.Linear(FEATURES, FEATURES, rngs=rngs)

        self.layers = create(rngs)
        self.output = nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x: Any, layer: Any) -> Any:
            return x + jnp.tanh(layer(x))

        return self.output(forward(x, self.layers))


class Shared(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(FEATURES, FEATURES, rngs=rngs)
        self.second = self.first
        self.output = nnx.Linear(FEATURES, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.output(self.second(jnp.tanh(self.first(x))))


LAYERS_OF_FLAX = {
    "linear": (lambda rngs: nnx.Linear(6, 4, rngs=rngs), (3, 6)),
    "bfloat16": (lambda rngs: nnx.Linear(6, 4, param_dtype=jnp.bfloat16, dtype=jnp.bfloat16, rngs=rngs), (3, 6)),
    "complex": (lambda rngs: nnx.Linear(6, 4, param_dtype=jnp.complex64, rngs=rngs), (3, 6)),
    "heads": (lambda rngs: nnx.LinearGeneral(6, (2, 4), rngs=rngs), (3, 6)),
    "axes": (lambda rngs: nnx.LinearGeneral((2, 6), 5, axis=(-2, -1), rngs=rngs), (3, 2, 6)),
    "axis": (lambda rngs: nnx.LinearGeneral(6, (2, 4), axis=1, rngs=rngs), (3, 6, 2)),
    "batch": (lambda rngs: nnx.LinearGeneral(6, 4, batch_axis={0: 3}, rngs=rngs), (3, 5, 6)),
    "einsum": (lambda rngs: nnx.Einsum("btd,dnh->btnh", (6, 2, 4), (2, 4), rngs=rngs), (3, 5, 6)),
    "experts": (lambda rngs: nnx.Einsum("...ed,edf->...ef", (3, 6, 4), rngs=rngs), (5, 3, 6)),
}


@pytest.mark.parametrize("kind", LAYERS_OF_FLAX)
def test_an_adapted_layer_computes_what_the_merged_one_does(kind: str) -> None:
    make, shape = LAYERS_OF_FLAX[kind]
    layer = make(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), shape, layer.param_dtype)
    before, names, cls = layer(x), set(arrays_of(layer)), type(layer)
    assert add_adapters(layer, 2, alpha=3.0, rngs=nnx.Rngs(1)) == [""]
    np.testing.assert_array_equal(layer(x), before)
    fill(layer)
    after = layer(x)
    assert after.dtype == before.dtype and np.abs(np.asarray(after - before, np.complex64)).max() > 0.1
    merge_adapters(layer)
    assert (set(arrays_of(layer)), type(layer)) == (names, cls)
    np.testing.assert_allclose(
        *(np.asarray(each, np.complex64) for each in (layer(x), after)),
        rtol=2e-2,
        atol=0.3 if kind == "bfloat16" else 1e-4,
    )


def test_attention_stacked_and_shared_layers_have_adapters(tmp_path: Path) -> None:
    x = jnp.asarray(samples(4, seed=0)["x"])
    for cls, expected in (
        (Attention, [*(f"attention/{name}" for name in ("key", "out", "query", "value")), "output"]),
        (Stacked, ["layers", "output"]),
        (Shared, ["first", "output"]),
    ):
        model = cls(nnx.Rngs(0))
        before = model(x)
        assert add_adapters(model, 2, rngs=nnx.Rngs(1)) == adapted(model) == expected
        np.testing.assert_array_equal(model(x), before)
        fill(model)
        after = model(x)
        assert np.abs(after - before).max() > 0.1
        merge_adapters(model)
        assert adapted(model) == []
        np.testing.assert_allclose(model(x), after, rtol=1e-4, atol=1e-4)


def test_stacked_layers_have_one_adapter_each() -> None:
    model = Stacked(nnx.Rngs(0))
    add_adapters(model, 2, rngs=nnx.Rngs(1))
    a = model.layers.lora_a.get_value()
    assert (a.shape, model.layers.lora_b.shape) == ((3, FEATURES, 2), (3, 2, FEATURES))
    assert (model.layers.lora_a.role, model.layers.lora_b.role) == ("kernel:-io", "kernel:-io")
    # As wide as those of a single layer, whatever the number of layers.
    bound = np.sqrt(6 / FEATURES)
    assert np.abs(a[0] - a[1]).max() > 0.1 and 0.7 * bound < np.abs(a).max() <= bound


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_adapters_of_layers_that_are_stacked_along_any_axis_are_matrices_one_by_one(axis: int) -> None:
    def make() -> Any:
        create = nnx.vmap(lambda rngs: nnx.LinearGeneral(8, 16, use_bias=False, rngs=rngs), in_axes=0, out_axes=axis)
        layers = nnx.split_rngs(splits=3)(create)(nnx.Rngs(0))
        add_adapters(layers, 2, rngs=nnx.Rngs(1))
        return layers

    model = AbstractModel.made_by(make)
    assert {name: model.roles[name].text(array.shape) for name, array in model.shapes().items()} == {
        "kernel": "kernel 8 -> 16, 3 stacked",
        "lora_a": "kernel 8 -> 2, 3 stacked",
        "lora_b": "kernel 2 -> 16, 3 stacked",
    }


def test_layers_are_chosen_by_globs() -> None:
    def chosen(**words: Any) -> list[str]:
        return add_adapters(Attention(nnx.Rngs(0)), 2, rngs=nnx.Rngs(1), **words)

    assert chosen(layers="attention/*", skip="*/out") == [f"attention/{name}" for name in ("key", "query", "value")]
    assert chosen(layers=["output", "attention/query"]) == ["attention/query", "output"]
    with pytest.raises(ConfigError, match=r"layers = 'attention/qery' matches no linear layer .*'attention/query'"):
        chosen(layers="attention/qery")
    with pytest.raises(ConfigError, match=r"skip = 'table' matches no linear layer"):
        chosen(skip="table")
    with pytest.raises(ConfigError, match=r"no layer to adapt; the model has attention/key, .*, output"):
        chosen(skip="*")
    with pytest.raises(ConfigError, match="rank = 0: expected 1 or more"):
        add_adapters(Attention(nnx.Rngs(0)), 0, rngs=nnx.Rngs(1))


class Doubled(nnx.Linear):
    def __call__(self, inputs: Any) -> Any:
        return 2 * super().__call__(inputs)


def test_a_subclass_that_computes_something_else_has_no_adapter() -> None:
    model = nnx.Sequential(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), Doubled(3, 3, rngs=nnx.Rngs(0)))
    assert add_adapters(model, 2, rngs=nnx.Rngs(1)) == ["layers/0"]
    with pytest.raises(ConfigError, match="the model has no layer to adapt: no nnx"):
        add_adapters(model, 2, rngs=nnx.Rngs(1))


def test_a_kernel_that_another_layer_has_too_is_not_merged() -> None:
    model = nnx.Sequential(*(nnx.Linear(3, 3, rngs=nnx.Rngs(0)) for _ in range(2)))
    model.layers[1].kernel = model.layers[0].kernel
    add_adapters(model, 2, rngs=nnx.Rngs(1), layers="layers/1")
    with pytest.raises(ConfigError, match=r"layers/1: layers/0 has the same kernel, which would change too"):
        merge_adapters(model)


class Lora(Classification):
    """Adapters of a model of attention, with averages."""

    BEST = None
    TRAINABLE = nnx.LoRAParam

    def make_base(self, rngs: nnx.Rngs) -> Any:
        return Attention(rngs)

    def make_model(self, rngs: nnx.Rngs) -> Any:
        model = self.make_base(rngs)
        add_adapters(model, 2, alpha=4.0, rngs=rngs)
        return model

    def optimizer(self) -> Any:
        return optax.adam(0.05)

    def evaluations(self) -> Any:
        return {}


def test_a_training_of_adapters_of_attention_is_what_plain_optax_makes_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="dispatcher"):
        job = made(tmp_path, "by-hand", Lora)
        job.begin()
    (told,) = [record.getMessage() for record in caplog.records if "adapters" in record.getMessage()]
    lines = [line.split("  ")[0] for line in told.splitlines()]
    assert lines[3:] == [*(f"attention/{name}" for name in ("key", "out", "query", "value")), "output",
                         "not adapted:", "table/embedding"]  # fmt: skip
    batch = samples(8, seed=4)
    base = {name: np.asarray(array) for name, array in job.live_state.variables.items() if "lora" not in name}
    params = {name: np.asarray(array) for name, array in job.live_state.params.items()}
    plain = AbstractModel.made_by(lambda: Attention(nnx.Rngs(0)))
    optimizer = optax.adam(0.05)

    def loss(params: Any) -> Any:
        kernels = {
            f"{layer}/kernel": base[f"{layer}/kernel"]
            + 2.0 * jnp.tensordot(params[f"{layer}/lora_a"], params[f"{layer}/lora_b"], 1)
            for layer in (name.removesuffix("/lora_a") for name in params if name.endswith("/lora_a"))
        }
        logits = plain.merge({**base, **kernels})(batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(params)
    for _ in range(4):
        params, state, value = step(params, state)
        assert job.update(batch)["loss"] == pytest.approx(float(value), rel=1e-4)
    for name, array in params.items():
        np.testing.assert_allclose(job.live_state.params[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


class HalfLora(Lora):
    """A stacked base in bfloat16."""

    def make_base(self, rngs: nnx.Rngs) -> Any:
        base = Stacked(rngs)
        for _, variable in nnx.iter_graph(base):
            if isinstance(variable, nnx.Param):
                variable.set_value(variable.get_value().astype(jnp.bfloat16))
        return base


def test_adapters_of_a_stacked_bfloat16_base_with_averages_resume_exactly(tmp_path: Path) -> None:
    words = {"ema": 0.9, "per_device_batch_size": 4}
    whole = trained(tmp_path, "whole", HalfLora, **words)
    state = whole.live_state
    assert {array.dtype for array in state.params.values()} == {jnp.dtype("float32")}
    assert state.variables["layers/kernel"].dtype == jnp.bfloat16
    assert state.ema.keys() == state.params.keys()
    assert any(np.abs(array).max() > 0 for name, array in state.params.items() if name.endswith("lora_b"))
    for steps in (3, 6):
        apart = trained(tmp_path, "apart", HalfLora, steps=steps, **words)
    found, expected = arrays(apart), arrays(whole)
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in found)


class Base(InferenceJob[None, Attention]):
    """Knows nothing of adapters."""

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return Attention(rngs)

    def run(self) -> None:
        return None


class Merge(MergeAdapters[None]):
    TRAINER = Lora


def test_merged_adapters_are_a_checkpoint_of_the_base_model(tmp_path: Path) -> None:
    job = trained(tmp_path, "lora", Lora)
    saved = job.path_of("step-00000006")
    x = samples(5, seed=7)["x"]
    with_adapters = job.setup.layout.model.merge(job.live_state.model)(x)
    with pytest.raises(CheckpointError, match=r"has adapters that the model does not have \(attention/key/lora_a"):
        Base.from_checkpoint_path(saved, local(tmp_path, "base"))
    merging = Merge.from_checkpoint_path(saved, local(tmp_path, "merge"))
    assert merging() == {"step": 6, "layers": 5}
    base = Base.from_checkpoint_path(merging.path_of("merged"), local(tmp_path, "base"))
    assert base.arrays.keys() == arrays_of(Attention(nnx.Rngs(0))).keys()
    np.testing.assert_allclose(base.predict(x), with_adapters, rtol=1e-4, atol=1e-4)


def test_a_model_without_adapters_has_no_report() -> None:
    assert report(AbstractModel.made_by(lambda: Attention(nnx.Rngs(0)))) is None
