"""The second fence of a claim: the attempt's directory, which exactly one `mkdir` makes, also where locks lie."""

from __future__ import annotations

import time
from collections.abc import Callable

from dispatcher.run_state import files
from dispatcher.run_state.store import Transaction
from dispatcher.workspace import AttemptPaths, Layout

# A directory whose maker has not left a name in it for so long was left by one that died right after making it.
_NAMELESS_S = 30.0
_MOST_DEAD_ATTEMPTS = 100


class Fence:
    """Finds the number of the next attempt."""

    def __init__(self, layout: Layout, me: str, is_alive: Callable[[str], bool]) -> None:
        self._layout = layout
        self._me = me
        self._is_alive = is_alive
        self._nameless: dict[tuple[str, int], float] = {}

    def pass_through(self, tx: Transaction, job: str, attempt: int) -> tuple[int, AttemptPaths] | None:
        """Make the directory of `attempt`, or of a later one where claimants have died between mkdir and journal.

        None when somebody who lives has that directory although the journal does not say so: this host may be shown
        old data, so the entry is left alone for now.
        """
        for number in range(attempt, attempt + _MOST_DEAD_ATTEMPTS):
            paths = tx.make_attempt(job, number)
            if paths is not None:
                return number, paths
            if not self._is_left_over(job, number):
                return None
        return None

    def _is_left_over(self, job: str, number: int) -> bool:
        paths = self._layout.attempt(job, number)
        if paths.exit.exists() or paths.superseded.exists():
            # An attempt of a record that somebody has forgotten.
            return True
        claimant = files.read_fresh(paths.claimant)
        name = (claimant or b"").decode(errors="replace").strip()
        if name:
            # We hold our own name, so whoever claimed under it before is dead.
            return name == self._me or not self._is_alive(name)
        first_seen_s = self._nameless.setdefault((job, number), time.monotonic())
        return time.monotonic() - first_seen_s > _NAMELESS_S
