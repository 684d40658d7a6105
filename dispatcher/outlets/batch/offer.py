"""What a batch outlet of a pod offers, as its pod publishes it, and which requests that refuses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.base.devices import VISIBLE
from dispatcher.outlets.base import Request
from dispatcher.run_state.liveness import SlotInfo


class Refused(msgspec.Struct, frozen=True):
    """Attempts with this request are not placed on the host, and why."""

    request: Request
    why: str


class BatchOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Room for `limit` attempts in flight.

    `refused` are the requests of the pod's entries that the host, as it is configured, can never run; whatever else is
    asked for is left to the scheduler. `problem` is why nothing can be submitted now, `place` where attempts keep their
    checkpoints (see OutletOffer). `refused_now`: what a pod that goes by the free hardware does not place there at the
    moment.
    """

    limit: int
    refused: Sequence[Refused] = ()
    problem: str = ""
    place: str = ""
    refused_now: Sequence[Refused] = ()

    def refuses(self, request: Request) -> str:
        """Why such an attempt can never run here; empty when it can, once there is room."""
        if not self.limit:
            return "this pod submits nothing there"
        if request.only:
            listed = ",".join(map(str, request.only))
            return f"env names GPU {listed} ({VISIBLE}): which GPUs a job gets is decided there; remove it from env"
        return _why(self.refused, request)

    def refuses_now(self, request: Request) -> str:
        """Why there is no room; empty when it is not known, or waiting for an attempt of the pod helps."""
        return self.problem or _why(self.refused_now, request)

    def lacks(self, request: Request) -> str:
        """Nothing that is known here: its scheduler counts."""
        return ""


def _why(refused: Sequence[Refused], request: Request) -> str:
    return next((each.why for each in refused if each.request == request), "")


def read_offer(published: Mapping[str, Any]) -> BatchOffer:
    """The offer that a pod has published; raises msgspec.ValidationError for what is none."""
    return msgspec.convert(published, BatchOffer)


def refused_by_all(request: Request, offers: Sequence[BatchOffer]) -> str:
    """Why none of these can ever run such an attempt, for a request that each of them refuses."""
    return next(iter(dict.fromkeys(offer.refuses(request) for offer in offers)), "")


def no_shared_hardware(mine: Sequence[SlotInfo], theirs: Sequence[SlotInfo], same_host_name: bool) -> str:
    """Submissions of two pods have nothing in common that could be used twice."""
    return ""
