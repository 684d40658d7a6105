"""Attempts of a trainer in processes of their own, preempted or superseded at every moment."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet import wait_until
from interrupted_training import FILE, signalled, waiting
from tiny_runs import (
    Attempt,
    arrays_of_checkpoints,
    assert_same_bits,
    free_port,
    metric_lines,
    one_of_two,
    tiny_entry,
)
from tiny_training import made

from dispatcher import contract

pytestmark = pytest.mark.demo

# Each says on the disk that it has come to the moment in question, and then takes its time.
MOMENTS = """
import ctypes, os, sys, time
from pathlib import Path

from dispatcher.checkpoints.directory import DirectoryStorage
from dispatcher.runtime.registry import job
from tiny_training import Tiny

HERE = Path(os.environ["MOMENTS"])

def reached(moment):
    (HERE / moment).write_text(str(os.getpid()))

if os.environ.get("AT_IMPORT"):
    reached("import")
    time.sleep(600)

@job("tests/made-slowly")
class MadeSlowly(Tiny):
    def make_model(self, rngs):
        reached("make")
        time.sleep(600)

@job("tests/compiled-slowly")
class CompiledSlowly(Tiny):
    def evaluations(self):
        # Else the loss is traced once more, before the training begins.
        return {}

    def loss(self, model, batch, rngs):
        reached("compile")
        # As a compiler does: without a look at signals.
        for _ in range(20):
            ctypes.CDLL(None).sleep(30)

@job("tests/probed-slowly")
class ProbedSlowly(Tiny):
    def probe_batch_size(self, per_device, accumulation_steps):
        reached("probe")
        time.sleep(600)

@job("tests/evaluated-slowly")
class EvaluatedSlowly(Tiny):
    def evaluations(self):
        source = super().evaluations()["held_out"]
        trainer = self

        class Slow:
            def __len__(self):
                return len(source)

            def __getitem__(self, index):
                if trainer.steps_done == 20:
                    reached("evaluation")
                    time.sleep(0.2)
                return source[index]

        return {"held_out": Slow()}

@job("tests/committed-slowly")
class CommittedSlowly(Tiny):
    def result(self):
        reached("row")
        return super().result()

publish = DirectoryStorage.publish

def slowly(self, staged, name, draft, guard):
    if name == os.environ.get("SLOW_COMMIT"):
        reached("commit")
        while not (HERE / "told").exists():
            time.sleep(0.01)
    return publish(self, staged, name, draft, guard)

DirectoryStorage.publish = slowly
"""


class Moments:
    """Attempts of the jobs above in one workspace."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self._cache = cache
        self._file = root / "moments.py"
        root.mkdir()
        self._file.write_text(MOMENTS)

    def start(self, job: str, number: int = 1, *, env: dict[str, str] | None = None, **training: Any) -> Attempt:
        entry = tiny_entry(self._file, job=f"tests/{job}", **training)
        return Attempt(self.root, self._cache, number, entry, MOMENTS=str(self.root), **(env or {}))

    def reached(self, attempt: Attempt, moment: str) -> int:
        """Wait for the moment; the process that has come to it."""
        path = self.root / moment
        attempt.wait_for(lambda: path.exists() and path.read_text(), moment)
        return int(path.read_text())

    def names(self) -> list[str]:
        """The checkpoints that are committed."""
        return sorted(path.parent.name for path in self.root.glob("runs/checkpoints/*/*/tiny/*/manifest.json"))


@pytest.fixture
def moments(tmp_path: Path, jax_cache: Path) -> Moments:
    return Moments(tmp_path / "workspace", jax_cache)


WORDS = {"steps": 40, "save_every": 20, "eval_every": 20}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, jax_cache: Path) -> tuple[Any, Any]:
    """The arrays of the checkpoints and the metrics of an uninterrupted training."""
    root = tmp_path_factory.mktemp("undisturbed")
    attempt = Attempt(root, jax_cache, 1, tiny_entry(**WORDS))
    assert attempt.end() == 0
    return outcome(root, attempt)


def outcome(root: Path, last: Attempt) -> tuple[Any, Any]:
    return arrays_of_checkpoints(made(root / "runs", **WORDS)), metric_lines(last.metrics)


def assert_same_outcome(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    for one, other in zip(expected[0], found[0], strict=True):
        assert_same_bits(one, other)
    assert found[1] == expected[1]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("import", signal.SIGTERM),
        ("make", signal.SIGUSR1),
        pytest.param("import", signal.SIGUSR1, marks=pytest.mark.long),
        pytest.param("make", signal.SIGTERM, marks=pytest.mark.long),
    ],
)
def test_before_there_is_something_to_save_it_leaves_at_once(moments: Moments, moment: str, number: int) -> None:
    attempt = moments.start("made-slowly", env={"AT_IMPORT": "1"} if moment == "import" else {})
    moments.reached(attempt, moment)
    attempt.send(number)
    assert attempt.end() == 75
    assert f"{signal.Signals(number).name}: nothing to save, exiting" in attempt.said
    assert "Traceback" not in attempt.said


