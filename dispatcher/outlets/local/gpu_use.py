"""Which attempts use their GPUs, by a sample.

A claim needs proof. What the driver does not tell (MIG), or cannot be ascribed, is unknown, and no proof of anything.
Where several attempts share a GPU that is in use, an attempt is idle only if every process that computes there belongs
to another attempt of this pod; a process of another user may well work for it (a container's).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from dispatcher.outlets.base import Key
from dispatcher.outlets.local.gpus import Gpu, Health


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
