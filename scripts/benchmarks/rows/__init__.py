"""The rows of the table, in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.bench import Bench
from benchmarks.figures import Figure
from benchmarks.rows import claim, contention, idle, lab, nfs, opening, status, throughput, turnover

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
    "nfs": nfs.measure,
}
