"""Many processes on one lock: how many claims they get through together, and how long each waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks import claims
from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, BenchError, Figure, Spread, milliseconds, percentile, shown
from benchmarks.workers import Worker
from benchmarks.workspaces import make_workspace, queue_all


def measure(bench: Bench) -> Iterator[Figure]:
    """Processes that contend for 2,000 entries; nothing is claimed twice."""
    rounds, entries = bench.pick((5, 2_000), (1, 2_000), (1, 20))
    processes = bench.pick((1, 4, 16), (1, 4, 16), (1, 2))
    rates: dict[int, list[float]] = {number: [] for number in processes}
    waits: dict[int, list[float]] = {number: [] for number in processes}
    for turn in range(rounds):
        for number in processes if turn % 2 == 0 else reversed(processes):
            bench.say(f"round {turn + 1} of {rounds}: {number} processes")
            reports = _contend(bench, number, entries)
            took_s = max(report["ended"] for report in reports) - min(report["begun"] for report in reports)
            rates[number].append(entries / took_s)
            waits[number] += [wait for report in reports for wait in report["waits"]]
    for number in processes:
        alone = [ours / one for ours, one in zip(rates[number], rates[1], strict=True)]
        p50, p99 = (milliseconds(percentile(waits[number], percent)) for percent in (50, 99))
        yield Figure(
            what=f"{number} process{'es' * (number > 1)}, {entries:,} entries",
            ours=f"{shown(Spread.of(rates[number]).median)}/s, wait p50 {p50}, p99 {p99}",
            against="" if number == 1 else f"1 process {shown(Spread.of(rates[1]).median)}/s",
            ratio=None if number == 1 else Spread.of(alone),
            target=TARGETS["16 processes, 2,000 entries"] if number == max(processes) else None,
            note="none claimed twice",
            samples={"claims per second": rates[number], "waits": sorted(waits[number])},
        )


def _contend(bench: Bench, number: int, entries: int) -> list[dict[str, Any]]:
    layout = make_workspace(bench.new_directory("contention"), entries)
    queue_all(layout, entries)
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
    check_claimed_once([job for report in reports for job in report["jobs"]], claims.written(layout), entries)
    return reports


def check_claimed_once(claimed: list[str], written: list[str], count: int) -> None:
    """Raise BenchError unless what the processes say and what the journal says is each of `count` entries once."""
    for jobs in (Counter(claimed), Counter(written)):
        if len(jobs) != count or set(jobs.values()) != {1}:
            twice = [job for job, times in jobs.items() if times > 1]
            raise BenchError(f"{len(jobs)} of {count} entries were claimed; more than once: {twice[:5]}")
