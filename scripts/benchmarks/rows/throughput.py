"""A thousand jobs that do nothing, end to end, beside the tools that people use for that."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Iterator

from benchmarks import rivals
from benchmarks.bench import Bench
from benchmarks.figures import (
    TARGETS,
    BenchError,
    Figure,
    Rounds,
    Skipped,
    Spread,
    interleave,
    median_of,
    milliseconds,
    ratio,
    shown,
)
from benchmarks.pods import run_pod
from benchmarks.workspaces import job_ids, make_workspace
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_BASE = "parallel"
_SLOTS = 2


def measure(bench: Bench) -> Iterator[Figure]:
    """1,000 entries of /bin/true on 2 slots, end to end."""
    count, rounds = bench.pick((1_000, 5), (200, 2), (4, 1))
    arms: dict[str, Callable[[], list[float]]] = {}
    missing: list[Figure] = []
    for name, make in rivals.RIVALS.items():
        try:
            run = make()
            arms[name] = lambda name=name, run=run: [run(bench.new_directory(name), count)]
        except Skipped as reason:
            missing.append(Figure(what=name, note=f"skipped: {reason}"))
    arms["ours"] = lambda: [_run_ours(bench, count)]
    processor_s: dict[str, Rounds] = {name: [] for name in arms}
    arms = {name: _watched(arm, processor_s[name]) for name, arm in arms.items()}
    bench.say(f"{rounds} rounds of {count:,} jobs: {', '.join(arms)}")
    found = interleave(arms, rounds)
    rates = {name: count / statistics.median(s[0] for s in samples) for name, samples in found.items()}
    base = f"parallel --joblog {shown(rates[_BASE])}/s" if _BASE in rates else ""
    for name in ("ours", *(name for name in rates if name not in ("ours", _BASE))):
        times = ratio(found[_BASE], found[name]) if _BASE in found else None
        yield _figure(name, count, rates[name], base, times, found)
    if _BASE in found:
        yield _processor_figure(count, processor_s["ours"], processor_s[_BASE])
    yield from missing


def _watched(arm: Callable[[], list[float]], processor_s: Rounds) -> Callable[[], list[float]]:
    """The arm, which also notes what processor time it took, as far as its processes are children of this one."""

    def run() -> list[float]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        samples = arm()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor_s.append([after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime])
        return samples

    return run


def _processor_figure(count: int, ours: Rounds, theirs: Rounds) -> Figure:
    """What a machine that does other things too says more surely than seconds."""
    return Figure(
        what="processor time for each of them",
        ours=milliseconds(median_of(ours) / count),
        against=f"parallel --joblog {milliseconds(median_of(theirs) / count)}",
        ratio=ratio(ours, theirs),
        samples={"ours": ours, "parallel": theirs},
    )


def _figure(name: str, count: int, rate: float, base: str, times: Spread | None, found: dict[str, Rounds]) -> Figure:
    ours = name == "ours"
    return Figure(
        what=f"{count:,} x /bin/true on {_SLOTS} slots" if ours else f"the same by {name}",
        ours=f"{shown(rate)}/s",
        against=base,
        ratio=times,
        target=TARGETS["1,000 x /bin/true on 2 slots"] if ours else None,
        samples=found if ours else {},
    )


def _run_ours(bench: Bench, count: int) -> float:
    layout = make_workspace(bench.new_directory("ours"), count)
    elapsed_s = run_pod(layout.root, "--slots", str(_SLOTS))
    _check_complete(layout, count)
    return elapsed_s


def _check_complete(layout: Layout, count: int) -> None:
    """Raise BenchError unless every attempt has its directory, log, exit status and record."""
    store = Store(layout, by="bench")
    store.refresh(to_the_end=True)
    for job in job_ids(count):
        record, paths = store.records.get(job), layout.attempt(job, 1)
        if record is None or record.state is not State.DONE or not (paths.log.exists() and paths.exit.exists()):
            raise BenchError(f"{job}: the record is {record}, and {paths.directory} may lack its log or exit status")
