"""Meshes and partition specs: axes by name, sharded large parameters, and names that are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dispatcher.errors import ConfigError
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.sharding import optimizer_shardings
from dispatcher.runtime.training.placement import Placement, batch_axes, batch_shards, make_mesh

pytestmark = pytest.mark.demo


def topology(count: int, tensor_shards: int = 1) -> Any:
    """Devices that only have to be counted."""
    return SimpleNamespace(devices=tuple(range(count)), tensor_shards=tensor_shards)


@pytest.mark.parametrize(
    ("count", "tensor_shards", "sizes", "expected"),
    [
        (8, 1, {}, {"data": 8, "tensor": 1}),
        (8, 2, {}, {"data": 4, "tensor": 2}),
        (8, 1, {"fsdp": 4}, {"data": 2, "fsdp": 4, "tensor": 1}),
        (8, 1, {"data": 2, "fsdp": -1, "tensor": 2}, {"data": 2, "fsdp": 2, "tensor": 2}),
        (8, 1, {"expert": -1}, {"data": 1, "expert": 8, "tensor": 1}),
    ],
)
def test_sizes_of_a_mesh(
    monkeypatch: pytest.MonkeyPatch, count: int, tensor_shards: int, sizes: dict[str, int], expected: dict[str, int]
) -> None:
    monkeypatch.setattr(
        "dispatcher.runtime.training.placement.Mesh",
        lambda grid, names, axis_types: SimpleNamespace(shape=dict(zip(names, grid.shape, strict=True))),
    )
    mesh = make_mesh(topology(count, tensor_shards), sizes)
    assert mesh.shape == expected
    assert batch_shards(mesh) == expected["data"] * expected.get("fsdp", 1)
    assert set(batch_axes(mesh)) == {"data", "fsdp"} & expected.keys()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 3}, r"data 3 x tensor 1 for 8 devices: their product must be 8"),
        ({"data": -1, "fsdp": -1}, r"at most one of -1"),
        ({"fsdp": 0}, r"expected sizes of 1 or more"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_mesh(topology(8), sizes)


def variable(shape: tuple[int, ...], spec: Any, dtype: Any = np.float32, kind: Any = nnx.Param) -> Any:
    return (), kind(jax.ShapeDtypeStruct(shape, dtype), out_sharding=spec, eager_sharding=False)


@pytest.fixture(scope="module")
def mesh() -> Any:
    return make_mesh(Topology((jax.devices()[0],)), {})


def specs(mesh: Any, rules: dict[str, Any], variables: dict[str, Any], **how: Any) -> dict[str, tuple[Any, ...]]:
    found = Placement(mesh, rules, **how).shardings(variables)
    return {name: tuple(sharding.spec) for name, sharding in found.items()}


def test_logical_axes_are_mapped_and_axes_of_the_mesh_stand_for_themselves(mesh: Any) -> None:
    rules = {"embed": None, "mlp": "tensor", "batch": ["data", "tensor"]}
    found = specs(
        mesh,
        rules,
        {
            "kernel": variable((4, 6), ("embed", "mlp")),
            "plain": variable((4, 6), (None, "tensor")),
            "both": variable((4, 6), ("batch", None)),
            "bare": variable((4,), None),
        },
    )
    assert found == {
        "kernel": (None, "tensor"), "plain": (None, "tensor"), "both": (("data", "tensor"), None), "bare": (None,),
    }  # fmt: skip


def test_moments_are_sharded_as_their_parameters(mesh: Any) -> None:
    """Also over several axes of the mesh; factors of lower rank are replicated."""
    variables = {"kernel": variable((4, 6), (None, "mlp")), "first": variable((4, 6), ("mlp", None))}
    places = Placement(mesh, {"mlp": ["data", "tensor"]}).shardings(variables)
    matrix, factor = jax.ShapeDtypeStruct((4, 6), np.float32), jax.ShapeDtypeStruct((4,), np.float32)
    tree = {
        "mu": {"kernel": matrix},
        "row": {"kernel": factor, "first": factor},
        "count": jax.ShapeDtypeStruct((), np.int32),
    }
    found = optimizer_shardings(tree, places, mesh)
    assert tuple(found["mu"]["kernel"].spec) == (None, ("data", "tensor"))
    assert not any((*found["row"]["kernel"].spec, *found["row"]["first"].spec))
    assert not any(found["count"].spec)


def test_all_names_that_cannot_be_used_are_told_at_once(mesh: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        specs(
            mesh,
            {"embed": "tensor", "mlp": "tensor"},
            {
                "up": variable((4, 6), ("embd", None)),
                "down": variable((4, 6), ("embed", "mlp")),
                "bias": variable((4,), ("embed", "mlp")),
            },
        )
    told = str(caught.value)
    assert "up [4, 6]: unknown axis 'embd' (did you mean 'embed'?)" in told
    assert "down [4, 6]: two of its axes are sharded over 'tensor' of the mesh" in told
    assert "bias [4]: ('embed', 'mlp') has 2 axes, the array 1" in told


def test_rules_for_axes_that_the_mesh_lacks_are_refused(mesh: Any) -> None:
    own = nnx.Param(
        jax.ShapeDtypeStruct((4, 6), np.float32), out_sharding=("mlp", None), sharding_rules=(("mlp", "tensr"),),
        eager_sharding=False,
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"up \[4, 6\]: the rule of 'mlp' has the axis 'tensr' .*'tensor'"):
        specs(mesh, {}, {"up": ((), own)})
    with pytest.raises(ConfigError, match=r"training\.axis_rules\.mlp = 'tensr': the mesh has no such axis .*'tensor'"):
        Placement(mesh, {"mlp": "tensr"})


def test_large_parameters_are_sharded_along_their_largest_free_axis(mesh: Any) -> None:
    large = (2048, 1024)
    found = specs(
        mesh,
        {"mlp": "tensor", "rows": "data"},
        {
            "taken": variable(large, (None, "rows")),
            "first": variable(large, None),
            "last": variable((16, 1024, 2048), None),
            "beside": variable(large, ("mlp", None)),
            "small": variable((1024, 1024), None),
            "state": variable(large, None, kind=nnx.BatchStat),
            "half": variable(large, None, jnp.bfloat16),
        },
        fsdp=True,
    )
    assert found == {
        "taken": (None, "data"),
        "first": ("data", None),
        "last": (None, None, "data"),
        "beside": ("tensor", "data"),
        "small": (None, None),
        "state": (None, None),
        "half": (None, None),
    }
