"""From the end of one job to the start of the next on the same slot."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Rounds, Target, interleave, median_of, milliseconds, ratio
from benchmarks.turnovers import gaps, spawns


def measure(bench: Bench) -> Iterator[Figure]:
    """End of one process to the start of the next on the same slot, at a poll interval of 30 s."""
    rounds, entries = bench.pick(8, 2), bench.pick(40, 20)
    bench.say(f"{rounds} rounds of {entries} jobs")
    arms = {"ours": lambda: gaps(bench.new_directory("turnover"), entries), "bash": lambda: spawns(entries)}
    found = interleave(arms, rounds)
    yield turnover_figure("slot turnover, poll interval 30 s", found["ours"], found["bash"], Target(20, unit="ms"))


def turnover_figure(what: str, ours: Rounds, bash: Rounds, target: Target | None) -> Figure:
    return Figure(
        what=what,
        ours=milliseconds(median_of(ours)),
        against=f"spawning bash {milliseconds(median_of(bash))}",
        ratio=ratio(ours, bash),
        target=target,
        judged=median_of(ours) * 1000,
        samples={"ours": ours, "bash": bash},
    )
