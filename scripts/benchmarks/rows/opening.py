"""Opening a workspace, which is the only time when everything is read."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator

from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, BenchError, Figure, interleave, median_of, ratio, shown
from benchmarks.pods import start_pod, wait_until_ready
from benchmarks.workers import ask_once
from benchmarks.workspaces import make_workspace, write_history
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_LINES_OF_EACH = 4


def measure(bench: Bench) -> Iterator[Figure]:
    """Opening a workspace of 100,000 entries and 400,000 journal lines."""
    # A journal of fewer than 50,000 lines is not saved.
    rounds, entries = bench.pick((7, 100_000), (2, 100_000), (1, 12_600))
    lines = entries * _LINES_OF_EACH
    bench.say(f"writing {lines:,} journal lines")
    layout = make_workspace(bench.new_directory("opening"), entries)
    write_history(layout, entries)
    # A pod adds lines of its own, and the others count what they read.
    for_pod = Layout(shutil.copytree(layout.root, bench.new_directory("pod") / "root"))
    bench.say(f"{rounds} rounds")
    root = str(layout.root)
    arms = {
        "transaction": lambda: [ask_once(_open_to_change, root, entries)],
        "look": lambda: [ask_once(_open_to_look, root, entries)],
        "saved": lambda: [ask_once(_open_what_was_saved, root, entries)],
        "decode": lambda: [ask_once(_decode, root)],
        "pod": lambda: [_start_pod(for_pod)],
    }
    found = interleave(arms, rounds)
    seconds = {name: f"{shown(median_of(samples))} s" for name, samples in found.items()}
    for name, what in (
        ("transaction", "opening to change: the first transaction"),
        ("look", "opening to look"),
        ("saved", "opening to look what a pod has saved"),
        ("pod", "a pod from its start to its first claim"),
    ):
        yield Figure(
            what=f"{what}, {entries:,} entries, {lines:,} lines",
            ours=seconds[name],
            against=f"read and json.loads each line {seconds['decode']}",
            ratio=ratio(found[name], found["decode"]),
            target=None if name == "pod" else TARGETS["opening, 100,000 entries, 400,000 lines"],
            judged=median_of(found[name]),
            samples={name: found[name], "decode": found["decode"]},
        )


def _open_to_change(root: str, entries: int) -> Callable[[int], float]:
    def run(_number: int) -> float:
        # What a pod has saved of the journal would be opened instead.
        Layout(root).saved_fold.unlink(missing_ok=True)
        begun = time.perf_counter()
        store = Store(Layout(root), by="bench")
        with store.transaction():
            count = len(store.records)
        elapsed_s = time.perf_counter() - begun
        _check_complete(count, store.seq, entries)
        return elapsed_s

    return run


def _open_to_look(root: str, entries: int) -> Callable[[int], float]:
    def run(_number: int) -> float:
        Layout(root).saved_fold.unlink(missing_ok=True)
        return _look(root, entries)[0]

    return run


def _open_what_was_saved(root: str, entries: int) -> Callable[[int], float]:
    def run(_number: int) -> float:
        _look(root, entries)[1].save()
        if not Layout(root).saved_fold.exists():
            raise BenchError("what was read is not saved")
        return _look(root, entries)[0]

    return run


def _look(root: str, entries: int) -> tuple[float, Store]:
    begun = time.perf_counter()
    store = Store(Layout(root), by="bench")
    store.refresh(to_the_end=True)
    elapsed_s = time.perf_counter() - begun
    _check_complete(len(store.records), store.seq, entries)
    return elapsed_s, store


def _check_complete(count: int, seq: int, entries: int) -> None:
    """Raise BenchError unless every entry and every line was read."""
    if (count, seq) != (entries, entries * _LINES_OF_EACH):
        raise BenchError(f"{count:,} entries and {seq:,} lines were read of {entries:,} with {_LINES_OF_EACH} each")


def _decode(root: str) -> Callable[[int], float]:
    def run(_number: int) -> float:
        begun = time.perf_counter()
        with open(Layout(root).journal(1), "rb") as file:
            for line in file:
                json.loads(line)
        return time.perf_counter() - begun

    return run


def _start_pod(layout: Layout) -> float:
    layout.saved_fold.unlink(missing_ok=True)
    begun = time.monotonic()
    with start_pod(layout.root, "--slots", "1") as pod:
        return wait_until_ready(layout.root, pod) - begun
