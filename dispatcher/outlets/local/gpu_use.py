"""Which attempts leave their GPUs idle: for how long all GPUs of an attempt have been at 0 %.

A claim needs proof. What the driver does not tell (MIG), or cannot be ascribed, is unknown, and no proof of anything.
Where several attempts share a GPU that is in use, an attempt is idle only if every process that computes there belongs
to another attempt of this pod; a process of somebody else may well work for it (a container's).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from dispatcher.outlets.base import Key
from dispatcher.outlets.local.gpus import Gpu, Health

# The driver's figure is of at most the last second.
_PERIOD_S = 1.0
# So many intervals may pass between two samples that tell something: one may be lost.
_GAP_INTERVALS = 2.5


class IdleTimes:
    """For how long attempts have left their GPUs idle, from samples that are taken every `interval_s`.

    Times are seconds of a clock that counts while the host is suspended. One thread may note while another asks.
    """

    def __init__(self, interval_s: float) -> None:
        self._longest_gap_s = interval_s * _GAP_INTERVALS
        # Since when it was idle (None: it was not), and when that was last known.
        self._seen: dict[Key, tuple[float | None, float]] = {}

    def keep(self, keys: Collection[Key]) -> None:
        """Forget all others."""
        self._seen = {key: seen for key, seen in self._seen.items() if key in keys}

    def note(self, key: Key, uses: bool | None, now_s: float) -> None:
        """A sample: whether an attempt uses its GPUs, None where that is unknown."""
        if uses is None:
            return
        since_s, known_s = self._seen.get(key, (None, float("-inf")))
        if uses:
            since_s = None
        elif since_s is None or now_s - known_s > self._longest_gap_s:
            since_s = now_s - _PERIOD_S
        self._seen[key] = since_s, now_s

    def idle_s(self, key: Key, now_s: float) -> float | None:
        """For how long all its GPUs have been at 0 %; 0 when they are in use, None when it is unknown."""
        since_s, known_s = self._seen.get(key, (None, float("-inf")))
        if now_s - known_s > self._longest_gap_s:
            return None
        return 0.0 if since_s is None else known_s - since_s


def used(
    attempts: Mapping[Key, tuple[int, ...]], gpus: Iterable[Gpu], attempt_of: Callable[[int], Key | None]
) -> dict[Key, bool | None]:
    """Whether each attempt uses any of its GPUs; None where that is unknown. `attempt_of` tells whose a pid is."""
    samples = {gpu.index: gpu for gpu in gpus}
    found = {}
    for key, indices in attempts.items():
        uses = [_uses(key, samples.get(index), attempts, attempt_of) for index in indices]
        found[key] = True if True in uses else None if None in uses or not uses else False
    return found


def _uses(
    key: Key, gpu: Gpu | None, attempts: Mapping[Key, tuple[int, ...]], attempt_of: Callable[[int], Key | None]
) -> bool | None:
    if gpu is None or gpu.health is not Health.OK or gpu.busy_percent is None:
        return None
    if gpu.busy_percent == 0:
        return False
    others = [other for other, indices in attempts.items() if gpu.index in indices and other != key]
    if not others:
        return True
    owners = {attempt_of(pid) for pid in gpu.computing or ()}
    if key in owners:
        return True
    return False if owners and owners <= set(others) else None
