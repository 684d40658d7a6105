"""The search for the largest batch that fits into the memory of a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import training_sizes
from benchmarks.bench import Bench
from benchmarks.figures import BenchError, Figure, Skipped, shown
from benchmarks.jax_here import need_device
from benchmarks.pods import DISPATCHER, environment

_JOB = Path(__file__).resolve().parents[1] / "trainings.py"
# How the search says what it tries.
_TRIED = re.compile(r"batch size (\d+) (fits|does not fit)[^\n]*\(([\d.]+) s\)")


def measure(bench: Bench) -> Iterator[Figure]:
    """`per_device_batch_size: -1` on a GPU, and the same job again, which remembers."""
    device = need_device()
    if device.is_cpu:
        raise Skipped("no GPU here")
    place = bench.new_directory("batch")
    config = training_sizes.prepare(
        place, device.platform, steps=2, batch_size=bench.pick(1024, 256, 16), per_device_batch_size=-1
    )
    (place / "job.yaml").write_text(json.dumps({"job": "bench/train", **config}))
    bench.say(f"searching on {device.name}")
    search_s, log = _run(place, "search")
    tried = [(int(rows), verdict == "fits", float(seconds)) for rows, verdict, seconds in _TRIED.findall(log)]
    fitting = [rows for rows, fits, _ in tried if fits]
    again_s, _ = _run(place, "again")
    if not fitting:
        raise BenchError(f"the search says nothing of what it tried:\n{log[-2000:]}")
    least = min((rows for rows, fits, _ in tried if not fits), default=None)
    yield Figure(
        what=f"largest batch that fits, on {device.name}",
        ours=f"{max(fitting)} rows, found in {shown(search_s)} s",
        against=f"remembered: {shown(again_s)} s",
        note=f"{len(tried)} tries{'' if least is None else f', {least} rows do not fit'}",
        samples={"tried": tried, "search_s": search_s, "again_s": again_s},
    )


def _run(place: Path, name: str) -> tuple[float, str]:
    begun = time.perf_counter()
    argv = [DISPATCHER, "job", "run", name, "job.yaml", str(place / "out"), "--import", str(_JOB)]
    done = subprocess.run(argv, cwd=place, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"the job ended with {done.returncode}: {done.stderr[-2000:]}")
    return time.perf_counter() - begun, done.stderr
