"""kill -9 after every call that changes a file: the last commit stands, and the next save goes on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dispatcher.runtime.checkpoint import CheckpointManager, Retention, arrays

HERE = Path(__file__).parent

# Before the commit the calls are Orbax's, and many of them are alike.
EVERY_OTHER = 9


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


def copied(written: Path) -> Callable[..., SimpleNamespace]:
    """In the place of Orbax: arrays that it has written before."""

    def begin_saving(place: Path, *_: Any, **__: Any) -> SimpleNamespace:
        shutil.copytree(written, place)
        return SimpleNamespace(result=lambda: None)

    return begin_saving


@pytest.fixture
def killed(tmp_path, child, countdown, monkeypatch) -> Callable[..., list[int]]:
    """Saves, killed after each of the calls that are chosen; the steps that were found then."""

    def run(name: str, begin: str, every: int) -> list[int]:
        for step, folder in enumerate(("prepared", "second", "third"), 1):
            with CheckpointManager(tmp_path / folder) as checkpoints:
                checkpoints.save(tree(step), step)
        # NumPy starts threads when it is imported, and this one forks.
        environment = {"LD_PRELOAD": str(countdown), "OPENBLAS_NUM_THREADS": "1"}
        numbers = child("crash.py", tmp_path, name, begin, every, **environment, timeout_s=280).split()
        if begin == "commit":
            # Orbax has done its part before, and each next save would repeat that.
            monkeypatch.setattr(arrays, "begin_saving", copied(tmp_path / "third" / "step-00000003" / arrays.ARRAYS))
        return [examine(tmp_path / f"{begin}{number}") for number in numbers]

    return run


@pytest.mark.parametrize("name", ["", "step-00000001"], ids=["next", "replaced"])
def test_killed_after_any_call_of_a_commit(killed, name):
    found = killed(name, "commit", 1)
    # Orbax does not always write the same number of files, so where exactly the commit is differs a little.
    assert len(found) > 20, found
    assert (found[0], found[-1]) == (1, 2), found


@pytest.mark.parametrize("every", [EVERY_OTHER, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.long])])
def test_killed_while_the_arrays_are_written(killed, every):
    found = killed("", "call", every)
    assert found[0] == 1
