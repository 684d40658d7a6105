"""A save and a restore of 1 GB, end to end, against Orbax alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, Figure, Rounds, ratio, shown
from benchmarks.jax_here import need_device
from benchmarks.workers import ask_once

# The target is about Orbax as it comes, which compresses; what it does when it is told as we tell it is for the record.
_AGAINST = {
    "orbax": ("plain Orbax", TARGETS["save and restore 1 GB in 200 leaves"]),
    "orbax_told_alike": ("Orbax without compression", None),
}


def measure(bench: Bench) -> Iterator[Figure]:
    """Save and restore 1 GB in 200 leaves, checksums included, against plain Orbax."""
    rounds, gigabytes, leaves = bench.pick((11, 1.0, 200), (2, 1.0, 200), (1, 0.001, 2))
    device = need_device()
    bench.say(f"{rounds} rounds on {device.name}")
    found = ask_once(_round_trip, str(bench.new_directory("save")), gigabytes, leaves, number=rounds)
    for name, (against, target) in _AGAINST.items():
        yield Figure(
            what=f"save and restore {gigabytes:g} GB in {leaves} leaves, on {device.name}",
            ours=_parts(found["parts"]["ours"]),
            against=f"{against} {_parts(found['parts'][name])}",
            ratio=ratio(found["ours"], found[name]),
            target=target,
            samples={arm: found["parts"][arm] for arm in ("ours", name)},
        )


def _parts(rounds: Rounds) -> str:
    """Medians of saving and of restoring."""
    save_s, restore_s = (statistics.median(part) for part in zip(*rounds, strict=True))
    return f"{shown(save_s)} s + {shown(restore_s)} s"


def _round_trip(directory: str, gigabytes: float, leaves: int) -> Callable[[int], dict[str, Any]]:
    from benchmarks.saves import RoundTrip

    return RoundTrip(Path(directory), gigabytes, leaves).measure
