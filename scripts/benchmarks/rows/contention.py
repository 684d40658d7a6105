"""Many processes on one lock: how many claims they get through together, and how long each waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks import claims
from benchmarks.bench import Bench
from benchmarks.figures import BenchError, Figure, Spread, Target, milliseconds, percentile, shown
from benchmarks.workers import Worker
from benchmarks.workspaces import make_workspace, queue_all

_PROCESSES = (1, 4, 16)
_ENTRIES = 2_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Processes that contend for 2,000 entries; nothing is claimed twice."""
    rounds = bench.pick(5, 1)
    rates: dict[int, list[float]] = {number: [] for number in _PROCESSES}
    waits: dict[int, list[float]] = {number: [] for number in _PROCESSES}
    for turn in range(rounds):
        for number in _PROCESSES if turn % 2 == 0 else reversed(_PROCESSES):
            bench.say(f"round {turn + 1} of {rounds}: {number} processes")
            reports = _contend(bench, number)
            took_s = max(report["ended"] for report in reports) - min(report["begun"] for report in reports)
            rates[number].append(_ENTRIES / took_s)
            waits[number] += [wait for report in reports for wait in report["waits"]]
    for number in _PROCESSES:
        alone = [ours / one for ours, one in zip(rates[number], rates[1], strict=True)]
        p50, p99 = (milliseconds(percentile(waits[number], percent)) for percent in (50, 99))
        yield Figure(
            what=f"{number} process{'es' * (number > 1)}, {_ENTRIES:,} entries",
            ours=f"{shown(Spread.of(rates[number]).median)}/s, wait p50 {p50}, p99 {p99}",
            against="" if number == 1 else f"1 process {shown(Spread.of(rates[1]).median)}/s",
            ratio=None if number == 1 else Spread.of(alone),
            target=Target(0.6, at_least=True) if number == max(_PROCESSES) else None,
            note="none claimed twice",
            samples={"claims per second": rates[number], "waits": sorted(waits[number])},
        )


def _contend(bench: Bench, number: int) -> list[dict[str, Any]]:
    layout = make_workspace(bench.new_directory("contention"), _ENTRIES)
    queue_all(layout, _ENTRIES)
    workers = [Worker(claims.contender, str(layout.root), f"pod-{n}") for n in range(number)]
    try:
        for worker in workers:
            worker.ready()
        for worker in workers:
            worker.send(0)
        reports = [worker.receive() for worker in workers]
    finally:
        for worker in workers:
            worker.close()
    check_claimed_once([job for report in reports for job in report["jobs"]], claims.written(layout), _ENTRIES)
    return reports


def check_claimed_once(claimed: list[str], written: list[str], count: int) -> None:
    """Raise BenchError unless what the processes say and what the journal says is each of `count` entries once."""
    for jobs in (Counter(claimed), Counter(written)):
        if len(jobs) != count or set(jobs.values()) != {1}:
            twice = [job for job, times in jobs.items() if times > 1]
            raise BenchError(f"{len(jobs)} of {count} entries were claimed; more than once: {twice[:5]}")
