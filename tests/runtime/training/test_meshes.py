"""The same training on meshes of eight devices that the CPU pretends to have, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import environment

pytestmark = [pytest.mark.demo, pytest.mark.slow]

SCRIPT = """
import json, logging, sys
import jax, numpy as np
from dispatcher.runtime.execution import Topology
from small_trainings import PlainWideClassification, WideClassification, arrays, made

said = []
class Notes(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
log = logging.getLogger("dispatcher.runtime.training.trainer")
log.addHandler(Notes())
log.setLevel(logging.INFO)

EIGHT = Topology(tuple(jax.devices()))
RULES = {"embed": None, "mlp": "tensor"}
MESHES = {
    "alone": dict(cls=PlainWideClassification),
    "data": dict(cls=PlainWideClassification, topology=EIGHT),
    "fsdp": dict(cls=PlainWideClassification, topology=EIGHT, mesh={"fsdp": 8}, fsdp=True),
    "tensor": dict(cls=WideClassification, topology=EIGHT, mesh={"tensor": 8}, axis_rules=RULES),
    "mixed": dict(cls=WideClassification, topology=EIGHT, mesh={"data": 2, "fsdp": 2, "tensor": 2}, fsdp=True,
                  axis_rules=RULES),
}

def job(name, mesh):
    made_one = made(sys.argv[1], name, steps=3, **MESHES[mesh])
    if mesh not in ("alone", "mixed"):
        # To compile it everywhere would take long.
        made_one.evaluations = lambda: {}
    return made_one

def bytes_on_one(state):
    first = jax.devices()[0]
    leaves = jax.tree.leaves((state.params, state.opt_state))
    return sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards if shard.device == first)

def kernel_specs(job):
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(job.live_state.opt_state):
        name = jax.tree_util.keystr(path)
        if "up/kernel" in name and leaf.ndim == 2:
            found[name] = leaf
    leaves = [job.live_state.params["up/kernel"], *found.values()]
    # Trailing axes that are not sharded may be left out.
    return [[*leaf.sharding.spec, None, None][:2] for leaf in leaves]

found, states = {}, {}
for mesh in MESHES:
    trained = job(mesh, mesh)
    trained()
    states[mesh] = arrays(trained)
    lines = [json.loads(line) for line in open(trained.spec.result_path("metrics.jsonl"))]
    found[mesh] = {
        "losses": [line["loss"] for line in lines],
        "held_out": [trained.measured.get(f"held_out/{name}") for name in ("loss", "accuracy")],
        "bytes": bytes_on_one(trained.live_state),
        "specs": kernel_specs(trained),
        "table": [text for text in said if "bytes per device" in text][-1],
    }
wrong = []
for target in MESHES:
    moved = job("moved-" + target, target)
    for source in MESHES:
        moved.restore_from_path(f"default/default/{source}/step-00000003")
        now = arrays(moved)
        wrong += [f"{source} {target} {name}" for name, array in states[source].items()
                  if array.tobytes() != now[name].tobytes()]
        found[target]["restored"] = bytes_on_one(moved.live_state)
        assert len(now) > 20
found["wrong"] = wrong
print(json.dumps(found))
"""

# Adapters of attention and of a complex layer, of which every array is sharded, however small.
ADAPTED = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from dispatcher.runtime.adapters import add_adapters
from dispatcher.runtime.execution import Topology
from dispatcher.runtime.training import placement
from dispatcher.runtime.training.trainer import Trainer
from small_trainings import CLASSES, FEATURES, Classification, arrays, made

placement._FSDP_ABOVE_BYTES = 0

class Model(nnx.Module):
    def __init__(self, rngs):
        self.enter = nnx.Linear(FEATURES, 8, dtype=jnp.complex64, param_dtype=jnp.complex64, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.output = nnx.Linear(8, CLASSES, rngs=rngs)
        add_adapters(self, 2, rngs=rngs)
    def __call__(self, x):
        hidden = jnp.abs(self.enter(x))
        return self.output(self.attention(jnp.stack([hidden, jnp.tanh(hidden)], 1)).mean(1))

class Adapted(Classification):
    BEST = None
    optimizer = Trainer.optimizer
    def make_model(self, rngs):
        return Model(rngs)
    def evaluations(self):
        return {}

def job(name, **words):
    return made(sys.argv[1], name, Adapted, steps=4, ema=0.9, per_device_batch_size=2,
                optimization={"schedule": "constant", "warmup": 0.0, "lr": 0.01}, **words)

SHARDED = dict(topology=Topology(tuple(jax.devices()[:4])), mesh={"data": 2, "fsdp": 2}, fsdp=True)
alone, sharded = job("alone"), job("sharded", **SHARDED)
alone(), sharded()
begun, expected, found = job("begun"), arrays(alone), arrays(sharded)
begun.begin()
before = arrays(begun)
moved = job("moved", **SHARDED)
moved.restore_from_path("default/default/alone/step-00000004")
print(json.dumps({
    "sharded": [jax.tree_util.keystr(path) for path, leaf in jax.tree_util.tree_leaves_with_path(sharded.live_state)
                if "fsdp" in leaf.sharding.spec],
    # A softmax does not depend on the bias of keys: its gradient is rounding, which Adam makes much of.
    "wrong": [name for name in expected if "key/bias" not in name
              and not np.allclose(found[name], expected[name], rtol=1e-3, atol=1e-4)],
    "same": [name for name in expected if "params" in name and np.array_equal(before[name], expected[name])],
    "moved": [name for name, array in arrays(moved).items() if array.tobytes() != expected[name].tobytes()],
}))
"""


