"""A step of a training against the loop that one writes by hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import training_sizes
from benchmarks.bench import Bench
from benchmarks.figures import TARGETS, BenchError, Figure, Rounds, Spread, median_of, milliseconds, shown
from benchmarks.jax_here import need_device
from benchmarks.workers import ask_once

# Long enough for the trainer to log twice, at its default, in each turn.
_STEPS = 20


@dataclass(frozen=True)
class _Arm:
    """A training whose steps are measured; `block` of them are one call of the trainer's compiled function."""

    what: str
    block: int = 1
    short: bool = False


_ARMS = (_Arm("a step of Trainer"), _Arm(f"a short step, {_STEPS} a call", _STEPS, short=True))


def measure(bench: Bench) -> Iterator[Figure]:
    """A step of Trainer against a bare jitted loop of the same model."""
    rounds, turns = bench.pick((9, 10), (1, 10), (1, 1))
    device = need_device()
    # The smallest size tells them apart by nothing but what a call makes.
    for arm in bench.pick(_ARMS, _ARMS, _ARMS[1:]):
        bench.say(f"{arm.what}: {rounds} rounds of {turns * _STEPS} steps each on {device.name}")
        directory = str(bench.new_directory("short" if arm.short else "step"))
        found = ask_once(_in_turns, directory, device.platform, arm.block, arm.short, turns, number=rounds)
        yield Figure(
            what=f"{arm.what}, {shown(found['parameters'] / 1e6)} M parameters, on {device.name}",
            ours=milliseconds(median_of(found["trainer"])),
            against=f"bare jitted loop {milliseconds(median_of(found['loop']))}",
            ratio=_ratio(found["trainer"], found["loop"]),
            target=TARGETS[arm.what],
            note=f"both end at a loss of {shown(found['loss'])}",
            samples=found,
        )


def _in_turns(directory: str, platform: str, block: int, is_short: bool, turns: int) -> Callable[[int], dict[str, Any]]:
    """Both in one process, in turns: seconds per step of each turn, by rounds of so many turns."""
    from benchmarks.by_hand import Loop
    from benchmarks.trainings import InTurns, made

    def run(rounds: int) -> dict[str, Any]:
        # The first turn compiles. Beyond the last one the trainer makes one block.
        training = {"steps_per_call": block, "log_every": _STEPS if block > 1 else 10}
        steps = (1 + rounds * turns) * _STEPS + block
        config = training_sizes.prepare(Path(directory), platform, steps, short=is_short, **training)
        trainer, loop = made(InTurns, directory, "step", config), Loop(config)
        seconds: dict[str, list[float]] = {"trainer": [], "loop": []}
        begun = time.perf_counter()

        def turn() -> None:
            nonlocal begun
            between = time.perf_counter()
            loop.run(_STEPS)
            seconds["trainer"].append((between - begun) / _STEPS)
            begun = time.perf_counter()
            seconds["loop"].append((begun - between) / _STEPS)

        trainer.every, trainer.turn = _STEPS, turn
        trainer()
        _check_same(loop.run(block), trainer.measured["loss"])
        return {
            "trainer": _by_rounds(seconds["trainer"][1:], turns),
            "loop": _by_rounds(seconds["loop"][1:], turns),
            "parameters": sum(array.size for array in trainer.live_state.params.values()),
            "loss": trainer.measured["loss"],
        }

    return run


def _ratio(trainer: Rounds, loop: Rounds) -> Spread:
    """By rounds, the median of what neighbouring turns say: other work on the machine meets both of them."""
    return Spread.of(
        [
            statistics.median(ours / theirs for ours, theirs in zip(*samples, strict=True))
            for samples in zip(trainer, loop, strict=True)
        ]
    )


def _by_rounds(samples: list[float], turns: int) -> Rounds:
    return [samples[start : start + turns] for start in range(0, len(samples), turns)]


def _check_same(by_hand: float, ours: float) -> None:
    """Raise BenchError unless both have learnt the same: else they were not the same training."""
    if abs(by_hand - ours) > 1e-2 * statistics.fmean((by_hand, ours)):
        raise BenchError(f"the loop by hand ends at a loss of {by_hand}, the trainer at {ours}")
