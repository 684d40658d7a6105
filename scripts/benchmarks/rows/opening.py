"""Opening a workspace, which is the only time when everything is read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Target, interleave, median_of, ratio, shown
from benchmarks.pods import start_pod, wait_until_ready
from benchmarks.workers import ask_once
from benchmarks.workspaces import make_workspace, write_history
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_ENTRIES = 100_000
_LINES = 400_000
_TARGET = Target(3, unit="s")


def measure(bench: Bench) -> Iterator[Figure]:
    """Opening a workspace of 100,000 entries and 400,000 journal lines."""
    rounds = bench.pick(7, 2)
    bench.say(f"writing {_LINES:,} journal lines")
    layout = make_workspace(bench.new_directory("opening"), _ENTRIES)
    write_history(layout, _ENTRIES)
    bench.say(f"{rounds} rounds")
    root = str(layout.root)
    arms = {
        "transaction": lambda: [ask_once(_open_to_change, root)],
        "look": lambda: [ask_once(_open_to_look, root)],
        "saved": lambda: [ask_once(_open_what_was_saved, root)],
        "decode": lambda: [ask_once(_decode, root)],
        "pod": lambda: [_start_pod(layout)],
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
            what=f"{what}, {_ENTRIES:,} entries, {_LINES:,} lines",
            ours=seconds[name],
            against=f"read and json.loads each line {seconds['decode']}",
            ratio=ratio(found[name], found["decode"]),
            target=None if name == "pod" else _TARGET,
            judged=median_of(found[name]),
            samples={name: found[name], "decode": found["decode"]},
        )


def _open_to_change(root: str) -> Callable[[int], float]:
    def run(_number: int) -> float:
        # What a pod has saved of the journal would be opened instead.
        Layout(root).saved_fold.unlink(missing_ok=True)
        begun = time.perf_counter()
        store = Store(Layout(root), by="bench")
        with store.transaction():
            count = len(store.records)
        elapsed_s = time.perf_counter() - begun
        assert (count, store.seq) == (_ENTRIES, _LINES)
        return elapsed_s

    return run


def _open_to_look(root: str) -> Callable[[int], float]:
    def run(_number: int) -> float:
        Layout(root).saved_fold.unlink(missing_ok=True)
        return _look(root)[0]

    return run


def _open_what_was_saved(root: str) -> Callable[[int], float]:
    def run(_number: int) -> float:
        _look(root)[1].save()
        assert Layout(root).saved_fold.exists()
        return _look(root)[0]

    return run


def _look(root: str) -> tuple[float, Store]:
    begun = time.perf_counter()
    store = Store(Layout(root), by="bench")
    store.refresh(to_the_end=True)
    elapsed_s = time.perf_counter() - begun
    assert (len(store.records), store.seq) == (_ENTRIES, _LINES)
    return elapsed_s, store


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
