"""The processes of this host that wait for the claims lock, in the order in which they asked.

Only the first of them tries the lock, often, so that it is not free for long. If all tried, the process that has just
released the lock would take it again before another one wakes up. To be first is to hold a lock on one byte of the
lock's own file: the kernel keeps those who wait for it in a queue. Such a call has no timeout, and a dispatcher that
waits must go on with its heartbeat. So a thread makes the call, and the process waits for the thread as long as it
likes.

The queue only makes the order fair: a process that has waited too long tries the lock anyway.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from dispatcher.base.kernel_locks import release_range, try_range, wait_for_range
from dispatcher.run_state.head import HEAD_SIZE

# The byte after the head.
_START: Final = HEAD_SIZE
_LENGTH: Final = 1


class LockQueue:
    """The place of this process in the queue; `is_ours`: it is the first. For one thread at a time; raises OSError."""

    def __init__(self, path: Path) -> None:
        self.is_ours = False
        # Not the lock's own descriptor: that is closed when a file server has forgotten it, and this one is in use.
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._mutex = threading.Lock()
        self._asked = threading.Semaphore(0)
        self._answered = threading.Event()
        self._thread: threading.Thread | None = None
        # Whether the thread waits in the queue, and whether the process still wants what it waits for.
        self._is_queued = False
        self._is_wanted = False
        self._is_closed = False

    def take(self) -> bool:
        """Become the first if the queue is empty; whether this process is the first."""
        with self._mutex:
            self._is_wanted = True
            if not self.is_ours and not self._is_queued:
                self.is_ours = try_range(self._fd, _START, _LENGTH)
            return self.is_ours

    def wait(self, timeout_s: float) -> bool:
        """Wait in the queue for at most so long; the place in it is kept until `end`."""
        with self._mutex:
            self._is_wanted = True
            if self.is_ours or not (self._is_queued or self._begin()):
                return self.is_ours
        self._answered.wait(timeout_s)
        return self.is_ours

    def end(self) -> None:
        """Leave the queue: the next process becomes the first."""
        with self._mutex:
            self._is_wanted = False
            if self.is_ours:
                self.is_ours = False
                release_range(self._fd, _START, _LENGTH)

    def close(self) -> None:
        with self._mutex:
            self._is_closed, self.is_ours = True, False
            if self._thread is None:
                os.close(self._fd)
            else:
                # The thread closes it, as soon as it does not wait any more.
                self._asked.release()

    def _begin(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._serve, name="claims lock", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # This user may have no more threads.
                return False
            self._thread = thread
        self._answered.clear()
        self._is_queued = True
        self._asked.release()
        return True

    def _serve(self) -> None:
        while True:
            self._asked.acquire()
            if not self._is_closed:
                try:
                    wait_for_range(self._fd, _START, _LENGTH)
                    self._answer(is_first=True)
                except OSError:
                    self._answer(is_first=False)
            if self._is_closed:
                os.close(self._fd)
                return

    def _answer(self, *, is_first: bool) -> None:
        with self._mutex:
            self._is_queued = False
            self.is_ours = is_first and self._is_wanted and not self._is_closed
            if is_first and not self.is_ours:
                release_range(self._fd, _START, _LENGTH)
            self._answered.set()
