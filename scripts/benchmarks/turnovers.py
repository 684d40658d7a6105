"""The arms of slot turnover: jobs that tell when they began and ended, and a bare bash."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from decimal import Decimal
from pathlib import Path

from benchmarks.pods import run_pod
from benchmarks.workspaces import make_workspace

# The shell's own clock: nothing is started to read it.
_JOB = ("bash", "-c", "echo $EPOCHREALTIME; sleep 0.05; echo $EPOCHREALTIME")
_BASH = ["bash", "-c", "echo $EPOCHREALTIME"]


def gaps(root: Path, entries: int) -> list[float]:
    """Seconds from the end that one job tells to the beginning of the next, on one slot of a new workspace."""
    layout = make_workspace(root, entries, _JOB)
    run_pod(root, "--slots", "1", "--poll-interval", "30")
    times = sorted(_times(log) for log in layout.jobs_dir.glob("*/1/output.log"))
    return [float(begun - ended) for (_, ended), (begun, _) in itertools.pairwise(times)]


def _times(log: Path) -> tuple[Decimal, Decimal]:
    begun, ended = map(Decimal, log.read_text().split())
    return begun, ended


def spawns(count: int) -> list[float]:
    """Seconds from asking for a bash to its first line."""
    return [_spawn() for _ in range(count)]


def _spawn() -> float:
    begun = time.time()
    printed = subprocess.run(_BASH, capture_output=True, check=True, env={"PATH": os.defpath, "LANG": "C"}).stdout
    return float(printed) - begun
