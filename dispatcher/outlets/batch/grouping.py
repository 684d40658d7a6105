"""Which attempts go together: in one job, one after the other (a pack), and in one submission (an array). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dispatcher.outlets.base import Bundle, Key

# Without a limit of the site that is known.
_ARRAY_SIZE: Final = 1000


def submissions_of(bundles: Sequence[Bundle], array_size: int | None, *, makes_arrays: bool) -> list[list[Bundle]]:
    """These bundles by submission: packs stay together, and equal ones are an array where there are arrays.

    An array has jobs of one length only, because all of them are given the same time, and of one code.
    """
    packs = _packs(bundles)
    if not makes_arrays:
        return packs
    equal: dict[Any, list[list[Bundle]]] = {}
    for pack in packs:
        equal.setdefault((pack[0].request, pack[0].time_limit_s, len(pack), pack[0].code), []).append(pack)
    size = max(1, array_size or _ARRAY_SIZE)
    arrays = [some[at : at + size] for some in equal.values() for at in range(0, len(some), size)]
    return [[bundle for pack in array for bundle in pack] for array in arrays]


def jobs_of(bundles: Sequence[Bundle]) -> tuple[tuple[int, ...], ...]:
    """The indices of the bundles of a submission that each of its jobs runs, one after the other."""
    jobs = []
    at = 0
    for pack in _packs(bundles):
        jobs.append(tuple(range(at, at + len(pack))))
        at += len(pack)
    return tuple(jobs)


def _packs(bundles: Sequence[Bundle]) -> list[list[Bundle]]:
    packs: dict[Key, list[Bundle]] = {}
    for bundle in bundles:
        packs.setdefault(bundle.pack or bundle.key, []).append(bundle)
    return list(packs.values())
