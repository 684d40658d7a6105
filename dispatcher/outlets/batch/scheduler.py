"""What differs between the kinds of hosts: how attempts are given to a scheduler, and what its words mean.

A Scheduler is pure: it turns attempts into operations for the agent and answers into states. It runs nothing, keeps no
state of attempts and knows no clock. The engine (outlet.py) calls it.

A scheduler knows an attempt by the name of its submission and by its index in it: an array of jobs has one name. Names
derive from the attempts, so a name is never used twice; a job id of the scheduler is only a hint, because ids are used
again after some time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from dispatcher.hosts.types import SlotType
from dispatcher.outlets.base import Bundle, Key, Request
from dispatcher.outlets.remote.operations import Confirm, Operation
from dispatcher.workspace import Layout


class Phase(enum.Enum):
    """How far a scheduler says that a job is."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    # A state whose word this version does not know, or one that says nothing, such as a node that does not answer.
    UNKNOWN = "unknown"


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler reports about one attempt.

    `why` is for people: the reason why it waits, or the scheduler's own words of how it ended. `host` is where it runs.
    Of one that has ended: `exit_code` is that of the batch script (128 and the signal's number where it was killed by
    one), None when unknown; `reason` is PREEMPTED, TIME_LIMIT, CANNOT_START, CANCELLED or empty; `was_preempted`: the
    scheduler has told it to make room, however it ended; `may_still_run`: its node did not answer when it was given up.
    `pid`: of the wrapper, where the scheduler knows it. `gpus`: by index, likewise.
    """

    phase: Phase
    handle: str = ""
    why: str = ""
    host: str | None = None
    pid: int | None = None
    gpus: tuple[int, ...] = ()
    exit_code: int | None = None
    reason: str = ""
    was_preempted: bool = False
    may_still_run: bool = False


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt as the scheduler knows it. `directory` is the attempt's directory on the host."""

    key: Key
    name: str
    index: int
    directory: str
    handle: str | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts that are submitted with one call, equal in what they ask for; several are an array of jobs.

    `directories` are those of the attempts on the host, in the order of `bundles`. `layout` is that of the host, below
    which the script is written to `layout.submission_script(name)`. Each member of `groups` is the indices of the
    bundles that one job runs one after the other; without packing each group has one. `accepted` are the indices of the
    bundles that the scheduler has accepted before: they are not submitted again.
    """

    name: str
    bundles: tuple[Bundle, ...]
    directories: tuple[str, ...]
    layout: Layout
    request: Request
    time_limit_s: float | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    accepted: frozenset[int] = frozenset()


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's id of the submission; of an array, that of the whole."""

    handle: str


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """It was not accepted, surely. `is_transient`: the same may be accepted later (the controller is busy)."""

    why: str
    is_transient: bool = False


class NoRoom(msgspec.Struct, frozen=True, kw_only=True):
    """It was not accepted, because there is no room now; it is submitted again with the next poll, as nothing fails.

    `accepted` are the indices of the bundles that were accepted all the same: the others are submitted again.
    """

    why: str
    accepted: frozenset[int] = frozenset()


class Doubtful(msgspec.Struct, frozen=True, kw_only=True):
    """It may have been accepted: its name is searched before it is submitted again."""

    why: str


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the site; None: none. `array_size` is the most jobs of one array, `in_flight` those of the user."""

    array_size: int | None = None
    in_flight: int | None = None


class LocationQuery(msgspec.Struct, frozen=True):
    """The call that prints which cluster or server answers, and what its words are as parts of a Location.

    It comes before all calls of the agent. `parts` has `server`, or `cluster` and `address`: see Confirm for several.
    """

    parts: tuple[str, ...]
    question: Confirm


class Scheduler(Protocol):
    """One kind of scheduler. Raises OutletError, with the program's own words, for an answer that is none."""

    @property
    def programs(self) -> Sequence[str]:
        """What must be on PATH of the host; the engine finds out and `doctor` checks."""

    @property
    def makes_arrays(self) -> bool:
        """Whether equal requests go as one submission."""

    @property
    def makes_packs(self) -> bool:
        """Whether several attempts go in one job, one after the other; if not, each group of a submission has one."""

    def default_gpus(self, request: Request) -> int:
        """The GPUs that this request gets, which leaves them open."""

    def gpu_kind(self, request: Request) -> SlotType:
        """What the slots are where this request goes to."""

    def refuses(self, request: Request) -> str:
        """Why the configured host can never run it; empty when it may."""

    def scripts(self, submission: Submission) -> Mapping[str, bytes]:
        """What to deliver before the submission: files by absolute path on the host. Raises TemplateError."""

    def launcher(self, request: Request) -> Sequence[str]:
        """The words that start `node.sh` on every node of the request, such as srun; none where there is one node."""

    def submit(self, submission: Submission) -> Operation:
        """The call that submits it."""

    def accepted(self, submission: Submission, answer: Any) -> Accepted | Refused | NoRoom | Doubtful:
        """What the answer to `submit` means."""

    def query(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        """The calls that tell the states of all of these: few, whatever their number."""

    def states(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        """The states of those that the scheduler knows. Raises OutletError when it did not answer: no absence then."""

    def detail(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        """Further calls about attempts that `query` no longer shows, or whose end has to be explained."""

    def details(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        """The states of those of which something is known."""

    def cancel(self, attempts: Sequence[Submitted], *, force: bool) -> Sequence[Operation]:
        """The calls that stop these: TERM, and KILL after the scheduler's own time; `force` kills at once."""

    def cancelled(self, answer: Any) -> str:
        """Why that call has to be repeated; empty when it has worked or there was nothing to cancel."""

    def error_log(self, attempt: Submitted) -> str:
        """The file on the host with what the batch script itself printed for the attempt; empty for none."""

    def where(self) -> LocationQuery | None:
        """Which cluster or server answers; None where every call names it."""

    def limits_query(self) -> Sequence[Operation]:
        """The calls that tell the site's limits."""

    def limits(self, answers: Sequence[Any]) -> Limits:
        """The site's limits, as far as they are known."""
