"""What takes part in a pass of the loop: one class for each concern. reconciler.py calls them, participants/ has them.

A pass, in the order of participants/listed.py in each step:

    look, act                       outside the lock, after the journal and the files were read
    record                          in the transaction, if a participant has news or jobs are to be claimed
    commit, or roll_back            when it is in the journal; when it has failed, the last participant first
    after                           outside the lock, also without a transaction; not when one has failed

What has happened counts only in `commit`: lines for people are logged there, and attempts are started there. A dry run
is the same pass without `act`, and its transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.options import PodOptions
from dispatcher.pod.pod_outlets import PodOutlets
from dispatcher.pod.running_attempts import RunningAttempts
from dispatcher.run_state.events import Blame, Event
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import Record
from dispatcher.run_state.store import Store, Transaction


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts of one pod work with. `show_claims` brings the status file up to date."""

    store: Store
    config: CurrentConfig
    options: PodOptions
    outlets: PodOutlets
    observer: Observer
    attempts: RunningAttempts
    log: Callable[[str], None]
    show_claims: Callable[[], None]
    is_dry: bool = False

    @property
    def records(self) -> Records:
        """Those of all jobs, as this process knows them."""
        return self.store.records


class Pass(msgspec.Struct, kw_only=True):
    """One pass.

    `claiming`: jobs may be claimed, as far as is known by now. `poll_is_due`: the poll interval is over, so that what
    no descriptor tells is looked for too. `may_free`: what will be recorded may be what other jobs wait for.
    `is_outdated`: the transaction has found another configuration, so it queues and claims nothing. `findings` is what
    a dry run has found out about jobs.
    """

    claiming: bool
    poll_is_due: bool = False
    may_free: bool = False
    is_outdated: bool = False
    findings: dict[str, str] = {}


class End(msgspec.Struct, frozen=True, kw_only=True):
    """An end that was just recorded: `record` is the job's before it, `entry` None where no manifest lists the job."""

    job: str
    event: Event
    entry: Entry | None
    record: Record
    blame: Blame


class Obstacle(msgspec.Struct, frozen=True):
    """Why a pod claims nothing. `drains`: it lets what runs end, and ends. `is_final`: that stays so while it runs."""

    why: str
    drains: bool = False
    is_final: bool = False


class Ending(msgspec.Struct, frozen=True):
    """The end of a pod: `goes_on()` while it may wait.

    `gives_up`: it was to run until nothing is left, and ends by itself.
    """

    goes_on: Callable[[], bool]
    gives_up: bool


class Participant:
    """One concern's part in the passes of one pod: a subclass has the methods that concern it; others do nothing."""

    # The beginning and the end of a pod.

    def prepare(self) -> None:
        """Before the first transaction: raise what keeps the pod from starting."""

    def begin(self) -> None:
        """The records, the entries and the configuration were read. A dry run does not call it."""

    def finish(self, ending: Ending) -> None:
        """All is recorded, and the status file shows it."""

    def close(self) -> None:
        """Leave nothing under way."""

    # A pass.

    def look(self, now: Pass) -> None:
        """Find out what is news. Changes nothing but this process's memory."""

    def act(self, now: Pass) -> None:
        """Do what reaches beyond this process and needs no transaction: ask outlets, stop attempts, begin programs."""

    def may_claim(self) -> bool:
        """Whether nothing speaks against claims in this pass."""
        return True

    def has_news(self) -> bool:
        """Whether there is something to record now."""
        return False

    def hold(self, now: Pass, stack: ExitStack) -> None:
        """Before the transaction: enter into `stack` what must be held until `commit` is over."""

    def record(self, now: Pass, tx: Transaction) -> None:
        """Write what is news. What is read from here on may be undone by `roll_back`."""

    def after_end(self, tx: Transaction, end: End) -> None:
        """In `record`: the end of an attempt was recorded."""

    def commit(self, tx: Transaction) -> None:
        """The transaction is in the journal."""

    def roll_back(self) -> None:
        """The transaction has failed, and nothing of it has happened."""

    def after(self, now: Pass) -> None:
        """The pass is over."""

    # Records, entries and the configuration, which the backlog follows.

    def note(self, job: str, record: Record | None) -> None:
        """The record of a job has changed."""

    def note_all(self) -> None:
        """All records may have changed, or the entries."""

    def follow_config(self) -> None:
        """There is another configuration."""

    def follow_entries(self, *, is_new: bool) -> None:
        """There are other entries (`is_new`: another manifest), or another configuration, by which to judge them."""

    # Claims.

    def obstacle(self) -> Obstacle | None:
        """Why this pod claims nothing, whatever is free."""
        return None

    def held(self) -> Mapping[str, str]:
        """Scopes that get nothing new (`gpu:HOST:2`), and why."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Fields of waiting.Facts, by which the queue is built."""
        return {}

    def offered(self) -> dict[str, Any]:
        """Fields of offers.Offer, which other pods and `status` read."""
        return {}

    # What the loop waits for, and what people are shown.

    def has_more(self) -> bool:
        """Whether there is more to do at once, in another pass."""
        return False

    def is_busy(self) -> bool:
        """Whether a pod that ends when it knows everything has to wait."""
        return self.has_more()

    def wait_fds(self) -> list[int]:
        """Descriptors that become readable when there is news."""
        return []

    def due_in_s(self, *, claiming: bool) -> float | None:
        """Seconds until a pass is due although nothing has happened; None when never."""
        return None

    def notes(self) -> list[str]:
        """What is unusual, for the pod's file."""
        return []

    def opening_lines(self) -> list[str]:
        """What a pod that begins says of its options."""
        return []


def having(step: Callable[..., Any], participants: Iterable[Participant]) -> tuple[Participant, ...]:
    """Those whose class has a `step` of its own, which is a method of Participant: the others do nothing in it."""
    return tuple(one for one in participants if getattr(type(one), step.__name__) is not step)
