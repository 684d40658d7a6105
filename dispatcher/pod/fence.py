"""Second fence of a claim: at most one `mkdir` of the attempt's directory succeeds, also where locks do not exclude."""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Callable
from typing import Final

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.errors import StorageError
from dispatcher.run_state.store import Transaction
from dispatcher.workspace import AttemptPaths, Layout

# A directory that has no claimant's name for this long was left by a pod that died right after mkdir.
_NAMELESS_S: Final = 30.0
# The number of blocked jobs that are named; the others are only counted.
_NAMED: Final = 3
# The number of blocked jobs in the pod's file, for which `status` shows the reason.
_PUBLISHED: Final = 100
# Longer names are not attempt numbers.
_DIGITS: Final = 9
# Errors caused by the job's own directory (a file in its place, its permissions). All others stop every claim.
_OF_ONE_JOB: Final = frozenset({errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EMLINK})


class Fence:
    """Finds the number of a job's next attempt and creates its directory. `blocked`: why jobs cannot be claimed."""

    def __init__(
        self,
        layout: Layout,
        me: str,
        is_alive: Callable[[str], bool],
        log: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocked: dict[str, str] = {}
        self._layout = layout
        self._me = me
        self._is_alive = is_alive
        self._log = log
        self._clock = clock
        self._nameless: dict[tuple[str, int], float] = {}

    def pass_through(self, tx: Transaction, job: str, attempt: int) -> tuple[int, AttemptPaths] | None:
        """Create the directory of `attempt`, or of the first number beyond all existing ones; None if blocked.

        Directories that are not in the journal belong to pods that died between mkdir and the journal's sync, or to
        deleted records. One that was created by a live pod blocks the job.
        """
        try:
            made, why = self._pass(tx, job, attempt)
        except StorageError as error:
            cause, directory = error.__cause__, self._layout.job_dir(job)
            if not (isinstance(cause, OSError) and cause.errno in _OF_ONE_JOB and os.path.lexists(directory)):
                raise
            made, why = None, f"{error}. {directory} must be a directory that this user can write to"
        if made is None:
            self._block(job, why)
        else:
            self.unblock(job)
        return made

    def unblock(self, job: str) -> None:
        """Try the job again: it was claimed or its record has changed."""
        self.blocked.pop(job, None)

    def shown(self) -> dict[str, str]:
        """Why jobs are blocked, for the pod's file; not more than it has room for."""
        return dict(itertools.islice(self.blocked.items(), _PUBLISHED))

    def notes(self) -> list[str]:
        """Why jobs are blocked, as notes for people."""
        if not self.blocked:
            return []
        shown = [f"{job} cannot be claimed: {why}" for job, why in list(self.blocked.items())[:_NAMED]]
        more = len(self.blocked) - len(shown)
        return [*shown, f"{more} more jobs cannot be claimed for similar reasons"] if more else shown

    def _pass(self, tx: Transaction, job: str, attempt: int) -> tuple[tuple[int, AttemptPaths] | None, str]:
        paths = tx.make_attempt(job, attempt)
        if paths is not None:
            return (attempt, paths), ""
        newest = max((attempt, *self._numbers(job)))
        for number in sorted({attempt, newest}):
            why = self._why_in_use(job, number)
            if why:
                return None, why
        paths = tx.make_attempt(job, newest + 1)
        if paths is None:
            return None, self._made_by_another(self._layout.attempt(job, newest + 1), "another dispatcher")
        return (newest + 1, paths), ""

    def _numbers(self, job: str) -> list[int]:
        """The numbers of all attempts that have a directory."""
        directory = self._layout.job_dir(job)
        with files.storing("looking for attempts in", directory):
            files.refresh_names(directory)
            names = os.listdir(directory)
        return [int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= _DIGITS]

    def _why_in_use(self, job: str, number: int) -> str:
        """Why this attempt, which is not in the journal, blocks the job; empty when it is over."""
        paths = self._layout.attempt(job, number)
        if paths.exit.exists() or paths.superseded.exists():
            return ""
        name, _, _ = (files.read_fresh_small(paths.claimant) or b"").decode(errors="replace").partition("\n")
        if name:
            # This pod holds the lock of its name, so an earlier claimant of the same name is dead.
            return self._made_by_another(paths, f"pod {name}") if name != self._me and self._is_alive(name) else ""
        first_seen_s = self._nameless.setdefault((job, number), self._clock())
        if self._clock() - first_seen_s > _NAMELESS_S:
            return ""
        return f"{paths.directory}: it names no claimant yet; it is ignored if that lasts {_NAMELESS_S:.0f} s"

    def _made_by_another(self, paths: AttemptPaths, who: str) -> str:
        mount = mount_of(paths.directory)
        what = f"{paths.directory}: created by {who}, which is running, but the attempt is not in the journal"
        if mount.is_network:
            return f"{what}. {mount} may show this host an old journal. Fix: {mount.cure}"
        return f"{what}. If this persists, restart {who} or move the directory away"

    def _block(self, job: str, why: str) -> None:
        is_news = self.blocked.get(job) != why
        self.blocked[job] = why
        if not is_news or len(self.blocked) > _NAMED + 1:
            return
        if len(self.blocked) > _NAMED:
            self._log("warning: more jobs cannot be claimed: `dispatcher pods` says how many")
        else:
            self._log(f"warning: {job} cannot be claimed and is tried again every few seconds: {why}")
