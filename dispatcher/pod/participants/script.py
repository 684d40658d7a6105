"""A lab's own script that goes by the status file: claims are made under its lock (script_lock.py)."""

from __future__ import annotations

from contextlib import ExitStack

from dispatcher.pod.participant import Obstacle, Participant, Pass, Shared
from dispatcher.pod.script_lock import ScriptLock
from dispatcher.run_state.events import Event
from dispatcher.run_state.store import Transaction


class Script(Participant):
    """Keeps the script's lock from before a claim until the status file shows it; does nothing without such a lock."""

    def __init__(self, shared: Shared) -> None:
        path = None if shared.is_dry else shared.config.now.script_lock
        self._shared = shared
        self._lock = None if path is None else ScriptLock(path, shared.config.now.layout.root, shared.log)
        self._is_held = True
        # The last line of the journal with a claim that the script must be shown.
        self._claimed_at = 0

    def look(self, now: Pass) -> None:
        self._is_held = True

    def may_claim(self) -> bool:
        return not self._waits()

    def obstacle(self) -> Obstacle | None:
        """A claim that cannot be shown to the script is one that it does not know of."""
        unreadable = self._lock is not None and self._shared.store.problem is not None
        if not (unreadable or self._waits()):
            return None
        return Obstacle(f"{self._shared.config.now.layout.status_file} cannot be updated, and a script relies on it")

    def hold(self, now: Pass, stack: ExitStack) -> None:
        if now.claiming and self._lock is not None:
            self._is_held = now.claiming = stack.enter_context(self._lock.held())

    def commit(self, tx: Transaction) -> None:
        if self._lock is not None and any(line.event is Event.CLAIMED for line in tx.lines):
            self._claimed_at = self._shared.store.seq
            self._lock.keep()

    def after(self, now: Pass) -> None:
        """Show new claims to the script, and let it go on when it can see them."""
        if self._waits():
            self._shared.show_claims()
            if self._shared.store.projected >= self._claimed_at:
                self.release()

    def has_more(self) -> bool:
        return not self._is_held

    def is_busy(self) -> bool:
        return not self._is_held

    def release(self) -> None:
        """Before the end: the script cannot wait for a process that is gone."""
        if self._lock is not None:
            self._lock.release()

    def _waits(self) -> bool:
        return self._lock is not None and self._lock.is_kept
