"""Transactions of a process that makes many of them: the status file follows as that of a pod does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dispatcher.doctor.prove_locks import prove_for_command
from dispatcher.run_state.projection import Projector

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.run_state.store import Transaction


class Writer:
    """Changes the run state of a workspace. A large status file is written now and then, and when it is closed."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._store = workspace.store
        self._projector = Projector(self._store)
        self._is_proved = False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction. A StorageError that comes after it says that the status file does not show it yet."""
        if not self._is_proved:
            prove_for_command(self._store, self._workspace.layout, self._workspace.config.lock)
            self._is_proved = True
        with self._store.transaction() as tx:
            yield tx
        self._projector.write_when_due()

    def keep_up(self) -> None:
        """Write the status file if it is time for it."""
        self._projector.check_replaced()
        self._projector.write_when_due()

    def close(self) -> None:
        """Write the status file for the last time."""
        try:
            self._projector.write_before_exit()
        finally:
            self._projector.close()
