"""The slots of a batch outlet: submissions in flight, up to a limit. Pure bookkeeping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from dispatcher.outlets.base import Request, Slot
from dispatcher.outlets.batch.offer import BatchOffer, Refused

if TYPE_CHECKING:
    from dispatcher.outlets.batch.provisioning import PendingDemand
    from dispatcher.outlets.solver.free import FreeHardware


# What is up already comes before what has to be made.
_AFTER_ALL_OTHERS: Final = 1.0


class Submissions:
    """Room for `limit` attempts, whatever they ask for.

    `problem` is why nothing can be submitted now, empty when nothing is wrong. `refused(request)` is why the host as it
    is configured can never run it. `place` is where attempts keep their checkpoints, empty until the host was reached.
    `packs`: several attempts may go in one job. `gpus_are_taken`: attempts wait already for GPUs that are in use.
    `is_awaited`: it is not known yet whether anything can be submitted. `can_be_made`: the host is not up, but it will
    be while there is `demand` for it, which jobs are that nothing else takes.
    """

    def __init__(
        self,
        limit: int,
        refused: Callable[[Request], str],
        *,
        packs: bool,
        default_gpus: Callable[[Request], int],
        free: FreeHardware | None = None,
        demand: PendingDemand | None = None,
    ) -> None:
        """`default_gpus`: what a request gets that leaves them open, for `gpus_of`.

        `free`: what the host has told of its hardware, for a pod that chooses hosts by that.
        """
        self.limit = limit
        self.packs = packs
        self._default_gpus = default_gpus
        self.problem = ""
        self.place = ""
        self.is_awaited = False
        self.can_be_made = False
        self.in_flight = 0
        self.gpus_are_taken = False
        self._refused = refused
        # Why the host can never run the requests that were asked about; empty where it can.
        self._verdicts: dict[Request, str] = {}
        self._free = free
        self._demand = demand

    def keep_to(self, most: int | None) -> None:
        """The site allows a user so many; None: any number. One is kept, so that the site can say why it takes none."""
        if most is not None:
            self.limit = min(self.limit, max(1, most))

    @property
    def is_full(self) -> bool:
        if self.can_be_made:
            return not self.limit
        return bool(self.problem) or self.in_flight >= self.limit

    def gpus_of(self, request: Request) -> int:
        return self._default_gpus(request) if request.gpus is None else request.gpus

    def offer(self) -> BatchOffer:
        refused = self._free.refused() if self._free is not None else {}
        return BatchOffer(
            limit=self.limit,
            refused=[Refused(request, why) for request, why in self._verdicts.items() if why],
            problem=self.problem,
            place=self.place,
            refused_now=[Refused(request, why) for request, why in refused.items()],
        )

    def refuses(self, request: Request) -> str:
        if request not in self._verdicts:
            self._verdicts[request] = self._refused(request)
        return self.offer().refuses(request)

    def refuses_now(self, request: Request) -> str:
        return self.offer().refuses_now(request)

    def lacks(self, request: Request) -> str:
        return self.offer().lacks(request)

    def take(self, request: Request, ahead: Sequence[Request] = ()) -> Slot | None:
        """Any request takes one submission, so those ahead have no more need of it than this one.

        One that would wait for GPUs behind others is left to other outlets and pods.
        """
        if self.is_full or self.refuses(request) or (self.gpus_are_taken and request.gpus != 0):
            return None
        if self.can_be_made:
            if self._demand is not None:
                self._demand.ask()
            return None
        self.in_flight += 1
        if self._free is not None:
            self._free.give(request)
        return Slot()

    def adopt(self, slot: Slot) -> None:
        self.in_flight += 1

    def release(self, slot: Slot) -> None:
        if not self.in_flight:
            raise ValueError("nothing is in flight")
        self.in_flight -= 1
        if self._free is not None:
            self._free.note_end()

    def outlook(self, request: Request) -> float | None:
        if self.is_awaited:
            return math.inf
        if self.can_be_made:
            return _AFTER_ALL_OTHERS
        return 0.0 if self._free is None else self._free.outlook(request)

    def slot_text(self, slot: Slot) -> str:
        return "a submission"
