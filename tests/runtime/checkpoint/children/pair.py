"""One of two processes that train together: pair.py NUMBER PORT FOLDER SCENARIO..."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from dispatcher.errors import SupersededError
from dispatcher.runtime.checkpoint import CheckpointManager, Contents, RandomState, Retention

NUMBER, PORT, FOLDER, SCENARIOS = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]


def state(value: float) -> dict[str, object]:
    """An array split over both processes, one on both, a number."""
    mesh = jax.make_mesh((2,), ("data",))
    whole = value * np.arange(8.0, dtype=np.float32)
    split = NamedSharding(mesh, PartitionSpec("data"))
    return {
        "split": jax.make_array_from_callback((8,), split, lambda index: whole[index]),
        "copied": jax.make_array_from_callback((8,), NamedSharding(mesh, PartitionSpec()), lambda index: whole[index]),
        "step": int(value),
    }


def check(found: dict[str, object], value: float) -> None:
    """Both parts of it, on both processes."""
    for name in ("split", "copied"):
        whole = multihost_utils.process_allgather(found[name], tiled=True)
        assert np.array_equal(whole[:8], value * np.arange(8.0)), (name, whole)
    assert found["step"] == int(value)


def both(checkpoints: CheckpointManager) -> None:
    """Saves, and restores what each process had for itself."""
    random.seed(NUMBER)
    beside = Contents(random=RandomState.capture(jax.random.key(NUMBER)), position={"at": NUMBER})
    wanted = random.random()
    ref = checkpoints.save(state(1.0), 1, beside=beside)
    checkpoints.save(state(2.0), 2, beside=beside)
    checkpoints.wait()
    restored = checkpoints.load(state(0.0))
    check(restored.tree, 2.0)
    assert restored.contents.position == {"at": NUMBER}
    key = restored.contents.random.restore()
    assert random.random() == wanted
    assert jnp.array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(NUMBER)))
    check(checkpoints.restore(state(0.0), ref), 1.0)
    assert checkpoints.register("step-00000001").step == 1
    check(checkpoints.restore(state(0.0)), 1.0)


def damaged(checkpoints: CheckpointManager) -> None:
    """One process finds the damage; both take the checkpoint before."""
    checkpoints.save(state(1.0), 1)
    checkpoints.save(state(2.0), 2)
    checkpoints.wait()
    if NUMBER == 0:
        victims = sorted(path for path in (FOLDER / "damaged" / "step-00000002").rglob("*") if path.parent.name == "d")
        victims[-1].write_bytes(b"x" * victims[-1].stat().st_size)
    multihost_utils.sync_global_devices("damaged")
    check(checkpoints.restore(state(0.0)), 1.0)


def superseded(checkpoints: CheckpointManager) -> None:
    """The first process finds out; both stop."""
    checkpoints.save(state(1.0), 1)
    checkpoints.wait()
    if NUMBER == 0:
        Path(os.environ["DISPATCHER_ATTEMPT_DIR"], "superseded").touch()
    multihost_utils.sync_global_devices("superseded")
    try:
        checkpoints.save(state(2.0), 2)
    except SupersededError as error:
        assert "superseded" in str(error)
    else:
        raise AssertionError("both must stop")
    check(checkpoints.restore(state(0.0)), 1.0)


def killed(checkpoints: CheckpointManager) -> None:
    """The second process dies in the middle of a save: nothing of it is committed."""
    checkpoints.save(state(1.0), 1)
    checkpoints.wait()
    if NUMBER == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        checkpoints.save(state(2.0), 2)
        checkpoints.wait()
    except Exception as error:  # noqa: BLE001  # whatever the transport says
        print(type(error).__name__, flush=True)
    os._exit(0)


def main() -> None:
    """Runs the scenario; an assertion that fails ends with 1."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{PORT}", 2, NUMBER, heartbeat_timeout_seconds=10)
    for scenario in SCENARIOS:
        with CheckpointManager(FOLDER / scenario, retention=Retention(last=2)) as checkpoints:
            globals()[scenario](checkpoints)
    print(f"process {NUMBER} done", flush=True)


main()
