"""`dispatcher status` as a multiple of what no command line in Python can do without."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, Figure, interleave, median_of, milliseconds, ratio
from benchmarks.pods import DISPATCHER, environment
from benchmarks.workspaces import job_ids, make_workspace, queue_all
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.projection import Projector
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def measure(bench: Bench) -> Iterator[Figure]:
    """`dispatcher status` on 1,200 entries against `python -c "import click"`."""
    rounds, entries = bench.pick((25, 1_200), (7, 1_200), (1, 20))
    layout = make_workspace(bench.new_directory("status"), entries)
    queue_all(layout, entries)
    _finish_some(layout, entries // 2)
    bench.say(f"{rounds} rounds")
    arms = {"status": [DISPATCHER, "status"], "click": [sys.executable, "-c", "import click"]}
    for argv in arms.values():
        _run(argv, layout.root)
    found = interleave({name: lambda argv=argv: [_run(argv, layout.root)] for name, argv in arms.items()}, rounds)
    yield Figure(
        what=f"dispatcher status, {entries:,} entries",
        ours=milliseconds(median_of(found["status"])),
        against=f"import click {milliseconds(median_of(found['click']))}",
        ratio=ratio(found["status"], found["click"]),
        target=TARGETS["dispatcher status, 1,200 entries"],
        samples=found,
    )


def _finish_some(layout: Layout, count: int) -> None:
    """Half done, some failed: what a lab looks at."""
    store = Store(layout, by="bench")
    with store.transaction() as tx:
        for number, job in enumerate(job_ids(count)):
            tx.change(job, Event.CLAIMED, Change(state=State.RUNNING, pod="bench", started_at=tx.at, attempt=1))
            if number % 10:
                tx.change(job, Event.DONE, Change(state=State.DONE, exit_code=0, finished_at=tx.at))
            else:
                tx.change(job, Event.FAILED, Change(state=State.FAILED, exit_code=1, finished_at=tx.at))
    Projector(store).write()
    store.close()


def _run(argv: list[str], root: Path) -> float:
    begun = time.perf_counter()
    subprocess.run(argv, cwd=root, env=environment(), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun
