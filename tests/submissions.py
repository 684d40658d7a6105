"""A second kind of capacity, for tests: a limit of submissions in flight, as a cluster's queue has it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dispatcher.outlets.base import WORKSPACE, Request, Slot


class SubmissionsOffer(msgspec.Struct, frozen=True):
    """`most_gpus` is what the largest node of the cluster has; `problem` is why nothing can be submitted now."""

    limit: int
    most_gpus: int = 8
    problem: str = ""
    place: str = WORKSPACE

    def refuses(self, request: Request) -> str:
        return f"no node has {request.gpus} GPUs" if (request.gpus or 0) > self.most_gpus else ""

    def refuses_now(self, request: Request) -> str:
        return self.problem

    def lacks(self, request: Request) -> str:
        return ""


class Submissions:
    """Room for `limit` attempts, whatever they ask for."""

    def __init__(self, limit: int, most_gpus: int = 8, place: str = WORKSPACE, *, packs: bool = False) -> None:
        self.packs = packs
        self.place = place
        self.limit = limit
        self.most_gpus = most_gpus
        self.in_flight = 0
        self.problem = ""

    @property
    def is_full(self) -> bool:
        return bool(self.problem) or self.in_flight >= self.limit

    def gpus_of(self, request: Request) -> int:
        return request.gpus or 0

    def offer(self) -> SubmissionsOffer:
        return SubmissionsOffer(self.limit, self.most_gpus, self.problem, self.place)

    def refuses(self, request: Request) -> str:
        return self.offer().refuses(request)

    def refuses_now(self, request: Request) -> str:
        return self.offer().refuses_now(request)

    def lacks(self, request: Request) -> str:
        return self.offer().lacks(request)

    def take(self, request: Request, ahead: Sequence[Request] = ()) -> Slot | None:
        if self.is_full or self.refuses(request):
            return None
        self.in_flight += 1
        return Slot()

    def adopt(self, slot: Slot) -> None:
        self.in_flight += 1

    def release(self, slot: Slot) -> None:
        if not self.in_flight:
            raise ValueError("nothing is in flight")
        self.in_flight -= 1

    def outlook(self, request: Request) -> float | None:
        return 0.0

    def slot_text(self, slot: Slot) -> str:
        return "submission"
