"""Waits until jobs have ended, whichever host runs them."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Collection
from typing import Final

from dispatcher.base.messages import first_names
from dispatcher.errors import StateError
from dispatcher.pod.wake import FileWatch
from dispatcher.run_state.states import ENDED, Record
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

# The kernel reports changes on this host; those of others are looked for this often.
_LOOK_AGAIN_S: Final = 2.0
# Hundreds of changes a second are read together.
_QUIET_S: Final = 0.05


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
    """The ends of some jobs. `ended` has their last records, None for a job that was deleted; `left` are the others."""

    def __init__(self, store: Store, jobs: Collection[str]) -> None:
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
            if record is None or record.state in ENDED:
                self.ended[job] = record
                del self.left[job]

    def pause(self, longest_s: float) -> None:
        """Wait until something may have changed, `longest_s` at most."""
        self._next.pause(longest_s)


def wait_for_ends(store: Store, jobs: Collection[str], timeout_s: float | None) -> dict[str, Record | None]:
    """Wait until all of the jobs have ended: their last records, None for one that was deleted meanwhile.

    Raises StateError when some have not ended after `timeout_s` seconds.
    """
    end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    with Ends(store, jobs) as ends:
        ends.look()
        while ends.left:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise StateError(f"{first_names(list(ends.left))} did not end within {timeout_s:g} s")
            ends.pause(left_s)
            ends.look()
        return {job: ends.ended[job] for job in jobs}
