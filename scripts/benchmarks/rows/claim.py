"""One claim against the least that would do, and at 100,000 entries against 1,200."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks import claims
from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, Figure, interleave, median_of, milliseconds, ratio
from benchmarks.workers import Worker
from benchmarks.workspaces import make_workspace, queue_all

# Short turns, because what else the machine does changes quickly. All of them must not use up the small workspace.
_BATCH = 2


def measure(bench: Bench) -> Iterator[Figure]:
    """One claim: lock, catch-up, mkdir, append, fsync, unlock."""
    rounds, turns = bench.pick((25, 20), (5, 20), (1, 2))
    few, many = bench.pick((1_200, 100_000), (1_200, 100_000), (20, 40))
    with ExitStack() as stack:
        small, large = (stack.enter_context(_our_worker(bench, claims.ours, count)) for count in (few, many))
        whole = stack.enter_context(_our_worker(bench, claims.ours_and_preparation, few))
        bare = stack.enter_context(Worker(claims.floor, str(bench.new_directory("floor"))))
        for worker in (small, large, whole, bare):
            worker.ready()
        bench.say(f"{rounds} rounds of {_BATCH * turns} claims each")
        arms = {"floor": bare, "small": small, "large": large, "whole": whole}
        for worker in arms.values():
            worker.ask(5)
        asking = {name: lambda worker=worker: worker.ask(_BATCH) for name, worker in arms.items()}
        found = interleave(asking, rounds, turns)
    shown = {name: milliseconds(median_of(samples)) for name, samples in found.items()}
    bare_loop = f"bare loop {shown['floor']}"
    yield Figure(
        what=f"claim, {few:,} entries",
        ours=shown["small"],
        against=bare_loop,
        ratio=ratio(found["small"], found["floor"]),
        target=TARGETS["claim, 1,200 entries"],
        samples=found,
    )
    yield Figure(
        what="the same with its preparation",
        ours=shown["whole"],
        against=bare_loop,
        ratio=ratio(found["whole"], found["floor"]),
        note="prepared while jobs run",
    )
    yield Figure(
        what=f"claim, {many:,} entries",
        ours=shown["large"],
        against=bare_loop,
        ratio=ratio(found["large"], found["floor"]),
    )
    yield Figure(
        what=f"claim, {many:,} entries",
        ours=shown["large"],
        against=f"{few:,} entries {shown['small']}",
        ratio=ratio(found["large"], found["small"]),
        target=TARGETS["claim, 100,000 entries"],
    )


def _our_worker(bench: Bench, make: Callable[[str], Callable[[int], list[float]]], count: int) -> Worker:
    bench.say(f"queueing {count:,} entries")
    layout = make_workspace(bench.new_directory("claim"), count)
    queue_all(layout, count)
    return Worker(make, str(layout.root))
