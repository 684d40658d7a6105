"""kill -9 after every call that changes a file: the last commit stands, and the next save goes on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from dispatcher.runtime.checkpoint import CheckpointManager, Retention

HERE = Path(__file__).parent

# The last calls of a save are the commit, the pointer and the removal of older ones; those before are Orbax's, and
# many of them are alike.
COMMIT_CALLS = 60
EVERY_OTHER = 7


@pytest.fixture(scope="session")
def countdown(tmp_path_factory) -> Path:
    """Counts a process's calls, and kills it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a process that is killed at its n-th call needs a C compiler")
    library = tmp_path_factory.mktemp("countdown") / "countdown.so"
    source = HERE / "children" / "countdown.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def tree(step: int) -> dict:
    return {"w": jnp.full((4, 3), float(step)), "seen": np.arange(2)}


def examine(folder: Path) -> int:
    """The step that is found, after looking at everything that must hold."""
    with CheckpointManager(folder, retention=Retention(last=1)) as checkpoints:
        latest = checkpoints.latest()
        assert latest is not None, "the checkpoint before it is gone"
        found = checkpoints.load(tree(0))
        assert found.ref == latest, "the latest was damaged"
        assert np.array_equal(found.tree["w"], tree(latest.step)["w"])
        assert not (folder / "damaged").exists()
        checkpoints.save(tree(3), 3)
        checkpoints.wait()
        assert checkpoints.latest().step == 3
        assert checkpoints.restore(tree(0))["w"][0, 0] == 3
        left = [each.name for each in checkpoints.checkpoints()]
        assert left == ["step-00000003"], left
    assert not (folder / "ckpt.tmp").exists(), list((folder / "ckpt.tmp").iterdir())
    return latest.step


def numbers(total: int, thorough: bool) -> list[int]:
    before = range(1, total - COMMIT_CALLS, 1 if thorough else EVERY_OTHER)
    return [*before, *range(max(1, total - COMMIT_CALLS), total + 1)]


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["", "step-00000001"], ids=["next", "replaced"])
def test_killed_anywhere(tmp_path, child, countdown, name, thorough):
    with CheckpointManager(tmp_path / "prepared") as checkpoints:
        checkpoints.save(tree(1), 1)
    total = int(child("crash.py", tmp_path, name, 0, LD_PRELOAD=str(countdown)))
    assert total > COMMIT_CALLS
    chosen = numbers(total, thorough)
    child("crash.py", tmp_path, name, *chosen, LD_PRELOAD=str(countdown), timeout_s=280)
    found = [examine(tmp_path / str(number)) for number in chosen]
    assert found[0] == 1, "killed at its first call it had saved already"
    assert found[-1] == 2, "killed after its last call it had not saved"
    # Threads do not always make their calls in one order, so a few around the commit may change places.
    commit = found.index(2)
    assert all(step == 2 for step in found[commit + 5 :]), found
