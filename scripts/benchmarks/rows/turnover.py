"""From the end of one job to the start of the next on the same slot."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, Figure, Rounds, Target, interleave, median_of, milliseconds, ratio
from benchmarks.turnovers import gaps, spawns


def measure(bench: Bench) -> Iterator[Figure]:
    """End of one process to the start of the next on the same slot, at a poll interval of 30 s."""
    rounds, entries = bench.pick((8, 40), (2, 20), (1, 2))
    bench.say(f"{rounds} rounds of {entries} jobs")
    arms = {"ours": lambda: gaps(bench.new_directory("turnover"), entries), "bash": lambda: spawns(entries)}
    found = interleave(arms, rounds)
    what = "slot turnover, poll interval 30 s"
    yield turnover_figure(what, found["ours"], found["bash"], TARGETS[what])


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
