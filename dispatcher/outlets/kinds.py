"""The kinds of outlets that there are, by name: how a pod makes one, and how it reads another pod's offer.

A new outlet is one more line in OUTLET_KINDS. Nothing here loads more than `dispatcher status` may pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.errors import UsageError
from dispatcher.outlets.base import Outlet, OutletOffer, Request
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.outlets.local import offer as local_offer
from dispatcher.run_state.liveness import SlotInfo

# The outlet of an attempt whose record names none.
DEFAULT: Final = LOCAL


class OutletKind(msgspec.Struct, frozen=True):
    """`make` makes the outlet of a pod, or None for options that ask for none; UsageError for unusable options.

    `read_offer` decodes what a pod has published of such an outlet (msgspec.ValidationError for what is none).
    `refused_by_all` is why several of these offers all refuse a request for ever. `shared_hardware` names what the
    slots of two pods of one machine have in common, empty for nothing; the machine's containers may have host names of
    their own, in which case the last argument is False.
    """

    make: Callable[[PodContext], Outlet | None]
    read_offer: Callable[[Mapping[str, Any]], OutletOffer]
    refused_by_all: Callable[[Request, Sequence[Any]], str]
    shared_hardware: Callable[[Sequence[SlotInfo], Sequence[SlotInfo], bool], str]


def _make_local(context: PodContext) -> Outlet | None:
    if not context.gpus.strip() and not context.cpu_slots:
        return None
    # Readers of offers do not load what starts processes.
    from dispatcher.outlets.local.outlet import LocalOutlet

    return LocalOutlet(context)


OUTLET_KINDS: Final[dict[str, OutletKind]] = {
    LOCAL: OutletKind(_make_local, local_offer.read_offer, local_offer.refused_by_all, local_offer.shared_hardware),
}


def make_outlets(context: PodContext) -> dict[str, Outlet]:
    """The outlets of a pod by name, the preferred first; raises UsageError for options that cannot be used."""
    made: dict[str, Outlet] = {}
    try:
        for name, kind in OUTLET_KINDS.items():
            outlet = kind.make(context)
            if outlet is not None:
                made[name] = outlet
    except BaseException:
        for each in made.values():
            each.close()
        raise
    if not made:
        raise UsageError("a pod needs slots: --gpus 0,1,2,3 for GPUs, --slots N for CPU slots, or both")
    return made
