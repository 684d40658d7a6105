"""The search for a batch size: its course with made-up devices, and a real one in too little memory."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import nnx
from small_trainings import Classification, made
from tiny_runs import environment

from dispatcher.errors import BatchSizeError
from dispatcher.runtime import probe
from dispatcher.runtime.batch_size import (
    FIRST_TIMEOUT_S,
    MIN_TIMEOUT_S,
    TIMEOUT_FACTOR,
    ProbeResult,
    cache_key,
    candidates,
    largest_that_fits,
    read_cache,
    write_cache,
)
from dispatcher.runtime.configuration import defaults
from dispatcher.runtime.jobs import batch_size_finder
from dispatcher.runtime.optimizers import OptimizerConfig
from dispatcher.runtime.places import layout
from dispatcher.runtime.schedules import ScheduleConfig
from dispatcher.runtime.training.data import Arrays, Streamed


class Device:
    """Takes `room` rows, and so many seconds for each try; keeps what was tried and with which limits."""

    def __init__(self, room: int, seconds: float = 1.0) -> None:
        self.room = room
        self.seconds = seconds
        self.tried: list[int] = []
        self.limits_s: list[float] = []

    def __call__(self, rows: int, timeout_s: float) -> ProbeResult:
        self.tried.append(rows)
        self.limits_s.append(timeout_s)
        return ProbeResult(rows <= self.room, self.seconds, "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("room", [1, 2, 3, 5, 64, 100, 511, 512, 513, 1000, 1023, 1024, 5000])
def test_the_largest_is_found(room: int) -> None:
    device = Device(room)
    assert largest_that_fits(device) == min(room, 1024)
    assert len(device.tried) == len(set(device.tried)) <= 20


@pytest.mark.parametrize("most", [1, 2, 7, 96, 1024, 3000])
@pytest.mark.parametrize("room", [1, 5, 90, 4000])
def test_never_more_is_tried_than_is_needed(most: int, room: int) -> None:
    device = Device(room)
    assert largest_that_fits(device, most) == min(room, most, 1024)
    assert max(device.tried) == min(most, 1024)


def test_the_course_of_a_search() -> None:
    device = Device(11)
    assert largest_that_fits(device, 50) == 11
    assert device.tried == [50, 32, 16, 10, 13, 11, 12]


def test_what_cannot_be_used_is_not_told_apart() -> None:
    device = Device(50)
    assert largest_that_fits(device, 512, lambda rows: 512 % rows == 0) == 32
    assert device.tried == [512, 256, 128, 64, 32]
    device = Device(50)
    assert largest_that_fits(device, 96, lambda rows: 96 % rows == 0) >= 48
    assert device.tried == [96, 64, 32, 48]


def test_candidates() -> None:
    assert candidates(1024) == [1024, 512, 256, 128, 64, 32, 16, 10, 8, 4, 3, 2, 1]
    assert candidates(96) == [96, 64, 32, 16, 10, 8, 4, 3, 2, 1]
    assert candidates(1) == [1]


def test_nothing_fits() -> None:
    with pytest.raises(BatchSizeError, match="not even one row fits"):
        largest_that_fits(Device(0))


def test_time_limits_follow_what_probes_have_taken() -> None:
    device = Device(1, seconds=100.0)
    largest_that_fits(device, 4)
    assert device.limits_s == [FIRST_TIMEOUT_S, *[TIMEOUT_FACTOR * 100] * 3]
    quick = Device(1, seconds=0.5)
    largest_that_fits(quick, 4)
    assert quick.limits_s == [FIRST_TIMEOUT_S, *[MIN_TIMEOUT_S] * 3]


def test_a_probe_that_hangs_says_nothing_about_how_long_others_take() -> None:
    limits_s: list[float] = []

    def hangs_at_first(rows: int, timeout_s: float) -> ProbeResult:
        limits_s.append(timeout_s)
        return ProbeResult(False, timeout_s, "not ready") if rows > 4 else ProbeResult(True, 30.0)

    assert largest_that_fits(hangs_at_first, 8) == 4
    assert limits_s == [FIRST_TIMEOUT_S, FIRST_TIMEOUT_S, TIMEOUT_FACTOR * 30, TIMEOUT_FACTOR * 30]


@pytest.mark.parametrize(
    "said",
    [
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 1344808832 bytes.",
        "jax.errors.JaxRuntimeError: INTERNAL: Error dispatching computation: Out of memory allocating 10 bytes.",
        "jax.errors.JaxRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.00 GiB",
    ],
)
def test_what_is_taken_as_too_large(said: str) -> None:
    result = probe._result(1, f"Traceback:\n{said}\n", 2.0, 8)
    assert result == ProbeResult(False, 2.0, said)


def test_a_process_that_the_kernel_killed_was_too_large() -> None:
    assert probe._result(-9, "", 2.0, 8) == ProbeResult(False, 2.0, "killed by the kernel")


def test_another_failure_is_no_question_of_size() -> None:
    expected = r"(?s)batch size 8 failed with exit status 1, not for lack of memory:.*no such file"
    with pytest.raises(BatchSizeError, match=expected):
        probe._result(1, "Traceback:\nFileNotFoundError: no such file\n", 2.0, 8)


def test_a_result_is_remembered_for_siblings_and_for_nobody_else(tmp_path: Path) -> None:
    config: dict[str, Any] = {"model": {"d_model": 64}, "training": {"seed": 1}, "optimization": {"lr": 1e-3}}
    key = cache_key("Job", config, chip="h100", share=32)
    path = tmp_path / "batch_sizes" / f"{key}.json"
    write_cache(path, 12, chip="h100")
    sibling = {**config, "training": {"seed": 2, "steps": 9}, "optimization": {"lr": 1e-4}}
    assert read_cache(path) == 12
    assert cache_key("Job", sibling, chip="h100", share=32) == key
    others = [
        cache_key("Other", config, chip="h100", share=32),
        cache_key("Job", {**config, "model": {"d_model": 65}}, chip="h100", share=32),
        cache_key("Job", {**config, "optimization": {"optimizer": "muon"}}, chip="h100", share=32),
        cache_key("Job", config, chip="a100", share=32),
        cache_key("Job", {**config, "training": {"seed": 1, "fsdp": True}}, chip="h100", share=32),
        cache_key("Job", {**config, "training": {"precision": {"compute": "bfloat16"}}}, chip="h100", share=32),
    ]
    assert len({key, *others}) == 7


def test_trainings_that_differ_in_their_schedule_share_a_result() -> None:
    config = defaults(ScheduleConfig, OptimizerConfig)
    for place in layout(ScheduleConfig):
        group, _, name = place.partition(".")
        other = {**config, group: {**config[group], name: "another"}}
        assert cache_key("Job", other) == cache_key("Job", config), place


@pytest.mark.parametrize("content", ["", "{", "[3]", "{}", '{"rows": null}', '{"rows": 0}', '{"rows": -4}'])
def test_a_file_that_is_damaged_says_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    assert read_cache(path) is None
    path.write_text(content)
    assert read_cache(path) is None


class Rows(Classification):
    """Rows of WIDTH numbers of a TYPE; a model with HIDDEN units."""

    BEST = None
    WIDTH, TYPE, HIDDEN = 8, np.float32, 4

    def make_model(self, rngs: nnx.Rngs) -> Any:
        return nnx.Linear(self.WIDTH, self.HIDDEN, rngs=rngs)

    def data(self) -> Any:
        rows = {"x": np.zeros((64, self.WIDTH), self.TYPE), "label": np.zeros(64, np.int32)}
        return Arrays(rows)

    def evaluations(self) -> Any:
        return {}


class Counted:
    """A stream that counts its rows."""

    given = 0

    def __next__(self) -> Any:
        self.given += 1
        return {"x": np.zeros(8, np.float32), "label": np.int32(0)}

    def get_state(self) -> Any:
        return self.given

    def set_state(self, state: Any) -> None:
        self.given = state


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was tried, on devices that take 4 rows."""
    tried: list[int] = []

    def make(*_: Any) -> Any:
        def tries(rows: int, timeout_s: float) -> ProbeResult:
            tried.append(rows)
            return ProbeResult(rows <= 4, 1.0, "RESOURCE_EXHAUSTED")

        return tries

    monkeypatch.setattr(batch_size_finder, "JobProbe", make)
    return tried


