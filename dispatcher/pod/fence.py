"""Second fence of a claim: at most one `mkdir` of the attempt's directory succeeds, also where locks do not exclude.

A directory that exists already is evidence: see outlets/lost_claims.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Final

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.errors import StorageError
from dispatcher.outlets.lost_claims import LostClaim, find_lost_claim, numbers
from dispatcher.run_state.store import Transaction
from dispatcher.workspace import AttemptPaths, Layout

# A directory that has no claimant's name for this long was left by a pod that died right after mkdir.
_NAMELESS_S: Final = 30.0
# The number of blocked jobs that are named; the others are only counted.
_NAMED: Final = 3
# Errors that concern all jobs wherever they are met: the storage has no room, does not answer, or takes no writes.
_OF_ALL_JOBS: Final = files.PASSING | {errno.EROFS}


# The number of a new attempt and its directory, or an attempt that has begun already; None: the job is blocked.
Passed = tuple[int, AttemptPaths] | LostClaim | None


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

    def pass_through(self, tx: Transaction, job: str, attempt: int) -> Passed:
        """Create the directory of `attempt`, or of the first number beyond all existing ones.

        Where the job's newest attempt that is not in the journal has begun, no directory is created: its claim was
        lost. Others belong to pods that died between mkdir and the journal's sync, or to deleted records. One that was
        created by a live pod blocks the job.
        """
        made: Passed
        try:
            made, why = self._pass(tx, job, attempt)
        except (StorageError, OSError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or not self._is_of_job(cause, job):
                raise
            made, why = None, f"{error}. {self._cure(cause, job)}"
        if made is None:
            self._block(job, why)
        else:
            self.unblock(job)
        if isinstance(made, LostClaim):
            self._log(
                f"warning: {made.text()} is not in the journal, which has gone back (a restored copy, a repair). "
                f"{job} does not run again: this attempt is recorded, and its end decides"
            )
        return made

    def _is_of_job(self, error: OSError, job: str) -> bool:
        """Whether an error is one of the place of this job alone: what is below its directory, or its name."""
        if error.errno == errno.ENAMETOOLONG:
            return True
        directory = self._layout.job_dir(job)
        return error.errno not in _OF_ALL_JOBS and os.path.lexists(directory)

    def _cure(self, error: OSError, job: str) -> str:
        if error.errno == errno.ENAMETOOLONG:
            return f"This filesystem takes no name of {len(os.fsencode(job))} bytes: give the job a shorter job_id"
        return f"{self._layout.job_dir(job)} must be a directory that this user can write to, with directories in it"

    def unblock(self, job: str) -> None:
        """Try the job again: it was claimed or its record has changed."""
        self.blocked.pop(job, None)

    def notes(self) -> list[str]:
        """Why jobs are blocked, as notes for people."""
        if not self.blocked:
            return []
        shown = [f"{job} cannot be claimed: {why}" for job, why in list(self.blocked.items())[:_NAMED]]
        more = len(self.blocked) - len(shown)
        return [*shown, f"{more} more jobs cannot be claimed for similar reasons"] if more else shown

    def _pass(self, tx: Transaction, job: str, attempt: int) -> tuple[Passed, str]:
        paths = tx.make_attempt(job, attempt)
        if paths is not None:
            return (attempt, paths), ""
        lost = find_lost_claim(self._layout, job, attempt - 1)
        if lost is not None and lost.runs and lost.pod is not None and self._is_another(lost.pod):
            return None, self._made_by_another(lost.paths, f"pod {lost.pod}", f"{lost.text()}: that pod")
        if lost is not None:
            return lost, ""
        newest = max((attempt, *numbers(self._layout, job)))
        for number in sorted({attempt, newest}):
            why = self._why_in_use(job, number)
            if why:
                return None, why
        paths = tx.make_attempt(job, newest + 1)
        if paths is None:
            return None, self._made_by_another(self._layout.attempt(job, newest + 1), "another dispatcher")
        return (newest + 1, paths), ""

    def _why_in_use(self, job: str, number: int) -> str:
        """Why this attempt, which is not in the journal and has not begun, blocks the job; empty when it does not."""
        paths = self._layout.attempt(job, number)
        if files.is_missing(paths.directory) or files.is_there(paths.superseded):
            return ""
        name, _, _ = (files.read_fresh_small(paths.claimant) or b"").decode(errors="replace").partition("\n")
        if name:
            return self._made_by_another(paths, f"pod {name}") if self._is_another(name) else ""
        first_seen_s = self._nameless.setdefault((job, number), self._clock())
        if self._clock() - first_seen_s > _NAMELESS_S:
            return ""
        return f"{paths.directory}: it names no claimant yet; it is ignored if that lasts {_NAMELESS_S:.0f} s"

    def _is_another(self, name: str) -> bool:
        """Whether that is a live pod and not this one, which holds the lock of its name: its namesakes are dead."""
        return name != self._me and self._is_alive(name)

    def _made_by_another(self, paths: AttemptPaths, who: str, what: str = "") -> str:
        mount = mount_of(paths.directory)
        what = what or f"{paths.directory}: created by {who}, which"
        what += " is running, but the attempt is not in the journal"
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
