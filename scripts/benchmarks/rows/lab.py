"""Claims per second against a script that loads, changes and dumps the whole status file under a lock."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import claims
from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, Figure, interleave, median_of, ratio, shown
from benchmarks.workers import Worker
from benchmarks.workspaces import job_ids, make_workspace, queue_all

# Entries, how many claims a round has: ours, and theirs, which take longer; and what the target is called.
_SIZES = (
    (1_200, 40, 10, "claims per second, 1,200 entries"),
    (100_000, 40, 1, "claims per second, 100,000 entries"),
)
_SMALLEST = ((20, 2, 1, _SIZES[0][3]), (40, 2, 1, _SIZES[1][3]))


def measure(bench: Bench) -> Iterator[Figure]:
    """Claims per second against the whole JSON file under flock."""
    rounds = bench.pick(11, 3, 1)
    for count, our_batch, their_batch, promise in bench.pick(_SIZES, _SIZES, _SMALLEST):
        bench.say(f"{rounds} rounds at {count:,} entries")
        layout = make_workspace(bench.new_directory("ours"), count)
        queue_all(layout, count)
        theirs_at = str(bench.new_directory("theirs"))
        with (
            Worker(claims.ours, str(layout.root)) as ours,
            Worker(claims.whole_file, theirs_at, job_ids(count)) as theirs,
        ):
            ours.ready()
            theirs.ready()
            found = interleave(
                {"ours": lambda o=ours, n=our_batch: o.ask(n), "theirs": lambda t=theirs, n=their_batch: t.ask(n)},
                rounds,
            )
        yield Figure(
            what=f"claims per second, {count:,} entries",
            ours=f"{shown(1 / median_of(found['ours']))}/s",
            against=f"whole JSON under flock {shown(1 / median_of(found['theirs']))}/s",
            ratio=ratio(found["theirs"], found["ours"]),
            target=TARGETS[promise],
            samples=found,
        )
