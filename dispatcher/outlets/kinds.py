"""The kinds of outlets that there are, by name: what a pod must know of another pod's outlet to explain a wait.

A new outlet is one more line in OUTLET_KINDS. Nothing here loads more than `dispatcher status` may pay for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.outlets.base import OutletOffer, Request
from dispatcher.outlets.local import offer as local
from dispatcher.run_state.liveness import SlotInfo


class OutletKind(msgspec.Struct, frozen=True):
    """`read_offer` decodes what a pod has published of such an outlet (msgspec.ValidationError for what is none).

    `refused_by_all` is why several of these offers all refuse a request for ever. `shared_hardware` names what the
    slots of two pods of one machine have in common, empty for nothing; the machine's containers may have host names of
    their own, in which case the last argument is False.
    """

    read_offer: Callable[[Mapping[str, Any]], OutletOffer]
    refused_by_all: Callable[[Request, Sequence[Any]], str]
    shared_hardware: Callable[[Sequence[SlotInfo], Sequence[SlotInfo], bool], str]


OUTLET_KINDS: Final[Mapping[str, OutletKind]] = {
    "local": OutletKind(local.read_offer, local.refused_by_all, local.shared_hardware),
}
