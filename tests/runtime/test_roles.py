"""What parameters are, as their modules say it: see dispatcher/runtime/roles.py and flax_roles.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import pytest
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime.parameters import AbstractModel
from dispatcher.runtime.roles import Kernel, ParameterKind, Role

ATTENTION = {
    **{f"{part}/kernel": "kernel 8 -> 2x4" for part in ("query", "key", "value")},
    **{f"{part}/bias": "bias" for part in ("query", "key", "value", "out")},
    "out/kernel": "kernel 2x4 -> 8",
}


def texts(make_model: Callable[[nnx.Rngs], nnx.Module]) -> dict[str, str]:
    """The roles of a model's parameters, as the table shows them."""
    model = AbstractModel.made_by(lambda: make_model(nnx.Rngs(0)))
    parameters = {name: variable for name, (_, variable) in model.variables.items() if isinstance(variable, nnx.Param)}
    return {name: model.roles[name].text(variable.shape) for name, variable in parameters.items()}


def stacked(make: Callable[[nnx.Rngs], Any], number: int, axis: int = 0) -> Callable[[nnx.Rngs], Any]:
    """`make` for this many layers in arrays with one more axis."""

    def made(rngs: nnx.Rngs) -> Any:
        return nnx.split_rngs(splits=number)(nnx.vmap(make, in_axes=0, out_axes=axis))(rngs)

    return made


def with_prefix(found: dict[str, str], end: str) -> dict[str, str]:
    """The same roles of stacked layers."""
    return {name: f"{text}, {end}" if text.startswith("kernel") else text for name, text in found.items()}


def without_equation(layer: nnx.Einsum) -> nnx.Einsum:
    layer.einsum_str = None  # type: ignore[assignment]  # it may be given with each call
    return layer


MODULES = {
    "Linear": (lambda rngs: nnx.Linear(8, 4, rngs=rngs), {"kernel": "kernel 8 -> 4", "bias": "bias"}),
    "LinearGeneral": (
        lambda rngs: nnx.LinearGeneral((4, 8), (2, 3), axis=(-2, -1), batch_axis={0: 5}, rngs=rngs),
        {"kernel": "kernel 4x8 -> 2x3, 5 stacked", "bias": "bias"},
    ),
    "Einsum": (
        lambda rngs: nnx.Einsum("btd,dhk->bthk", (8, 2, 4), (2, 4), rngs=rngs),
        {"kernel": "kernel 8 -> 2x4", "bias": "bias"},
    ),
    "Einsum of experts": (
        lambda rngs: nnx.Einsum("...ed,edf->...ef", (3, 8, 4), rngs=rngs),
        {"kernel": "kernel 8 -> 4, 3 stacked"},
    ),
    "Einsum with an equation in each call": (
        lambda rngs: without_equation(nnx.Einsum("...d,dh->...h", (8, 4), rngs=rngs)),
        {"kernel": "kernel"},
    ),
    "Einsum that scales": (
        lambda rngs: nnx.Einsum("...d,d->...d", (8,), kernel_init=nnx.initializers.ones, rngs=rngs),
        {"kernel": "scale"},
    ),
    "Conv": (lambda rngs: nnx.Conv(3, 8, (5, 3), rngs=rngs), {"kernel": "kernel 5x3x3 -> 8", "bias": "bias"}),
    "Conv with groups": (
        lambda rngs: nnx.Conv(8, 8, (3, 3), feature_group_count=8, rngs=rngs),
        {"kernel": "kernel", "bias": "bias"},
    ),
    "ConvTranspose": (
        lambda rngs: nnx.ConvTranspose(3, 8, (2, 2), transpose_kernel=True, use_bias=False, rngs=rngs),
        {"kernel": "kernel 2x2x3 -> 8"},
    ),
    "Embed": (lambda rngs: nnx.Embed(10, 8, rngs=rngs), {"embedding": "embedding"}),
    "LayerNorm": (lambda rngs: nnx.LayerNorm(8, rngs=rngs), {"scale": "scale", "bias": "bias"}),
    "BatchNorm": (lambda rngs: nnx.BatchNorm(8, rngs=rngs), {"scale": "scale", "bias": "bias"}),
    "GroupNorm": (lambda rngs: nnx.GroupNorm(8, num_groups=2, rngs=rngs), {"scale": "scale", "bias": "bias"}),
    "RMSNorm": (lambda rngs: nnx.RMSNorm(8, rngs=rngs), {"scale": "scale"}),
    "MultiHeadAttention": (lambda rngs: nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs), ATTENTION),
    "GRUCell": (
        lambda rngs: nnx.GRUCell(4, 6, rngs=rngs),
        {"dense_i/kernel": "kernel 4 -> 18", "dense_i/bias": "bias", "dense_h/kernel": "kernel 6 -> 18"},
    ),
    "LSTM in an RNN": (
        lambda rngs: nnx.RNN(nnx.OptimizedLSTMCell(4, 6, rngs=rngs)),
        {
            "cell/dense_i/kernel": "kernel 4 -> 24",
            "cell/dense_h/kernel": "kernel 6 -> 24",
            "cell/dense_h/bias": "bias",
        },
    ),
    "LoRA": (
        lambda rngs: nnx.LoRA(8, 2, 4, base_module=nnx.Linear(8, 4, use_bias=False, rngs=rngs), rngs=rngs),
        {"base_module/kernel": "kernel 8 -> 4", "lora_a": "kernel 8 -> 2", "lora_b": "kernel 2 -> 4"},
    ),
    "PReLU": (lambda rngs: nnx.PReLU(), {"negative_slope": "scale"}),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_its_parameters_are_stacked_or_not(name: str) -> None:
    make, expected = MODULES[name]
    assert texts(make) == expected
    twice = {key: text.replace(", 3 stacked", "").replace(", 5 stacked", "") for key, text in expected.items()}
    if twice == expected:
        grouped = {key: text for key, text in expected.items() if text == "kernel"}
        assert texts(stacked(make, 3)) == with_prefix(expected, "3 stacked") | grouped
        assert texts(stacked(stacked(make, 2), 3)) == with_prefix(expected, "3x2 stacked") | grouped