def said_by(script: str, directory: Path, jax_cache: Path) -> dict[str, Any]:
    """What a script prints that runs on eight devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        env=environment(jax_cache, XLA_FLAGS=flags),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, jax_cache: Path) -> dict[str, Any]:
    return said_by(SCRIPT, tmp_path_factory.mktemp("meshes"), jax_cache)


MESHES = ("data", "fsdp", "tensor", "mixed")


@pytest.mark.parametrize("mesh", MESHES)
def test_a_training_has_the_same_losses_on_every_mesh(found: dict[str, Any], mesh: str) -> None:
    alone, spread = found["alone"], found[mesh]
    assert len(alone["losses"]) == 3
    assert alone["losses"][-1] < alone["losses"][0] - 0.1
    np.testing.assert_allclose(spread["losses"], alone["losses"], rtol=2e-4)


def test_an_evaluation_counts_each_row_once_on_every_mesh(found: dict[str, Any]) -> None:
    """Of 37 rows, which no number of devices divides."""
    assert found["data"]["held_out"] == [None, None]
    np.testing.assert_allclose(found["mixed"]["held_out"], found["alone"]["held_out"], rtol=2e-3)


@pytest.mark.parametrize("mesh", MESHES[1:])
def test_parameters_and_their_moments_take_less_memory_of_a_device(found: dict[str, Any], mesh: str) -> None:
    whole = found["alone"]["bytes"]
    assert found["data"]["bytes"] == whole
    # All but the two small layers is divided by eight; with `mixed` by the axes tensor and fsdp alone.
    assert found[mesh]["bytes"] < whole / (3.8 if mesh == "mixed" else 7)
    assert found[mesh]["restored"] == found[mesh]["bytes"]


@pytest.mark.parametrize(
    ("mesh", "spec"),
    [
        ("data", [None, None]),
        ("fsdp", [None, "fsdp"]),
        ("tensor", [None, "tensor"]),
        ("mixed", ["fsdp", "tensor"]),
    ],
)
def test_moments_are_sharded_as_their_parameters(found: dict[str, Any], mesh: str, spec: list[Any]) -> None:
    assert found[mesh]["specs"] == [spec] * 3


def test_the_table_of_arrays_is_logged(found: dict[str, Any]) -> None:
    lines = found["mixed"]["table"].splitlines()
    assert "{'data': 2, 'fsdp': 2, 'tensor': 2}" in lines[0]
    cells = next(line.split() for line in lines if line.startswith("up/kernel"))
    role = ["kernel", "512", "->", "2304"]
    assert cells == ["up/kernel", "[512,", "2304]", "float32", *role, "fsdp,", "tensor", f"{512 * 2304:,}"]
    assert any(line.startswith("optimizer") for line in lines)


def test_a_checkpoint_of_any_mesh_is_restored_onto_any_other(found: dict[str, Any]) -> None:
    assert found["wrong"] == []
    assert set(found) == {"alone", *MESHES, "wrong"}


def test_adapters_and_complex_parameters_are_sharded_with_their_moments(tmp_path: Path, jax_cache: Path) -> None:
    told = said_by(ADAPTED, tmp_path, jax_cache)
    assert (told["wrong"], told["same"], told["moved"]) == ([], [], [])
    for layer in ("enter", "attention/query", "output"):
        for name in ("kernel", "lora_a", "lora_b"):
            # The parameter, its average and its two moments.
            assert len([one for one in told["sharded"] if f"'{layer}/{name}'" in one]) == 4, (layer, name)
