"""The same training on other meshes: four devices that the CPU pretends to have, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import environment

pytestmark = pytest.mark.demo

SCRIPT = """
import dataclasses, json, sys
import jax, numpy as np
from dispatcher.runtime.configuration import configuration
from dispatcher.runtime.execution import Topology, local
from dispatcher.runtime.jobs.inference import InferenceJob
from stateful_training import Stateful
from tiny_training import CONFIG, Text, Tiny

def job(cls, name, devices, tensor_shards, **training):
    said = {**CONFIG, "training": {**CONFIG["training"], "eval_every": None, **training}}
    said["model"] = {**CONFIG["model"], "dropout": 0.0}
    topology = Topology(tuple(jax.devices()[:devices]), tensor_shards)
    spec = dataclasses.replace(local(sys.argv[1], name), topology=topology)
    with configuration(said):
        return cls(spec)

# Each mesh would compile them.
Tiny.evaluations = lambda self: {}

class Use(InferenceJob):
    MODEL = Tiny.MODEL
    @classmethod
    def config(cls):
        return Text
    def run(self):
        pass

def train(*words, **training):
    made = job(Tiny, *words, batch_size=8, per_device_batch_size=None, save_every=2, **training)
    made()
    return made

def difference(one, other):
    return max(float(np.max(np.abs(np.asarray(one[name]) - np.asarray(other[name])))) for name in one)

alone = train("alone", 1, 1, steps=6)
change = np.max(np.abs(np.asarray(alone.live_state.params["norm/scale"]) - 1))
found = {"devices": jax.device_count(), "trained": float(change)}
for devices, tensor_shards in ((4, 1), (4, 2), (4, 4)):
    spread = train(f"{devices}x{tensor_shards}", devices, tensor_shards, steps=6)
    found[f"{devices}/{tensor_shards}"] = difference(alone.live_state.params, spread.live_state.params)
    query = spread.live_state.params["blocks/0/attention/query/kernel"]
    moments = [leaf for path, leaf in jax.tree_util.tree_flatten_with_path(spread.live_state.opt_state)[0]
               if any(getattr(key, "key", "") == "blocks/0/attention/query/kernel" for key in path)]
    found[f"parts {devices}/{tensor_shards}"] = [leaf.addressable_shards[0].data.shape[1] for leaf in (query, *moments)]

for steps, devices, tensor_shards in ((2, 1, 1), (4, 2, 1), (6, 4, 2)):
    moved = job(Tiny, "moved", devices, tensor_shards, steps=6, batch_size=8, per_device_batch_size=None, save_every=2)
    # As if it had been preempted after so many steps; the learning rate is that of the whole training.
    whole = moved.schedule()
    moved.schedule = lambda whole=whole: whole
    moved.training = dataclasses.replace(moved.training, steps=steps)
    moved()
    assert moved.steps_done == steps
found["moved"] = difference(alone.live_state.params, moved.live_state.params)

def with_state(name, devices, per_device, steps=6):
    made = job(Stateful, name, devices, 1, steps=steps, batch_size=8, per_device_batch_size=per_device)
    made()
    state = made.live_state.model
    return {name: array for name, array in state.items() if not name.endswith("/key")}

# Two microbatches each; the second training moves to four devices.
one = with_state("stateful-one", 1, 4)
with_state("stateful-moved", 1, 4, steps=3)
moved = with_state("stateful-moved", 4, 1)
found["state"] = difference(one, moved)
found["counted"] = [int(state[name]) for state in (one, moved) for name in ("seen", "dropout/rngs/count")]
found["statistics"] = float(np.max(np.abs(np.asarray(one["norm/mean"]))))

prompts = [[1, 4, 7], [2], [9, 12, 15, 2, 5]]
rolled = []
for devices, tensor_shards in ((1, 1), (4, 2), (4, 1)):
    use = job(Use, "use", devices, tensor_shards)
    use.restore_from_path(alone.path_of("step-00000006"))
    rolled.append(use.rollout(prompts, 5))
    assert use.predict(use.pad(prompts)).shape == (3, 5, 16)
found["rollouts agree"] = rolled[0] == rolled[1] == rolled[2] and len(rolled[0]) == 3
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, jax_cache: Path) -> dict[str, Any]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("meshes"))],
        env=environment(jax_cache, XLA_FLAGS=flags),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("mesh", ["4/1", "4/2", "4/4"])
def test_a_mesh_of_any_shape_trains_the_same_model(found: dict[str, Any], mesh: str) -> None:
    assert found["devices"] == 4
    # Sums are taken in another order: far less than what the training changed.
    assert found[mesh] < 1e-3
    assert found["trained"] > 1e-2


def test_matrices_and_their_moments_are_cut_over_the_tensor_shards(found: dict[str, Any]) -> None:
    assert found["parts 4/1"] == [16, 16, 16]
    assert found["parts 4/2"] == [8, 8, 8]
    assert found["parts 4/4"] == [4, 4, 4]


def test_a_training_moves_from_one_to_two_to_four_devices(found: dict[str, Any]) -> None:
    assert found["moved"] < 1e-3


def test_a_models_state_is_that_of_the_whole_batch_on_every_mesh(found: dict[str, Any]) -> None:
    assert found["counted"] == [48, 12, 48, 12]
    assert found["statistics"] > 1e-2
    assert found["state"] < 1e-4


def test_rollouts_are_the_same_on_every_mesh(found: dict[str, Any]) -> None:
    assert found["rollouts agree"]
