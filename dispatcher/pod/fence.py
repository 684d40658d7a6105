"""The second fence of a claim: the attempt's directory, which exactly one `mkdir` makes, also where locks lie."""

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

# A directory whose maker has not left a name in it for so long was left by one that died right after making it.
_NAMELESS_S: Final = 30.0
# How many blocked jobs are named; of the others only the number is shown.
_NAMED: Final = 3
# Of so many, `status` can say what blocks them.
_PUBLISHED: Final = 100
# Longer names are no numbers of ours.
_DIGITS: Final = 9
# Errors that the job's own directory causes (a file in its place, its permissions); all others stop every claim.
_OF_ONE_JOB: Final = frozenset({errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EMLINK})


class Fence:
    """Finds the number of a job's next attempt and makes its directory. `blocked` says why jobs cannot be claimed."""

    def __init__(self, layout: Layout, me: str, is_alive: Callable[[str], bool], say: Callable[[str], None]) -> None:
        self.blocked: dict[str, str] = {}
        self._layout = layout
        self._me = me
        self._is_alive = is_alive
        self._say = say
        self._nameless: dict[tuple[str, int], float] = {}

    def pass_through(self, tx: Transaction, job: str, attempt: int) -> tuple[int, AttemptPaths] | None:
        """Make the directory of `attempt`, or of one beyond all that are there; None when the job is blocked.

        Directories that the journal does not know are left by claimants that died between mkdir and journal, and by
        records that were removed (`delete`). One that somebody who lives has made blocks the job.
        """
        try:
            made, why = self._pass(tx, job, attempt)
        except StorageError as error:
            cause, directory = error.__cause__, self._layout.job_dir(job)
            if not (isinstance(cause, OSError) and cause.errno in _OF_ONE_JOB and os.path.lexists(directory)):
                raise
            made, why = None, f"{error}. {directory} must be a directory that this user may write"
        if made is None:
            self._block(job, why)
        else:
            self.unblock(job)
        return made

    def unblock(self, job: str) -> None:
        """The job was claimed or has changed: whatever blocked it is looked at anew."""
        self.blocked.pop(job, None)

    def shown(self) -> dict[str, str]:
        """What blocks which jobs, for the pod's file: as many as fit there."""
        return dict(itertools.islice(self.blocked.items(), _PUBLISHED))

    def notes(self) -> list[str]:
        """What blocks jobs, for people to read."""
        if not self.blocked:
            return []
        shown = [f"{job} cannot be claimed: {why}" for job, why in list(self.blocked.items())[:_NAMED]]
        more = len(self.blocked) - len(shown)
        return [*shown, f"{more} more jobs cannot be claimed for such reasons"] if more else shown

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
        """The numbers of all attempts whose directories are there."""
        directory = self._layout.job_dir(job)
        with files.storing("looking for attempts in", directory):
            files.look_at(directory)
            names = os.listdir(directory)
        return [int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= _DIGITS]

    def _why_in_use(self, job: str, number: int) -> str:
        """Why nobody may go beyond this attempt, which the journal does not know; empty when it is over."""
        paths = self._layout.attempt(job, number)
        if paths.exit.exists() or paths.superseded.exists():
            return ""
        name, _, _ = (files.read_fresh(paths.claimant) or b"").decode(errors="replace").partition("\n")
        if name:
            # We hold our own name, so whoever claimed under it before is dead.
            return self._made_by_another(paths, f"pod {name}") if name != self._me and self._is_alive(name) else ""
        first_seen_s = self._nameless.setdefault((job, number), time.monotonic())
        if time.monotonic() - first_seen_s > _NAMELESS_S:
            return ""
        return f"{paths.directory}: no pod's name in it; it counts as left over after {_NAMELESS_S:.0f} s without one"

    def _made_by_another(self, paths: AttemptPaths, who: str) -> str:
        mount = mount_of(paths.directory)
        what = f"{paths.directory}: made by {who}, which runs, but the journal does not know this attempt"
        if mount.is_network:
            return f"{what}. This host may be shown an old journal by {mount}. Cure: {mount.cure}"
        return f"{what}. If that lasts, restart {who}, or move the directory away"

    def _block(self, job: str, why: str) -> None:
        is_news = self.blocked.get(job) != why
        self.blocked[job] = why
        if not is_news or len(self.blocked) > _NAMED + 1:
            return
        if len(self.blocked) > _NAMED:
            self._say("warning: more jobs cannot be claimed: `dispatcher pods` says how many")
        else:
            self._say(f"warning: {job} cannot be claimed and is tried again every few seconds; others go on: {why}")
