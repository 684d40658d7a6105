"""One claim against the least that would do, and at 100,000 entries against 1,200."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks import claims
from benchmarks.bench import Bench
from benchmarks.figures import Figure, Target, interleave, median_of, milliseconds, ratio
from benchmarks.workers import Worker
from benchmarks.workspaces import make_workspace, queue_all

SMALL, LARGE = 1_200, 100_000
# Short turns, because what else the machine does changes quickly. All of them must not use up the small workspace.
_BATCH, _TURNS = 2, 20


def measure(bench: Bench) -> Iterator[Figure]:
    """One claim: lock, catch-up, mkdir, append, fsync, unlock."""
    rounds = bench.pick(25, 5)
    with ExitStack() as stack:
        small, large = (stack.enter_context(_our_worker(bench, claims.ours, count)) for count in (SMALL, LARGE))
        whole = stack.enter_context(_our_worker(bench, claims.ours_and_preparation, SMALL))
        bare = stack.enter_context(Worker(claims.floor, str(bench.new_directory("floor"))))
        for worker in (small, large, whole, bare):
            worker.ready()
        bench.say(f"{rounds} rounds of {_BATCH * _TURNS} claims each")
        arms = {"floor": bare, "small": small, "large": large, "whole": whole}
        for worker in arms.values():
            worker.ask(5)
        asking = {name: lambda worker=worker: worker.ask(_BATCH) for name, worker in arms.items()}
        found = interleave(asking, rounds, _TURNS)
    shown = {name: milliseconds(median_of(samples)) for name, samples in found.items()}
    bare_loop = f"bare loop {shown['floor']}"
    yield Figure(
        what=f"claim, {SMALL:,} entries",
        ours=shown["small"],
        against=bare_loop,
        ratio=ratio(found["small"], found["floor"]),
        target=Target(2.0),
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
        what=f"claim, {LARGE:,} entries",
        ours=shown["large"],
        against=bare_loop,
        ratio=ratio(found["large"], found["floor"]),
    )
    yield Figure(
        what=f"claim, {LARGE:,} entries",
        ours=shown["large"],
        against=f"{SMALL:,} entries {shown['small']}",
        ratio=ratio(found["large"], found["small"]),
        target=Target(1.2),
    )


def _our_worker(bench: Bench, make: Callable[[str], Callable[[int], list[float]]], count: int) -> Worker:
    bench.say(f"queueing {count:,} entries")
    layout = make_workspace(bench.new_directory("claim"), count)
    queue_all(layout, count)
    return Worker(make, str(layout.root))
