"""A workspace of 1,000,000 entries: what a pod keeps in memory, and how long `dispatcher status` takes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench, Size
from benchmarks.figures import TARGETS, BenchError, Figure, Skipped, interleave, median_of, ratio, shown
from benchmarks.pods import DISPATCHER, environment, memory_mib, peak_mib, start_pod, wait_until_ready
from benchmarks.workspaces import make_workspace, queue_all, write_history
from dispatcher.workspace import Layout

_READY_S = 600.0
_SAVED_S = 120.0
# Read the same files once, and decode nothing.
_READ = """\
import sys
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        while file.read(1 << 20):
            pass
"""


def measure(bench: Bench) -> Iterator[Figure]:
    """Memory of a pod and `dispatcher status` at 1,000,000 entries; takes minutes and is left out by --quick."""
    if bench.size is Size.QUICK:
        raise Skipped("it writes files of a gigabyte: run it without --quick")
    for what, layout in _workspaces(bench):
        yield _memory(bench, what, layout)
        yield _status(bench, what, layout)


def _workspaces(bench: Bench) -> Iterator[tuple[str, Layout]]:
    """One whose jobs are all done, and one whose jobs are all queued; the first is removed before the second."""
    entries = bench.pick(1_000_000, 1_000_000, 20)
    for what, fill in (("done", write_history), ("queued", queue_all)):
        bench.say(f"writing {entries:,} entries that are {what}")
        layout = make_workspace(bench.new_directory("million"), entries)
        fill(layout, entries)
        yield f"{entries:,} entries, {what}", layout
        bench.remove(layout.root)


def _memory(bench: Bench, what: str, layout: Layout) -> Figure:
    bench.say("starting a pod")
    with start_pod(layout.root, "--slots", "1") as pod:
        wait_until_ready(layout.root, pod, _READY_S)
        if bench.size is not Size.SMALLEST:
            # So few entries are not saved.
            bench.say("waiting until it has saved what it has read")
            _wait_for(layout.saved_fold)
        pss, rss = memory_mib(pod.pid)
        peak = peak_mib(pod.pid)
    return Figure(
        what=f"memory of a pod, {what}",
        ours=f"{shown(pss)} MiB PSS, {shown(peak)} MiB at its peak",
        target=TARGETS["memory of a pod, 1,000,000 entries"],
        judged=pss,
        samples={"pss_mib": pss, "rss_mib": rss, "peak_mib": peak},
    )


def _wait_for(path: Path) -> None:
    end_s = time.monotonic() + _SAVED_S
    while not path.exists():
        if time.monotonic() > end_s:
            raise BenchError(f"{path} is not there after {_SAVED_S:g} s")
        time.sleep(0.1)


def _status(bench: Bench, what: str, layout: Layout) -> Figure:
    bench.say("dispatcher status")
    files = [str(path) for path in (layout.default_matrix, layout.journal(1), layout.status_file)]
    arms = {
        "status": [DISPATCHER, "status"],
        "read": [sys.executable, "-c", _READ, *files],
    }
    found = interleave(
        {name: lambda argv=argv: [_run(argv, layout.root)] for name, argv in arms.items()}, bench.pick(3, 3, 1)
    )
    return Figure(
        what=f"dispatcher status, {what}",
        ours=f"{shown(median_of(found['status']))} s",
        against=f"reading its files {shown(median_of(found['read']))} s",
        ratio=ratio(found["status"], found["read"]),
        target=TARGETS["dispatcher status, 1,000,000 entries"],
        judged=median_of(found["status"]),
        samples=found,
    )


def _run(argv: list[str], root: Path) -> float:
    begun = time.perf_counter()
    done = subprocess.run(argv, cwd=root, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(argv[:2])} ended with {done.returncode}: {done.stderr[-500:]}")
    return time.perf_counter() - begun