def test_stacked_along_another_axis_than_the_first() -> None:
    assert texts(stacked(lambda rngs: nnx.Linear(8, 16, rngs=rngs), 3, axis=1))["kernel"] == "kernel 8 -> 16, 3 stacked"


class OwnLinear(nnx.Linear):
    """A class of one's own with a parameter that its base does not have."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        super().__init__(8, 4, rngs=rngs)
        self.gain = nnx.Param(jnp.ones(4))


class Stated(nnx.Module):
    """Parameters of a module that Flax does not know."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.weight = nnx.Param(jnp.ones((8, 8)))
        self.position = nnx.Param(jnp.ones((4, 8)), role="embedding")
        self.query = nnx.Param(jnp.ones((8, 2, 4)), role="kernel:ioo")
        self.matrix = nnx.Param(jnp.ones((8, 8)), role="kernel")
        self.gate = nnx.Param(jnp.ones((2, 2)), role="scale")
        self.parts = nnx.data({"bias": nnx.Param(jnp.ones((2, 2))), "kernel": nnx.Param(jnp.ones((2, 3)))})


def test_a_parameter_states_its_role_or_is_named_or_is_unknown() -> None:
    assert texts(OwnLinear) == {"kernel": "kernel 8 -> 4", "bias": "bias", "gain": "unknown"}
    expected = {
        "weight": "unknown",
        "position": "embedding",
        "query": "kernel 8 -> 2x4",
        "matrix": "kernel 8 -> 8",
        "gate": "scale",
        "parts/bias": "bias",
        "parts/kernel": "kernel 2 -> 3",
    }
    assert texts(Stated) == expected
    # A kernel that only its name tells may be of any shape.
    found = with_prefix(expected, "3 stacked") | {"parts/kernel": "kernel"}
    assert texts(stacked(Stated, 3)) == found


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("kernal", "did you mean 'kernel'?"),
        (3, "expected kernel, bias"),
        ("bias:o", "only the axes of a kernel have letters"),
        ("kernel:ix", "expected a letter for each of its last axes"),
        ("kernel:iio", "of an array [8, 4]"),
    ],
)
def test_a_role_that_is_none_is_refused_by_the_name_of_its_parameter(role: Any, said: str) -> None:
    class Wrong(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.weight = nnx.Param(jnp.ones((8, 4)), role=role)

    with pytest.raises(ConfigError, match="weight: role = ") as caught:
        texts(Wrong)
    assert said in str(caught.value)


class Containers(nnx.Module):
    """Modules in all that may hold them, one of them twice."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        def layer() -> nnx.Linear:
            return nnx.Linear(8, 8, use_bias=False, rngs=rngs)

        self.shared = self.again = layer()
        self.plain = nnx.data({"a": [layer(), (layer(),)]})
        self.listed = nnx.List([layer(), nnx.Dict(b=layer())])
        self.sequence = nnx.Sequential(layer(), nnx.relu)


def test_modules_are_found_in_containers_and_once_where_they_are_shared() -> None:
    names = ["again", "plain/a/0", "plain/a/1/0", "listed/0", "listed/1/b", "sequence/layers/0"]
    assert texts(Containers) == {f"{name}/kernel": "kernel 8 -> 8" for name in names}


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any, _: Any = None) -> Any:
        hidden = nn.MultiHeadDotProductAttention(num_heads=2, name="attention")(nn.LayerNorm(name="norm")(x))
        return x + nn.Dense(8, use_bias=False, name="dense")(hidden), None


class LinenNet(nn.Module):
    """Layers of Linen: plain, stacked by a scan, by nn.vmap along another axis, cells, and a parameter of its own."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(8, (3,), name="conv")(x)
        along = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        x, _ = nn.scan(nn.remat(LinenBlock), length=3, **along)(name="blocks")(x, None)
        x = nn.Einsum((8, 2, 4), "btd,dhk->bthk", name="einsum")(x).reshape(x.shape)
        x = nn.DenseGeneral((2, 4), name="general")(x).reshape(x.shape)
        across = {"variable_axes": {"params": 1}, "split_rngs": {"params": True}, "in_axes": None, "out_axes": 0}
        x = nn.vmap(nn.Dense, axis_size=7, **across)(5, use_bias=False, name="ensemble")(x).sum(0)
        cell = nn.SimpleCell(6, name="cell")
        carry, _ = cell(cell.initialize_carry(self.make_rng("params"), x[:, 0].shape), x[:, 0])
        return carry + self.param("offset", nn.initializers.ones, (6,))


class Bridged(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        rows = jnp.ones((2, 5, 8))
        self.net = nnx.bridge.ToNNX(LinenNet(), rngs=rngs).lazy_init(rows)
        self.net.offset.set_metadata(role="bias")
        # Of the same class, in the same place, of other shapes.
        self.narrow, self.wide = (
            nnx.bridge.ToNNX(nn.Dense(size, use_bias=False), rngs=rngs).lazy_init(rows) for size in (8, 16)
        )


def test_modules_of_linen_are_asked_while_they_are_made() -> None:
    found = texts(Bridged)
    attention = {f"attention/{name}": text for name, text in ATTENTION.items()}
    block = {**attention, "norm/scale": "scale", "norm/bias": "bias", "dense/kernel": "kernel 8 -> 8"}
    expected = {
        **{f"net/blocks/{name}": text for name, text in with_prefix(block, "3 stacked").items()},
        "net/conv/kernel": "kernel 3x8 -> 8",
        "net/conv/bias": "bias",
        "net/einsum/kernel": "kernel 8 -> 2x4",
        "net/einsum/bias": "bias",
        "net/general/kernel": "kernel 8 -> 2x4",
        "net/general/bias": "bias",
        "net/ensemble/kernel": "kernel 8 -> 5, 7 stacked",
        "net/offset": "bias",
        "narrow/kernel": "kernel 8 -> 8",
        "wide/kernel": "kernel 8 -> 16",
    }
    cell = {name: text for name, text in found.items() if name.startswith("net/cell/")}
    assert set(cell.values()) == {"kernel 5 -> 6", "kernel 6 -> 6", "bias"}
    assert {name: text for name, text in found.items() if name not in cell} == expected


def test_a_scan_of_linen_that_is_the_whole_model_and_linen_that_nnx_stacks() -> None:
    along = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
    rows = jnp.ones((2, 5, 8))
    blocks = nn.scan(LinenBlock, length=3, **along)()
    found = texts(lambda rngs: nnx.bridge.ToNNX(blocks, rngs=rngs).lazy_init(rows, None))
    assert found["dense/kernel"] == "kernel 8 -> 8, 3 stacked"
    dense = stacked(lambda rngs: nnx.bridge.ToNNX(nn.Dense(16), rngs=rngs).lazy_init(rows), 4)
    assert texts(dense) == {"kernel": "kernel 8 -> 16, 4 stacked", "bias": "bias"}


def test_what_does_not_fit_its_module_is_a_kernel_whose_axes_are_not_known() -> None:
    assert Kernel((8, 4), "io").role((4, 8)) == Role(ParameterKind.KERNEL)
    assert Kernel((8, 4), "io").role((8,)) == Role(ParameterKind.KERNEL)
    assert Kernel((8, 8), "io").role((8, 8, 8)) == Role(ParameterKind.KERNEL, (1,), (2,))
