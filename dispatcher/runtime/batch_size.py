"""The largest batch that fits on a device, found by trying, and remembered.

From 1024 rows (or from as many as a device is ever given) down by halves until one fits; then between that one and the
last that did not, by halves again. Each try is a process of its own: what runs out of memory may take its process
with it, and what it leaves behind must not count against the next.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from dispatcher.base import files
from dispatcher.errors import BatchSizeError

LARGEST: Final = 1024
# Beyond the time that the slowest finished probe took, times this, a probe is taken to hang.
PATIENCE: Final = 4.0
FIRST_LIMIT_S: Final = 900.0
LEAST_LIMIT_S: Final = 60.0

# What configurations of siblings differ in, without any difference in memory.
_FREE: Final = {
    "training": None,
    "data": {"train", "held_out"},
    "optimization": {"lr", "schedule", "warmup", "decay", "final_lr", "b1", "b2", "eps", "momentum", "weight_decay"},
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a probe went: whether the batch fits, how long it took in seconds, and why it does not fit."""

    fits: bool
    seconds: float
    why: str = ""


class Probe(Protocol):
    """Tries one batch size; gives up after `limit_s` seconds, which means that it does not fit."""

    def __call__(self, rows: int, limit_s: float) -> Outcome: ...


def largest_that_fits(probe: Probe, most: int = LARGEST, usable: Callable[[int], bool] = lambda rows: True) -> int:
    """The largest number of rows, at most `most` and at most 1024, that fits; BatchSizeError when not even one does.

    Where only some numbers are `usable`, the search ends as soon as it is known which of them is the largest.
    """
    slowest_s: float | None = None

    def fits(rows: int) -> bool:
        nonlocal slowest_s
        limit_s = FIRST_LIMIT_S if slowest_s is None else max(LEAST_LIMIT_S, PATIENCE * slowest_s)
        outcome = probe(rows, limit_s)
        if outcome.seconds < limit_s:
            slowest_s = max(slowest_s or 0.0, outcome.seconds)
        verdict = "fits" if outcome.fits else f"does not fit: {outcome.why}"
        _log.info("batch size %d %s (%.1f s)", rows, verdict, outcome.seconds)
        return outcome.fits

    failed: int | None = None
    for rows in candidates(most):
        if fits(rows):
            return _between(rows, failed, fits, usable)
        failed = rows
    raise BatchSizeError("not even one row fits into the memory of the device: use a smaller model or shorter rows")


def candidates(most: int) -> list[int]:
    """The sizes to try, the largest first: `most`, unless it is beyond 1024, and the powers of two below it."""
    top = min(most, LARGEST)
    return [top, *(2**power for power in range(LARGEST.bit_length(), -1, -1) if 2**power < top)]


def _between(works: int, fails: int | None, fits: Callable[[int], bool], usable: Callable[[int], bool]) -> int:
    if fails is None:
        return works
    while any(map(usable, range(works + 1, fails))):
        middle = (works + fails) // 2
        if fits(middle):
            works = middle
        else:
            fails = middle
    return works


def key_of(job: str, config: Mapping[str, Any], **circumstances: Any) -> str:
    """The name under which a result is remembered: of the job, its configuration, the chip, and what else counts."""
    counting = {group: _counting(group, said) for group, said in config.items()}
    text = json.dumps([job, counting, circumstances], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def remembered(path: Path) -> int | None:
    """What an earlier search found; None when there was none, or when its file cannot be read."""
    try:
        rows = int(json.loads(path.read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rows if rows >= 1 else None


def remember(path: Path, rows: int, **about: Any) -> None:
    """Keep a result for siblings and for later attempts; `about` is for people who read the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"rows": rows, **about}, default=str) + "\n"
    files.replace_file(path, text.encode(), durable=False)


def _counting(group: str, said: Any) -> Any:
    """The part of a group of the configuration that may change how much memory is needed."""
    if group not in _FREE or not isinstance(said, Mapping):
        return said
    free = _FREE[group]
    return {} if free is None else {name: value for name, value in said.items() if name not in free}
