"""The seam between the loop and the places where attempts run: plain data in, plain data out.

An outlet never touches the run state. Its poll is batched, so that one query serves all attempts in flight, and a
state that it does not know is Unknown, which nobody takes for ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec


class Key(msgspec.Struct, frozen=True, order=True):
    """The identity of an attempt, everywhere: a job and the attempt's number, from 1."""

    job_id: str
    number: int


class Request(msgspec.Struct, frozen=True):
    """What an attempt asks for. `gpus` 0: a CPU slot; None: a CPU slot or one GPU, whichever is free."""

    gpus: int | None = None


class Slot(msgspec.Struct, frozen=True):
    """Room for one attempt: its GPUs in PCI order, none for a CPU slot."""

    gpus: tuple[int, ...] = ()


class Capacity(Protocol):
    """The room that an outlet has. Pure bookkeeping: no call blocks or asks anybody."""

    @property
    def is_full(self) -> bool:
        """Whether `take` would refuse every request now."""

    def refuses(self, request: Request) -> str:
        """Why such an attempt can never run here; empty when it can, once there is room."""

    def refuses_now(self, request: Request) -> str:
        """Why there is no room whatever ends, such as GPUs that cannot be used; empty when waiting helps."""

    def take(self, request: Request, ahead: Sequence[Request] = ()) -> Slot | None:
        """A slot, from now on in use; None when there is no room now.

        `ahead` are requests that come first and did not fit: what they wait for is kept for them.
        """

    def release(self, slot: Slot) -> None:
        """Give back what `take` gave; ValueError for a slot that is not in use."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of an entry, ready to start: its directory holds the wrapper and all that the wrapper reads.

    `environment` are changes to the environment of whoever starts it (None takes a variable out).
    """

    job_id: str
    number: int
    directory: Path
    wrapper: Path
    root: Path
    gpus: tuple[int, ...] = ()
    environment: Mapping[str, str | None] = {}


class Pending(msgspec.Struct, frozen=True):
    """Accepted, not started yet."""

    why: str = ""


class Running(msgspec.Struct, frozen=True):
    """Some process of it lives; `note` says what is unusual (strays being stopped)."""

    note: str = ""


class Ended(msgspec.Struct, frozen=True):
    """Nothing of it is left. `exit_code` None: it was killed outright and nobody wrote an exit status.

    `reason` is what the wrapper or the scheduler says beyond the status: `time limit`, `preempted`, `superseded`,
    `out of memory`; empty when the status says all. `detail` is what else is known of one that nobody saw ending.
    """

    exit_code: int | None
    reason: str = ""
    ended_at: str | None = None
    detail: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """Nobody can say at the moment; never treated as ended."""

    why: str = ""


Outcome = Pending | Running | Ended | Unknown


class Outlet(Protocol):
    """A place where attempts run."""

    def submit(self, attempt: Attempt) -> str:
        """Start it; a handle that finds it again, also by a dispatcher that is started later."""

    def poll(self, handles: Sequence[str]) -> Mapping[str, Outcome]:
        """How each of them is; one query for all."""

    def cancel(self, handle: str, *, force: bool = False) -> None:
        """Ask it to end (TERM, and KILL after the grace period); `force` kills at once. Returns without waiting."""

    def log(self, handle: str) -> Path:
        """Where to read its output."""
