"""From the start of a job to the end of its first step."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import training_sizes
from benchmarks.bench import Bench, Size
from benchmarks.figures import BenchError, Figure, interleave, median_of, ratio, shown
from benchmarks.jax_here import need_device
from benchmarks.pods import DISPATCHER, environment

_HERE = Path(__file__).resolve().parents[1]
_JOB, _BY_HAND = _HERE / "trainings.py", _HERE / "by_hand.py"
# What a job and a script print when their first step is done, before seconds since 1970.
_TOLD = "first step done at "


def measure(bench: Bench) -> Iterator[Figure]:
    """`dispatcher job run` to its first step against a bare script, with compiled programs cached for both."""
    rounds = bench.pick(11, 3, 1)
    device = need_device()
    place = bench.new_directory("start")
    is_smallest = bench.size is Size.SMALLEST
    config = training_sizes.prepare(place, device.platform, steps=2, short=is_smallest)
    (place / "job.yaml").write_text(json.dumps({"job": "bench/start", **config}))
    (place / "config.json").write_text(json.dumps(config))
    numbers = iter(range(1_000_000))
    arms = {
        "job": lambda: [_seconds(place, _run_command(place, next(numbers)))],
        "script": lambda: [_seconds(place, [sys.executable, "-P", str(_BY_HAND), "config.json"])],
    }
    bench.say(f"{rounds} rounds on {device.name}; the first fills the cache of compiled programs")
    if not is_smallest:
        for run in arms.values():
            run()
    found = interleave(arms, rounds)
    yield Figure(
        what=f"start of a job to its first step, on {device.name}",
        ours=f"{shown(median_of(found['job']))} s",
        against=f"script by hand {shown(median_of(found['script']))} s",
        ratio=ratio(found["job"], found["script"]),
        samples=found,
    )


def _run_command(place: Path, number: int) -> list[str]:
    # Another name each time: a job that is done already does nothing.
    return [DISPATCHER, "job", "run", f"start-{number}", "job.yaml", str(place / "out"), "--import", str(_JOB)]


def _seconds(place: Path, argv: list[str]) -> float:
    """From the start of the process until it says that its first step is done."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(place / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    begun = time.time()
    done = subprocess.run(argv, cwd=place, env={**environment(), **cache}, capture_output=True, text=True, check=False)
    told = next((line for line in done.stdout.splitlines() if line.startswith(_TOLD)), None)
    if done.returncode != 0 or told is None:
        raise BenchError(f"{argv[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(told.removeprefix(_TOLD)) - begun