def wider(**changes: Any) -> type[Rows]:
    return type("Rows", (Rows,), {"__module__": __name__, "__qualname__": "Rows", **changes})


@pytest.mark.demo
def test_what_was_found_is_used_only_where_it_was_measured(
    tmp_path: Path, searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(cls: type[Any] = Rows, **words: Any) -> bool:
        searches.clear()
        job = made(tmp_path, cls=cls, **{"batch_size": 8, "per_device_batch_size": -1, "steps": 1, **words})
        job.prepare()
        assert job.setup.microbatching.microbatch_size == 4
        return bool(searches)

    assert searched()
    assert not searched()
    assert not searched(seed=5, steps=9, optimization={"lr": 0.5})
    others: dict[str, dict[str, Any]] = {
        "rows": {"cls": wider(WIDTH=9)},
        "type": {"cls": wider(TYPE=np.float16)},
        "model": {"cls": wider(HIDDEN=5)},
        "precision": {"precision": {"params": "bfloat16"}},
        "average": {"ema": 0.9},
        "mesh": {"mesh": {"data": 1, "fsdp": 1}},
        "share": {"batch_size": 16},
    }
    for name, words in others.items():
        assert searched(**words), name
        assert not searched(**words), name
    # 64 bits are no other types than 32 on these devices.
    assert not searched(wider(TYPE=np.float64))

    with monkeypatch.context() as patched:
        patched.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".3")
        assert searched()
    with monkeypatch.context() as patched:
        patched.setattr(batch_size_finder, "version", lambda name: "9.9")
        assert searched()
    with monkeypatch.context() as patched:
        patched.setattr(batch_size_finder, "_memory", lambda device: 5)
        assert searched()
    module = tmp_path / "part_of_a_model.py"
    module.write_text("WIDTH = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("part_of_a_model")
    try:
        assert searched()
        assert not searched()
        module.write_text("WIDTH = 2\n")
        assert searched()
    finally:
        del sys.modules["part_of_a_model"]
    assert not searched()


@pytest.mark.demo
def test_a_look_at_a_stream_takes_no_row_of_it(tmp_path: Path, searches: list[int]) -> None:
    stream = Counted()
    cls = wider(data=lambda self: Streamed(stream))
    job = made(tmp_path, cls=cls, batch_size=8, per_device_batch_size=-1, steps=1)
    job.prepare()
    assert searches
    assert stream.given == 0


SCRIPT = """
import json, logging, resource, sys
import jax, numpy as np
from dispatcher.runtime.language.tokens import TokenWindows
from tiny_training import Tiny, made

class Wide(Tiny):
    def data(self):
        # Must not be mistaken for the probe's answer.
        print("noise")
        return TokenWindows(np.arange(60_000), 512)

def microbatching(seed):
    words = {"model.vocab_size": 60_000, "model.max_seq_len": 512, "eval_every": None, "seed": seed}
    job = made(sys.argv[1], "wide", Wide, steps=1, batch_size=4, per_device_batch_size=-1, **words)
    job.prepare()
    return [job.setup.microbatching.accumulation_steps, job.setup.microbatching.microbatch_size]

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("absl").setLevel(logging.ERROR)
    # What a process may take, as a device has only so much: what it takes with nothing to do, and a little more.
    jax.numpy.ones(8).block_until_ready()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    limit = int(status["VmPeak"].split()[0]) * 1024 + int(float(sys.argv[2]) * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps([microbatching(1), microbatching(2)]))
"""


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_in_too_little_memory(tmp_path: Path, jax_cache: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs"), "0.9"],
        env=environment(jax_cache),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr
    assert "batch size 4 does not fit: jax.errors.JaxRuntimeError" in said
    (kept,) = (tmp_path / "runs" / "batch_sizes").iterdir()
    found = json.loads(kept.read_text())["rows"]
    assert found in (1, 2, 3)
    assert f"batch size {found} fits" in said
    # Nothing between these two divides the batch.
    assert f"batch size {min(4, 2 * found)} does not fit" in said
    # The second, with another seed, has not searched.
    assert f"wide: batch size {found} per device, from the cache" in said
    used = min(2, found)
    assert json.loads(done.stdout.splitlines()[-1]) == [[4 // used, used]] * 2
