"""Hosts that may have to be made before attempts can run there, and that may be gone again at any time.

Nothing is claimed for a host that is not up: a job that nothing else runs is demand for it, stays queued, and is shown
with the reason. So there is nothing to be put back when the host cannot be made, and other outlets may take the job
meanwhile. When the host is surely gone, the attempts that ran there have ended, and what was known of its disk is
forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from dispatcher.outlets.base import LOST
from dispatcher.outlets.batch.agent_session import Step

# A job that another outlet takes in the same round is no demand: it has to ask once more after this time.
_SETTLED_S: Final = 1.0


class HostLoss(msgspec.Struct, frozen=True):
    """How attempts ended that ran on a host that is gone: the reason for their records (PREEMPTED, LOST), and why."""

    reason: str
    why: str


class Provisioning(Protocol):
    """Whether one host is there, and what is done so that it is. No call blocks."""

    @property
    def is_up(self) -> bool:
        """Whether the host can be called now."""

    @property
    def identity(self) -> str:
        """Differs from that of any other host that had the name before; empty when it is not known."""

    @property
    def can_be_made(self) -> bool:
        """Whether it is not up, but will be while jobs wait for it."""

    @property
    def problem(self) -> str:
        """Why it is not up, for people; empty when it is."""

    @property
    def unfit(self) -> str:
        """Why nothing more is started on the host that is there, although it is up; empty for one that may be used."""

    @property
    def failure(self) -> str:
        """The problem, or why it is unfit, if that is what people should be warned of."""

    @property
    def loss(self) -> HostLoss | None:
        """How attempts that ran there ended, if the host surely runs none any more."""

    @property
    def replaced(self) -> HostLoss:
        """How attempts ended that ran on a host which had the name before."""

    @property
    def is_busy(self) -> bool:
        """Whether it is being found out whether the host is there, for the first time or anew."""

    def work(self, *, is_wanted: bool, is_used: bool) -> None:
        """Take in what was answered and begin what is due. `is_used`: attempts of this dispatcher are there."""

    def doubt(self, why: str) -> None:
        """A call has failed there: look whether the host is still up before it is called again."""

    def steps(self) -> Sequence[Step]:
        """What is due on the host itself: it is asked whether it is unused, or told that it is needed."""

    def wait_fds(self) -> list[int]: ...

    def due_in_s(self) -> float | None: ...

    def close(self, *, is_used: bool) -> None:
        """The dispatcher ends. `is_used`: attempts of this dispatcher go on there."""


class UnmanagedHost:
    """A host that the outlet neither creates nor deletes: it counts as up until a call fails."""

    is_up = True
    identity = ""
    can_be_made = False
    problem = ""
    unfit = ""
    failure = ""
    loss = None
    replaced = HostLoss(LOST, "the host is another one now")
    is_busy = False

    def work(self, *, is_wanted: bool, is_used: bool) -> None:
        """There is nothing to be made."""

    def doubt(self, why: str) -> None:
        """The next call tells."""

    def steps(self) -> Sequence[Step]:
        return ()

    def wait_fds(self) -> list[int]:
        return []

    def due_in_s(self) -> float | None:
        return None

    def close(self, *, is_used: bool) -> None:
        """Nothing was made."""


class PendingDemand:
    """Whether jobs wait for a host that is not up. Times are of the monotonic clock.

    It is settled once two rounds of claims have asked for it, until none has asked for `kept_s`.
    """

    def __init__(self, kept_s: float) -> None:
        self._kept_s = kept_s
        self._since_s: float | None = None
        self._last_s = 0.0

    def ask(self) -> None:
        """A job that could run there was not claimed, because the host is not up."""
        now_s = time.monotonic()
        if self._since_s is None or now_s - self._last_s > self._kept_s:
            self._since_s = now_s
        self._last_s = now_s

    @property
    def is_settled(self) -> bool:
        if self._since_s is None or time.monotonic() - self._last_s > self._kept_s:
            return False
        return self._last_s - self._since_s >= _SETTLED_S

    def due_in_s(self) -> float | None:
        """How long to wait before checking whether the demand is settled, in seconds. None: already decided."""
        if self._since_s is None or self._last_s - self._since_s >= _SETTLED_S:
            return None
        left_s = self._since_s + _SETTLED_S - time.monotonic()
        # One that has not asked again was taken elsewhere.
        return left_s if left_s > 0 else None