def test_a_compiler_that_takes_longer_than_the_bound_is_cut_off(moments: Moments) -> None:
    attempt = moments.start("compiled-slowly", preemption_timeout_s=1.0)
    moments.reached(attempt, "compile")
    attempt.send(signal.SIGTERM)
    assert attempt.end() == 75
    assert "not saved within 1 s: exiting" in attempt.said


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_search_for_the_batch_size_ends_with_its_probe(moments: Moments, whole_group: bool) -> None:
    attempt = moments.start("probed-slowly", per_device_batch_size=-1)
    probe = moments.reached(attempt, "probe")
    assert probe != attempt.process.pid
    if whole_group:
        # As a wrapper does.
        os.killpg(attempt.process.pid, signal.SIGTERM)
    else:
        attempt.send(signal.SIGTERM)
    assert attempt.process.wait(60) == 75, attempt.said
    assert not Path(f"/proc/{probe}").exists(), "the probe goes on using the device"
    attempt.end()


def test_an_evaluation_is_cut_off_and_done_by_the_next_attempt(moments: Moments, undisturbed: Any) -> None:
    first = moments.start("evaluated-slowly", **WORDS)
    moments.reached(first, "evaluation")
    first.send(signal.SIGTERM)
    assert first.end() == 75
    assert "preempted at step 20 of 40, saved" in first.said
    assert first.last_step() == 19
    assert moments.names() == ["step-00000020"]

    second = moments.start("tiny", 2, **WORDS)
    assert second.end() == 0
    assert "resuming from step 20 of 40" in second.said
    assert_same_outcome(outcome(moments.root, second), undisturbed)


@pytest.mark.slow
def test_an_evaluation_of_two_processes_is_cut_off_when_one_is_told(moments: Moments) -> None:
    address = f"127.0.0.1:{free_port()}"
    pair = [moments.start("evaluated-slowly", env=one_of_two(address, number), **WORDS) for number in range(2)]
    moments.reached(pair[0], "evaluation")
    pair[1].send(signal.SIGTERM)
    try:
        assert [attempt.end() for attempt in pair] == [75, 75]
    finally:
        for attempt in pair:
            attempt.kill()
    assert all("preempted at step 20 of 40, saved" in attempt.said for attempt in pair)
    assert moments.names() == ["step-00000020"]


def test_a_signal_during_a_save_loses_neither_it_nor_the_steps_since(moments: Moments) -> None:
    words = {"save_every": 10, "eval_every": None, "keep": 1000, "log_every": 10}
    attempt = moments.start("committed-slowly", env={"SLOW_COMMIT": "step-00000020"}, **words)
    moments.reached(attempt, "commit")
    attempt.send(signal.SIGTERM)
    (moments.root / "told").touch()
    assert attempt.end() == 75
    names = moments.names()
    assert names[:2] == ["step-00000010", "step-00000020"]
    assert f"preempted at step {int(names[-1][-8:])} of 40, saved" in attempt.said


def test_a_signal_after_the_last_step_does_not_cost_its_checkpoint(moments: Moments) -> None:
    attempt = moments.start("committed-slowly", env={"SLOW_COMMIT": "best"}, eval_every=None)
    moments.reached(attempt, "commit")
    # Its last step is done and evaluated, and no row is there yet.
    assert not (moments.root / "row").exists()
    attempt.send(signal.SIGTERM)
    (moments.root / "told").touch()
    assert attempt.end() == 0
    assert moments.names() == ["best", "step-00000040"]
    assert json.loads((attempt.directory / contract.RESULT_FILE).read_text())["steps"] == 40


def test_a_superseded_attempt_stops_and_commits_nothing(tmp_path: Path, jax_cache: Path) -> None:
    entry = tiny_entry(FILE, job="tests/interrupted", save_every=10, eval_every=None)
    go_on = tmp_path / "go on"
    old = Attempt(tmp_path, jax_cache, 1, entry, **waiting(25, go_on))
    old.wait_for(lambda: old.last_step() >= 23, "step 23")
    (old.directory / contract.SUPERSEDED_FILE).touch()
    go_on.touch()
    assert old.end() == 1
    assert f"attempt 1 of tiny was superseded ({old.directory}/superseded exists)" in old.said
    assert "Nothing was committed; this attempt must stop" in old.said
    assert "Traceback" not in old.said
    assert not (old.directory / contract.RESULT_FILE).exists()
    saved = sorted(tmp_path.glob("runs/checkpoints/*/*/tiny/step-*/manifest.json"))
    assert saved[-1].parent.name <= "step-00000020"


@pytest.mark.slow
def test_an_attempt_that_was_cut_off_finds_that_it_has_been_replaced(
    tmp_path: Path, jax_cache: Path, undisturbed: Any
) -> None:
    """Its host sees no sign in its directory; the checkpoints say it."""
    entry = tiny_entry(FILE, job="tests/interrupted", **WORDS)
    old = Attempt(tmp_path, jax_cache, 1, entry, **signalled(30, signal.SIGSTOP))
    old.wait_for(lambda: psutil.Process(old.process.pid).status() == psutil.STATUS_STOPPED, "step 30")
    new = Attempt(tmp_path, jax_cache, 2, entry)
    assert new.end() == 0
    checkpoints = tmp_path / "runs/checkpoints/default/default/tiny"
    row = tmp_path / "runs/results/default/default/tiny/result.json"

    def kept() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (*checkpoints.glob("*/*.json"), checkpoints / "latest", row)}

    before = kept()
    old.send(signal.SIGCONT)
    assert old.end() == 1
    assert "attempt 2 of tiny has saved" in old.said
    assert "so attempt 1 is no longer the current one" in old.said
    # It may have been stopped between its look at the fence and the commit: what comes so late is old.
    assert kept().items() >= before.items()
    wait_until(lambda: not (checkpoints / "ckpt.tmp").exists(), "what it had begun is tidied up")
    assert_same_outcome(outcome(tmp_path, new), undisturbed)
