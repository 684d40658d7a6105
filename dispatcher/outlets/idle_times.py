"""For how long attempts have left their GPUs at 0 %, from samples."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dispatcher.config import Config, GpuIdle
from dispatcher.outlets.base import Key

# The driver's figure is of at most the last second.
_PERIOD_S: Final = 1.0
# So many intervals may pass between two samples that tell something: one may be lost.
GAP_INTERVALS: Final = 2.5
_NEVER: Final = (None, float("-inf"))
_INTERVAL_S: Final = 15.0
# Where each sample is a program of its own, beside the attempt, and how long that may take.
NODE_INTERVAL_S: Final = 30.0
SMI_LIMIT_S: Final = 10.0
# So many samples at least tell that a GPU was idle for as long as a method says.
_SAMPLES: Final = 8


def sampling_interval_s(config: Config) -> float | None:
    """How often the GPUs of this host are to be sampled for what the methods ask; None: never."""
    intervals = (_interval_s(config.gpu_idle_of(name), _INTERVAL_S) for name in ("", *config.methods))
    return min((interval_s for interval_s in intervals if interval_s is not None), default=None)


def node_interval_s(limit: GpuIdle) -> float | None:
    """How often an attempt's GPUs are to be sampled where it runs on another host; None: never."""
    return _interval_s(limit, NODE_INTERVAL_S)


def _interval_s(limit: GpuIdle, longest_s: float) -> float | None:
    return None if limit.after_s is None else min(longest_s, limit.after_s / _SAMPLES)


class IdleTimes:
    """For how long attempts have left their GPUs idle, from samples that are taken every `interval_s`.

    Times are seconds of a clock that counts while the host is suspended. One thread may note while another asks.
    """

    def __init__(self, interval_s: float) -> None:
        self._longest_gap_s = interval_s * GAP_INTERVALS
        # Since when it was idle (None: it was not), and when that was last known.
        self._seen: dict[Key, tuple[float | None, float]] = {}

    def keep(self, keys: Collection[Key]) -> None:
        """Forget all others."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}

    def note(self, key: Key, uses: bool | None, now_s: float) -> None:
        """A sample: whether an attempt uses its GPUs, None where that is unknown."""
        if uses is None:
            return
        since_s, known_s = self._seen.get(key, _NEVER)
        if uses:
            since_s = None
        elif since_s is None or now_s - known_s > self._longest_gap_s:
            since_s = now_s - _PERIOD_S
        self._seen[key] = since_s, now_s

    def idle_s(self, key: Key, now_s: float) -> float | None:
        """For how long all its GPUs have been at 0 %; 0 when they are in use, None when it is unknown."""
        since_s, known_s = self._seen.get(key, _NEVER)
        if now_s - known_s > self._longest_gap_s:
            return None
        return 0.0 if since_s is None else known_s - since_s
