"""What is free on one host, for a pod that chooses hosts: its last report, less what was given since."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from dispatcher.hosts.types import AnyHost, Hosts, TpuHost
from dispatcher.outlets.base import Request
from dispatcher.outlets.remote.operations import Operation
from dispatcher.outlets.solver.query import questions, read_report
from dispatcher.outlets.solver.reports import HostReport, Unreachable, VmReport
from dispatcher.outlets.solver.request import Choice, HardwareRequest, UnsuitableHost
from dispatcher.outlets.solver.solve import give, judge

# While attempts are to be placed, a host is asked so often, sooner when one of the pod's own attempts has ended there.
# What it has told longer ago than USE_FOR_S is not used.
ASK_EVERY_S: Final = 60.0
ASK_AGAIN_S: Final = 5.0
USE_FOR_S: Final = 120.0
_ANSWER_S: Final = 30.0
# So long is it worth waiting for what a host tells, before attempts go elsewhere.
AWAITED_S: Final = 10.0


class FreeHardware:
    """One host. `outlook` says that an answer is wanted, and `due_in_s` then shows when to ask."""

    def __init__(
        self,
        host: AnyHost,
        hosts: Hosts,
        root: Path,
        default_gpus: Callable[[Request], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`root`: of the workspace. `default_gpus`: what the host's scheduler gives a request that leaves them open."""
        self._host = host
        self._hosts = hosts
        self._root = root
        self._default_gpus = default_gpus
        self._clock = clock
        self._report: HostReport | None = None
        self._told_s = 0.0
        # From the start, so that the first attempts are placed by what the host has told.
        self._is_wanted = True
        self._has_changed = False
        # Since when a claim waits for an answer.
        self._awaited_since_s: float | None = clock()
        self._verdicts: dict[Request, Choice | UnsuitableHost] = {}
        self._refused: dict[Request, str] = {}

    @property
    def problem(self) -> str:
        """Why the host does not tell what is free; empty when it does, or was not asked yet."""
        return self._report.error if isinstance(self._report, Unreachable) else ""

    def due_in_s(self) -> float | None:
        """Seconds until the host is to be asked; None while no answer is wanted."""
        if not self._is_wanted:
            return None
        every_s = ASK_AGAIN_S if self._has_changed else ASK_EVERY_S
        return 0.0 if self._report is None else max(0.0, self._told_s + every_s - self._clock())

    def questions(self) -> list[Operation]:
        """What to ask the host now; nothing when it is not due."""
        return questions(self._host, _ANSWER_S, self._root) if self.due_in_s() == 0.0 else []

    def take_in(self, answers: Sequence[Any], waiting: Iterable[Request], running: Iterable[Request] = ()) -> None:
        """The answers to `questions`.

        `waiting` are attempts that this pod has submitted and that do not run yet, `running` those that do.
        """
        self._report = read_report(self._host, answers)
        self._told_s = self._clock()
        self._is_wanted = self._has_changed = False
        self._awaited_since_s = None
        self._verdicts.clear()
        self._refused.clear()
        # Other hosts tell themselves what running attempts use.
        unseen = running if isinstance(self._report, VmReport) else ()
        for request in (*waiting, *unseen):
            self.give(request)

    def give(self, request: Request) -> None:
        """An attempt was placed here: what it will use is not free any more."""
        if self._report is not None:
            self._report = give(self._host, self._asked(request), self._hosts, self._report)
        self._verdicts.clear()

    def note_end(self) -> None:
        """An attempt of this pod has ended here: more may be free than was told."""
        self._has_changed = True

    def outlook(self, request: Request) -> float | None:
        """See Capacity.outlook; None also for a host that has not told what is free for long."""
        self._is_wanted = True
        if self._report is None or self._clock() - self._told_s > USE_FOR_S:
            if self._awaited_since_s is None:
                self._awaited_since_s = self._clock()
            return math.inf if self.awaited_for_s() else None
        verdict = self._verdicts.get(request)
        if verdict is None:
            verdict = self._verdicts[request] = judge(self._host, self._asked(request), self._hosts, self._report)
        if isinstance(verdict, UnsuitableHost) or verdict.must_be_created:
            self._refused[request] = verdict.why
            return None
        self._refused.pop(request, None)
        return 1 / (1 + (verdict.free_chips or 0)) if verdict.is_queued else 0.0

    def refused(self) -> dict[Request, str]:
        """The requests that were last asked about and cannot start here, nor wait; and why."""
        return dict(self._refused)

    def awaited_for_s(self) -> float | None:
        """For how long an answer is still worth waiting for; None when it is not waited for any more."""
        if self._awaited_since_s is None:
            return None
        left_s = self._awaited_since_s + AWAITED_S - self._clock()
        return left_s if left_s > 0 else None

    def _asked(self, request: Request) -> HardwareRequest:
        """The request as the host's outlet takes it; whatever runs on a TPU VM has its chips."""
        default = 1 if isinstance(self._host, TpuHost) else self._default_gpus(request)
        return HardwareRequest(
            chip=request.chip,
            min_chips=default if request.gpus is None else request.gpus,
            cpus=request.cpus,
            memory_mib=request.memory_mib,
            nodes=request.nodes,
            slurm=request.slurm,
            pbs=request.pbs,
        )
