"""Saving the fold of a long journal beside the loop: for a million jobs that takes seconds."""

from __future__ import annotations

import threading

from dispatcher.pod.participant import Participant, Pass
from dispatcher.run_state.store import Store


class Saver(Participant):
    """Saves what a store has read of its journal, in a thread, one at a time; a new generation has fewer lines."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: threading.Thread | None = None

    def after(self, now: Pass) -> None:
        if now.poll_is_due:
            self._store.rotate_if_worthwhile()
            self.save_if_worthwhile()

    def save_if_worthwhile(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        write = self._store.begin_save()
        if write is None:
            return
        thread = threading.Thread(target=write, name="saving the fold")
        try:
            thread.start()
        except RuntimeError:
            # This user may have no more processes: the pod goes on without a thread.
            write()
        else:
            self._thread = thread

    def close(self) -> None:
        """Wait until nothing is being written."""
        if self._thread is not None:
            self._thread.join()
