"""The lock under which a lab's own script changes the status file; dispatchers take it, too, while they claim.

A claim counts when it is in the journal, but such a script reads the status file only. So if dispatcher.yaml names the
script's lock (`script_lock`), a dispatcher holds it from before it reads the file until the file shows its claims,
however long that takes (a full disk). Then no job is claimed twice. The lock is only tried: while the script holds it,
nothing is claimed.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.kernel_locks import release_flock, try_flock, try_range
from dispatcher.base.mounts import mount_of
from dispatcher.pod.participant import Obstacle, Participant, Pass, Shared
from dispatcher.run_state.events import Event
from dispatcher.run_state.store import Transaction

_WAIT_S: Final = 1.0
_PAUSE_S: Final = 0.005


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

    def hold(self, now: Pass, stack: contextlib.ExitStack) -> None:
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

    def release(self) -> None:
        """Before the end: the script cannot wait for a process that is gone."""
        if self._lock is not None:
            self._lock.release()

    def _waits(self) -> bool:
        return self._lock is not None and self._lock.is_kept


class ScriptLock:
    """Excludes scripts that lock `path` by flock and those that lock it by lockf or fcntl."""

    def __init__(self, path: Path, root: Path, log: Callable[[str], None]) -> None:
        self.path = path
        self._root = root
        self._log = log
        # On NFS flock is a lock on all bytes, so the two kinds would exclude each other.
        self._network = mount_of(path.parent).is_network
        self._has_warned = False
        self._held = -1
        self._kept: int | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the lock is held until `release`."""
        return self._kept is not None

    @contextlib.contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the lock for the block, and longer after `keep`. Yields False when another process keeps it."""
        with files.shared_umask(self._root), files.storing("opening the script's lock", self.path):
            # Opened each time: a script may have replaced the file.
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._held = fd
        try:
            is_held = self._take(fd)
            self._warn(is_held)
            yield is_held
        finally:
            if self._kept is None:
                # Releases both kinds.
                os.close(fd)

    def keep(self) -> None:
        """Within `held`: hold the lock until `release`."""
        self._kept = self._held

    def release(self) -> None:
        """Release the lock if it was kept."""
        if self._kept is not None:
            os.close(self._kept)
            self._kept = None

    def _take(self, fd: int) -> bool:
        end_s = time.monotonic() + _WAIT_S
        while not self._try(fd):
            if time.monotonic() > end_s:
                return False
            time.sleep(_PAUSE_S * random.uniform(0.5, 1.5))
        return True

    def _try(self, fd: int) -> bool:
        with files.storing("taking the script's lock", self.path):
            if not try_flock(fd):
                return False
            if self._network or try_range(fd):
                return True
            release_flock(fd)
            return False

    def _warn(self, is_held: bool) -> None:
        if not is_held and not self._has_warned:
            self._log(
                f"warning: {self.path}: another process has held this lock for {_WAIT_S:g} s; "
                "nothing is claimed meanwhile"
            )
        self._has_warned = not is_held
