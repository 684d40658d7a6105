"""The code of submissions: archived by a child process, sent to the host once, and only then are they submitted.

While the code cannot be archived or sent, the outlet claims nothing, so that no attempt fails by it.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dispatcher.base import files
from dispatcher.config import CodeMode
from dispatcher.errors import CodeError, OutletError
from dispatcher.outlets.code.command import read_snapshot, snapshot_words
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.remote.connection import Call, Connection, Lane, NoAnswer
from dispatcher.outlets.remote.operations import Failed, FileSizes, Has, Operation, Store
from dispatcher.outlets.remote.programs import Program
from dispatcher.workspace import Layout

# git may have to fetch files or run filters.
_ARCHIVE_LIMIT_S: Final = 900.0
_HAS_LIMIT_S: Final = 60.0
# An upload may take so long for each MiB, and at least a minute.
_SECONDS_PER_MIB: Final = 8.0
# Longer than jobs wait in a queue: archives on a host that were not asked for in this time are removed.
_KEPT_S: Final = 60 * 86400.0
# For so long the host is not asked again whether it has an archive: the call would double those of a submission.
_STILL_THERE_S: Final = 300.0
# After so many answers that it cannot be stored (a full disk), submissions that wait for it are given up.
_MOST_FAILURES: Final = 3

# Not wrong, but nothing is claimed before it is done.
_ARCHIVING: Final = "archiving the code"


class Shipping:
    """The code for submissions to one host. `problem` is why there can be none at the moment, empty when there can.

    `shipped(names, snapshot, archive)` is called for submissions whose code is at the path `archive` of the host, and
    `failed(names, why)` for those that cannot get any. What failed is tried again after `try_again_s`.
    """

    def __init__(
        self,
        layout: Layout,
        connection: Connection,
        shipped: Callable[[Sequence[str], CodeSnapshot, str], None],
        failed: Callable[[Sequence[str], str], None],
        try_again_s: float = 30.0,
    ) -> None:
        self.problem = ""
        self._try_again_s = try_again_s
        self._layout = layout
        self._connection = connection
        self._shipped = shipped
        self._failed = failed
        self._mode = CodeMode.NONE
        self._directory = ""
        self._umask = 0o022
        # Submissions that wait for a snapshot, and those that wait for the one under way.
        self._waiting: list[str] = []
        self._batch: list[str] = []
        # Those that run a copy that was taken before, by its digest.
        self._given: dict[str, tuple[CodeSnapshot, list[str]]] = {}
        self._program: Program | None = None
        self._snapshot: CodeSnapshot | None = None
        self._is_missing = False
        self._call: Call | None = None
        # When the host was last known to have an archive, by digest.
        self._there_s: dict[str, float] = {}
        self._failures = 0
        self._next_s = 0.0

    @property
    def failure(self) -> str:
        """The problem, if it is one that people should know of."""
        return "" if self.problem == _ARCHIVING else self.problem

    @property
    def is_wanted(self) -> bool:
        """Whether submissions to this host need the code of today."""
        return self._mode is not CodeMode.NONE

    def begin(self, mode: CodeMode, share: str) -> None:
        """The host was reached: it gets code by `mode`, below its directory `share`.

        A first snapshot is made at once: whether there can be one is known before anything is claimed.
        """
        self._mode, self._directory = mode, posixpath.join(share, "code")
        # Where the group works together here, it does so there.
        self._umask = 0o002 if files.group_may_write(self._layout.root) else 0o022
        if self.is_wanted:
            self.problem = _ARCHIVING

    def start_over(self) -> None:
        """The host is another one: what the old one had is not there, and nothing waits for it any more."""
        self._mode = CodeMode.NONE
        self._there_s.clear()
        self._waiting, self._batch = [], []
        self._given.clear()
        self._snapshot, self._is_missing = None, False
        self._failures, self._next_s, self.problem = 0, 0.0, ""
        if self._program is not None:
            self._program.close()
            self._program = None

    def want(self, name: str, snapshot: CodeSnapshot | None = None) -> None:
        """This submission needs a snapshot, None: of the code as it is now."""
        if snapshot is None:
            self._waiting.append(name)
        else:
            self._given.setdefault(snapshot.digest, (snapshot, []))[1].append(name)

    def work(self, in_use: Iterable[str]) -> None:
        """Take in what was answered and begin what comes next; never waits. `in_use`: digests not to be removed."""
        self._take_in_program()
        self._take_in_call()
        if time.monotonic() < self._next_s:
            return
        if self._snapshot is None and self._program is None:
            if self._given:
                self._begin_given()
            elif self.is_wanted and (self._waiting or self.problem):
                self._begin_snapshot(in_use)
            elif self.problem:
                # The next one shows whether it can be stored.
                self.problem = ""
        if self._snapshot is not None and self._call is None:
            self._begin_call(self._snapshot)

    @property
    def is_busy(self) -> bool:
        return self._program is not None or self._call is not None

    def wait_fds(self) -> list[int]:
        return [fd for one in (self._program, self._call) if one is not None for fd in one.wait_fds()]

    def due_in_s(self) -> float | None:
        """Seconds until `work` has something to do although no descriptor is readable; None when never."""
        if self._program is not None:
            return self._program.due_in_s()
        if self._call is not None:
            return self._call.due_in_s()
        pause_s = max(0.0, self._next_s - time.monotonic())
        if self._snapshot is not None:
            return max(pause_s, self._connection.free_in_s(Lane.TRANSFER) or 0.0)
        return pause_s if self._waiting or self._given or self.problem else None

    def close(self) -> None:
        """Give up what is under way; the connection ends its calls itself."""
        if self._program is not None:
            self._program.close()

    def _begin_snapshot(self, in_use: Iterable[str]) -> None:
        self._batch, self._waiting = self._waiting, []
        try:
            words = snapshot_words(self._layout, self._mode, in_use)
            self._program = Program(words, limit_s=_ARCHIVE_LIMIT_S)
        except OutletError as error:
            self._give_up(str(error))

    def _begin_given(self) -> None:
        _, (snapshot, self._batch) = self._given.popitem()
        self._has_snapshot(snapshot)

    def _has_snapshot(self, snapshot: CodeSnapshot) -> None:
        """This one is to be sent, unless the host had it a moment ago."""
        self._snapshot, self._is_missing = snapshot, False
        if time.monotonic() - self._there_s.get(snapshot.digest, -_STILL_THERE_S) < _STILL_THERE_S:
            self._is_there()

    def _take_in_program(self) -> None:
        finished = None if self._program is None else self._program.poll()
        if finished is None:
            return
        self._program = None
        try:
            exit_code = None if finished.killed_because else finished.exit_code
            snapshot = read_snapshot(exit_code, finished.out, finished.err)
        except CodeError as error:
            self._give_up(str(error))
            return
        if self._batch:
            self._has_snapshot(snapshot)
        else:
            # The first one, without submissions: it can be archived.
            self.problem = ""

    def _begin_call(self, snapshot: CodeSnapshot) -> None:
        if self._connection.free_in_s(Lane.TRANSFER) != 0.0:
            return
        archive = self._archive(snapshot)
        operation: Operation = Has(paths=[archive])
        limit_s = _HAS_LIMIT_S
        if self._is_missing:
            operation = Store(
                path=archive,
                source=snapshot.path,
                size=snapshot.size,
                sha256=snapshot.digest,
                umask=self._umask,
                unused_s=_KEPT_S,
            )
            limit_s = max(limit_s, snapshot.size / 2**20 * _SECONDS_PER_MIB)
        self._call = self._connection.call([operation], timeout_s=limit_s, lane=Lane.TRANSFER)

    def _take_in_call(self) -> None:
        answers = None if self._call is None else self._call.outcome()
        if answers is None or self._snapshot is None:
            return
        self._call = None
        if isinstance(answers, NoAnswer):
            self._is_missing = False
            self.problem = f"sending the code: {answers.why}"
            return
        (answer,) = answers
        if isinstance(answer, Failed):
            self._has_failed(answer.error)
        elif isinstance(answer, FileSizes) and answer.sizes[0] != self._snapshot.size:
            self._is_missing = True
        else:
            self._there_s[self._snapshot.digest] = time.monotonic()
            self._is_there()

    def _is_there(self) -> None:
        """The host has the archive, so what waits for it can go."""
        assert self._snapshot is not None
        snapshot, self._snapshot = self._snapshot, None
        names, self._batch = self._batch, []
        self._failures, self.problem = 0, ""
        self._shipped(names, snapshot, self._archive(snapshot))

    def _has_failed(self, why: str) -> None:
        self._failures += 1
        self._is_missing = False
        self.problem = f"storing the code: {why}"
        self._next_s = time.monotonic() + self._try_again_s
        if self._failures >= _MOST_FAILURES:
            self._give_up(self.problem)

    def _give_up(self, why: str) -> None:
        """Those that wait end; the next snapshot, some time later, shows whether it works again."""
        names, self._batch = self._batch, []
        self._snapshot, self._failures, self.problem = None, 0, why
        self._next_s = time.monotonic() + self._try_again_s
        self._failed(names, why)

    def _archive(self, snapshot: CodeSnapshot) -> str:
        return posixpath.join(self._directory, f"{snapshot.digest}.tar")
