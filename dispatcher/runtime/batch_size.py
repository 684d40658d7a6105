"""Search for the largest batch that fits on a device, and the cache of what was found.

The search starts at 1024 rows, or at a device's share of the batch if that is less, and takes the next smaller
candidate until one fits; then it bisects between that size and the last one that did not fit. Every probe is a process
of its own: running out of memory may kill it, and memory that it leaves allocated must not affect the next one.
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

_MAX_ROWS: Final = 1024
# A probe that takes longer than the slowest one so far, times this, is considered hung.
TIMEOUT_FACTOR: Final = 4.0
FIRST_TIMEOUT_S: Final = 900.0
MIN_TIMEOUT_S: Final = 60.0
# Tried besides powers of two: where 16 rows do not fit, or 4, more than half of that often do.
_BETWEEN: Final = (10, 3)

# Settings that do not affect memory, so that jobs that differ only in these share a cache entry. The share of the batch
# that a device has is among the circumstances of a search.
_IGNORED_SCHEDULE: Final = {"lr", "schedule", "warmup", "decay", "min_lr_ratio"}
_IGNORED_SETTINGS: Final = {
    "training": {
        *("steps", "batch_size", "per_device_batch_size", "seed", "log_every", "eval_every", "save_every"),
        *("save_interval", "keep", "preemption_timeout_s", "profile", "prefetch", "wandb"),
    },
    "data": {"train", "eval"},
    "optimization": {*_IGNORED_SCHEDULE, "b1", "b2", "eps", "momentum", "weight_decay"},
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProbeResult:
    """Whether the batch fits, how long the probe took in seconds, and why the batch does not fit."""

    fits: bool
    seconds: float
    why: str = ""


class Probe(Protocol):
    """Tries one batch size; a probe that takes longer than `timeout_s` seconds counts as not fitting."""

    def __call__(self, rows: int, timeout_s: float) -> ProbeResult: ...


def largest_that_fits(
    probe: Probe, max_rows: int = _MAX_ROWS, usable: Callable[[int], bool] = lambda rows: True
) -> int:
    """The largest number of rows that fits, at most `max_rows` and 1024; BatchSizeError when not even one row fits.

    With `usable` the search stops as soon as no usable number is left between the largest that fits and the limit.
    """
    slowest_s: float | None = None

    def fits(rows: int) -> bool:
        nonlocal slowest_s
        timeout_s = FIRST_TIMEOUT_S if slowest_s is None else max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * slowest_s)
        result = probe(rows, timeout_s)
        if result.seconds < timeout_s:
            slowest_s = max(slowest_s or 0.0, result.seconds)
        verdict = "fits" if result.fits else f"does not fit: {result.why}"
        _log.info("batch size %d %s (%.1f s)", rows, verdict, result.seconds)
        return result.fits

    failed: int | None = None
    for rows in candidates(max_rows):
        if fits(rows):
            return _between(rows, failed, fits, usable)
        failed = rows
    raise BatchSizeError("not even one row fits into the memory of the device: use a smaller model or shorter rows")


def candidates(max_rows: int) -> list[int]:
    """The sizes to try, largest first: the smaller of `max_rows` and 1024, and below it powers of two, 10 and 3."""
    top = min(max_rows, _MAX_ROWS)
    below = {2**power for power in range(_MAX_ROWS.bit_length())}.union(_BETWEEN)
    return [top, *sorted((rows for rows in below if rows < top), reverse=True)]


def _between(works: int, fails: int | None, fits: Callable[[int], bool], usable: Callable[[int], bool]) -> int:
    """Bisect between a size that fits and one that does not."""
    if fails is None:
        return works
    while any(map(usable, range(works + 1, fails))):
        middle = (works + fails) // 2
        if fits(middle):
            works = middle
        else:
            fails = middle
    return works


def cache_key(job: str, config: Mapping[str, Any], **environment: Any) -> str:
    """The name of a cache entry: a digest of the job, the settings that affect memory, and all else that does."""
    relevant = {group: _relevant(group, settings) for group, settings in config.items()}
    text = json.dumps([job, relevant, environment], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def read_cache(path: Path) -> int | None:
    """The rows that an earlier search found; None when there was none, or when its file cannot be read."""
    try:
        rows = int(json.loads(path.read_text(encoding="utf-8"))["rows"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rows if rows >= 1 else None


def write_cache(path: Path, rows: int, **about: Any) -> None:
    """Write a result for sibling jobs and later attempts; `about` is for people who read the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"rows": rows, **about}, default=str) + "\n"
    files.replace_file(path, text.encode(), durable=False)


def _relevant(group: str, settings: Any) -> Any:
    """The settings of a group of the configuration that may affect memory."""
    if group not in _IGNORED_SETTINGS or not isinstance(settings, Mapping):
        return settings
    ignored = _IGNORED_SETTINGS[group]
    return {name: value for name, value in settings.items() if name not in ignored}
