"""How long a save keeps a training from its next step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, Figure, Spread, median_of, ratio, shown
from benchmarks.jax_here import need_device
from benchmarks.workers import ask_once


def measure(bench: Bench) -> Iterator[Figure]:
    """How long a save of 1 GB holds up a training, against the bare copy off the device."""
    rounds, gigabytes, leaves = bench.pick((11, 1.0, 200), (2, 1.0, 200), (1, 0.001, 2))
    device = need_device()
    bench.say(f"{rounds} rounds on {device.name}")
    found = ask_once(_hold_up, str(bench.new_directory("hold")), gigabytes, leaves, number=rounds)
    copy_s = median_of(found["copy"])
    against = f"copying it to the host {shown(copy_s)} s"
    yield Figure(
        what=f"save() of {gigabytes:g} GB in {leaves} leaves, on {device.name}",
        ours=f"{shown(median_of(found['save']))} s",
        against=against,
        ratio=ratio(found["save"], found["copy"]),
        target=TARGETS["save() of 1 GB in 200 leaves"],
        # JAX keeps the next step from writing over them; a GPU's memory is needed at once.
        note="no copy: the arrays are host memory already" if device.is_cpu else "",
        samples={name: found[name] for name in ("save", "copy")},
    )
    lost = Spread.of(found["lost"])
    yield Figure(
        what="what steps that change all of it lose until it is committed",
        ours=f"{shown(lost.median)} s with that",
        against=against,
        ratio=Spread.of([seconds / copy_s for seconds in found["lost"]]),
        note=f"steps meanwhile take {Spread.of(found['slowed'])} times as long",
        samples={name: found[name] for name in ("lost", "slowed")},
    )


def _hold_up(directory: str, gigabytes: float, leaves: int) -> Callable[[int], dict[str, Any]]:
    from benchmarks.saves import HoldUp

    return HoldUp(Path(directory), gigabytes, leaves).measure
