"""Waits until jobs have ended, whichever host runs them."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from dispatcher.base.messages import first_names
from dispatcher.errors import StateError
from dispatcher.pod.wake import FileWatch
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.waiting import reasons
from dispatcher.run_state.states import ENDED, IN_FLIGHT, WAITING, Record
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

# The kernel reports changes on this host; those of others are looked for this often.
_LOOK_AGAIN_S: Final = 2.0
# Hundreds of changes a second are read together.
_QUIET_S: Final = 0.05
_FIRST_CHECK_S: Final = 2.0
_LONGEST_CHECK_S: Final = 60.0


class NextChange:
    """Waits until the journal of a workspace may have changed."""

    def __init__(self, layout: Layout) -> None:
        self._watch = FileWatch()
        self._watch.add(layout.lock_file)

    def close(self) -> None:
        self._watch.close()

    def pause(self, longest_s: float) -> None:
        """Wait until then, `longest_s` at most."""
        end_s = time.monotonic() + min(longest_s, _LOOK_AGAIN_S)
        while (left_s := end_s - time.monotonic()) > 0:
            if self._watch.fd < 0:
                time.sleep(left_s)
                return
            poll = select.poll()
            poll.register(self._watch.fd, select.POLLIN)
            if poll.poll(left_s * 1000) and self._watch.changed():
                time.sleep(min(_QUIET_S, left_s))
                return


class Ends:
    """The ends of some jobs. `ended` has their last records, None for a job that was deleted; `left` are the others.

    `unqueued` are those that only a manifest has: no pod has given them a record yet.
    """

    def __init__(self, store: Store, jobs: Collection[str], unqueued: Collection[str] = ()) -> None:
        self._unqueued = set(unqueued)
        self.ended: dict[str, Record | None] = {}
        self.left = dict.fromkeys(jobs)
        self._store = store
        self._seen_seq = -1
        self._next = NextChange(store.layout)

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self._next.close()

    def look(self) -> None:
        """Read what has changed."""
        store = self._store
        store.refresh()
        if store.seq == self._seen_seq:
            return
        self._seen_seq = store.seq
        for job in list(self.left):
            record = store.records.get(job)
            if record is not None:
                self._unqueued.discard(job)
            if record.state in ENDED if record is not None else job not in self._unqueued:
                self.ended[job] = record
                del self.left[job]

    def pause(self, longest_s: float) -> None:
        """Wait until something may have changed, `longest_s` at most."""
        self._next.pause(longest_s)


def wait_for_ends(
    store: Store,
    jobs: Collection[str],
    unqueued: Collection[str],
    timeout_s: float | None,
    stuck: Callable[[Collection[str]], Mapping[str, str]],
) -> dict[str, Record | None]:
    """Wait until all of the jobs have ended: their last records, None for one that was deleted meanwhile.

    `unqueued` as in Ends. `stuck` says which of the jobs will not end unless a person does something, and why. Raises
    StateError when some have not ended after `timeout_s` seconds, and when all that are left are stuck.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    checks = _Checks(stuck)
    with Ends(store, jobs, unqueued) as ends:
        ends.look()
        while ends.left:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise StateError(f"{_why(ends.left, stuck(ends.left))} did not end within {timeout_s:g} s")
            checks.check(ends.left)
            ends.pause(min(left_s, checks.pause_s))
            ends.look()
        return {job: ends.ended[job] for job in jobs}


class _Checks:
    """Finds out now and then whether jobs can end at all: that reads the whole workspace."""

    def __init__(self, stuck: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        self._stuck = stuck
        self._next_s = time.monotonic()
        self._pause_s = _FIRST_CHECK_S
        self._found: frozenset[str] = frozenset()

    @property
    def pause_s(self) -> float:
        return max(0.0, self._next_s - time.monotonic())

    def check(self, left: Collection[str]) -> None:
        """Raise StateError when all of these jobs are stuck, and were when this was last found out."""
        if time.monotonic() < self._next_s:
            return
        why = self._stuck(left)
        found = frozenset(left) if len(why) == len(left) else frozenset()
        # A pod may have been started again a moment later, and a job requeued.
        if found and found == self._found:
            raise StateError(
                f"{_why(left, why)} cannot end without help: see `dispatcher status`, or `dispatcher cancel`"
            )
        self._found = found
        self._next_s = time.monotonic() + self._pause_s
        self._pause_s = _FIRST_CHECK_S if found else min(2 * self._pause_s, _LONGEST_CHECK_S)


def _why(jobs: Collection[str], why: Mapping[str, str]) -> str:
    """`a (held: ...), b, c, ...`."""
    return first_names([f"{job} ({why[job]})" if job in why else job for job in jobs])


def stuck(snapshot: Snapshot, jobs: Collection[str]) -> dict[str, str]:
    """Which of these jobs will not end unless a person does something, and why."""
    waiting, is_looked_after = reasons(snapshot), any(pod.is_alive for pod in snapshot.pods)
    found = {}
    for job in jobs:
        record = snapshot.records.get(job)
        if record is None:
            found[job] = "deleted"
        elif record.state in WAITING and (why := waiting.why(job)).needs_person:
            found[job] = why.text
        elif record.state in IN_FLIGHT and not (is_looked_after or record.external):
            found[job] = f"{record.state}, and no pod is alive: start one, or `dispatcher poll`"
    return found
