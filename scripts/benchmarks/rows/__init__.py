"""The rows of the table, in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.rows import (
    batch,
    claim,
    contention,
    hang,
    hold,
    idle,
    lab,
    million,
    nfs,
    opening,
    save,
    slurm,
    start,
    status,
    step,
    throughput,
    turnover,
)

Row = Callable[[Bench], Iterator[Figure]]

ROWS: dict[str, Row] = {
    "claim": claim.measure,
    "lab": lab.measure,
    "contention": contention.measure,
    "turnover": turnover.measure,
    "throughput": throughput.measure,
    "status": status.measure,
    "idle": idle.measure,
    "opening": opening.measure,
    "million": million.measure,
    "nfs": nfs.measure,
    "step": step.measure,
    "hold": hold.measure,
    "save": save.measure,
    "start": start.measure,
    "batch": batch.measure,
    "slurm": slurm.measure,
    "hang": hang.measure,
}
