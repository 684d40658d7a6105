"""For how long attempts have left their GPUs at 0 %, from samples."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dispatcher.config import Config
from dispatcher.outlets.base import Key

# The driver's figure is of at most the last second.
_PERIOD_S: Final = 1.0
# So many intervals may pass between two samples that tell something: one may be lost.
_GAP_INTERVALS: Final = 2.5
_NEVER: Final = (None, float("-inf"), 0)
_INTERVAL_S: Final = 15.0
# So many samples at least tell that a GPU was idle for as long as a method says.
SAMPLES: Final = 8


def sampling_interval_s(config: Config) -> float | None:
    """How often GPUs are to be sampled for what the methods ask; None: never."""
    afters = [config.gpu_idle_of(name).after_s for name in ("", *config.methods)]
    shortest_s = min((after_s for after_s in afters if after_s is not None), default=None)
    return None if shortest_s is None else min(_INTERVAL_S, shortest_s / SAMPLES)


class IdleTimes:
    """For how long attempts have left their GPUs idle, from samples that are taken every `interval_s`.

    Fewer samples than `least` prove nothing. Times are seconds of a clock that counts while the host is suspended. One
    thread may note while another asks.
    """

    def __init__(self, interval_s: float, least: int = 1) -> None:
        self._longest_gap_s = interval_s * _GAP_INTERVALS
        self._least = least
        # Since when it was idle (None: it was not), when that was last known, and by how many samples.
        self._seen: dict[Key, tuple[float | None, float, int]] = {}

    def keep(self, keys: Collection[Key]) -> None:
        """Forget all others."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}

    def forget(self, key: Key) -> None:
        self._seen.pop(key, None)

    def note(self, key: Key, uses: bool | None, now_s: float) -> None:
        """A sample: whether an attempt uses its GPUs, None where that is unknown."""
        if uses is None:
            return
        since_s, known_s, count = self._seen.get(key, _NEVER)
        if uses:
            since_s, count = None, 0
        elif since_s is None or now_s - known_s > self._longest_gap_s:
            since_s, count = now_s - _PERIOD_S, 0
        self._seen[key] = since_s, now_s, count + 1

    def idle_s(self, key: Key, now_s: float) -> float | None:
        """For how long all its GPUs have been at 0 %; 0 when they are in use, None when it is unknown."""
        since_s, known_s, count = self._seen.get(key, _NEVER)
        if now_s - known_s > self._longest_gap_s:
            return None
        if since_s is None:
            return 0.0
        return known_s - since_s if count >= self._least else None
