"""Attempts whose claims the journal has lost: their directories are the evidence.

A journal goes back when a backup is copied over it, or when one that was cut is repaired. The attempts that were
claimed after that moment run on, or have ended, and have directories with greater numbers than their records. Such an
attempt is claimed again as it is: its job must not run a second time. A directory proves nothing where no wrapper has
taken the attempt, nothing was submitted and no process holds the liveness lock: a pod died between mkdir and the
journal's sync. One that is marked as superseded was given up, as are those before it: deleting a record marks them.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.values import is_name
from dispatcher.matrix.entry import Entry, read_entry
from dispatcher.outlets.base import Ended
from dispatcher.outlets.batch.identity import read_submission
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.outlets.wrapper import read_exit, read_gpus
from dispatcher.run_state import liveness
from dispatcher.workspace import AttemptPaths, Layout, attempt_numbers

# The files that are there only after an attempt was started or submitted.
_TRACES: Final = frozenset({contract.TAKEN_FILE, contract.EXIT_FILE, contract.SUBMISSION_FILE})


class LostClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What the directory of an attempt tells of its claim, and whether the attempt `runs`, as far as its lock tells.

    `outlet` is None for a local slot; then `host` is where it was claimed, `pid` its wrapper's there, and `gpus` those
    that it has. `started_s`: in seconds since 1970, by the file server's clock.
    """

    job: str
    number: int
    paths: AttemptPaths
    runs: bool
    pod: str | None
    host: str | None
    pid: int | None
    outlet: str | None
    gpus: tuple[int, ...]
    started_s: float | None
    entry: Entry | None

    def text(self) -> str:
        """Which attempt it is, where, and how it is, for people."""
        where = [f"pod {self.pod}"] if self.pod else []
        where += [f"outlet {self.outlet}"] if self.outlet else [f"host {self.host}"] if self.host else []
        where += [f"pid {self.pid}"] if self.pid and self.runs else []
        return f"{self.paths.directory} ({', '.join([*where, self._state()])})"

    def _state(self) -> str:
        if self.runs:
            return "running"
        ended = read_exit(self.paths.directory)
        if isinstance(ended, Ended) and ended.exit_code is not None:
            return f"ended with exit status {ended.exit_code}"
        return "submitted" if self.outlet else "ended without an exit status"


def numbers(layout: Layout, job: str) -> list[int]:
    """The numbers of a job's attempts that have a directory, the newest first."""
    directory = layout.job_dir(job)
    with files.storing("looking for attempts in", directory):
        try:
            files.refresh_names(directory)
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
    return attempt_numbers(names)


def jobs_with_directories(layout: Layout) -> list[str]:
    """The names of run_state/jobs that can be those of jobs."""
    with files.storing("looking for attempts in", layout.jobs_dir), contextlib.suppress(FileNotFoundError):
        files.refresh_names(layout.jobs_dir)
        return sorted(name for name in os.listdir(layout.jobs_dir) if is_name(name))
    return []


def find_lost_claim(layout: Layout, job: str, known: int) -> LostClaim | None:
    """The newest attempt that has begun and has a greater number than the journal knows; None when there is none."""
    for number in numbers(layout, job):
        if number <= known:
            break
        paths = layout.attempt(job, number)
        with files.storing("looking for traces of the attempt in", paths.directory):
            names = set(os.listdir(paths.directory))
        is_held = liveness.is_held(paths.alive) is True
        if contract.SUPERSEDED_FILE in names and not is_held:
            break
        if is_held or names & _TRACES:
            return lost_claim(layout, job, number)
    return None


def lost_claim(layout: Layout, job: str, number: int) -> LostClaim:
    """What the directory of an attempt tells of its claim."""
    paths = layout.attempt(job, number)
    name, _, place = (files.read_fresh_small(paths.claimant) or b"").decode(errors="replace").partition("\n")
    submission = read_submission(paths)
    outlet = None if submission is None or submission.outlet == LOCAL else submission.outlet
    # Host, boot and PID namespace.
    host = place.strip().rsplit(" ", 2)[0] if outlet is None else ""
    return LostClaim(
        job=job,
        number=number,
        paths=paths,
        runs=liveness.is_held(paths.alive) is True,
        pod=name or None,
        host=host or None,
        pid=_pid(paths) if outlet is None else None,
        outlet=outlet,
        gpus=read_gpus(paths) if outlet is None else (),
        started_s=_started_s(paths),
        entry=entry_of(paths),
    )


def _pid(paths: AttemptPaths) -> int | None:
    _, _, pid = (files.read_fresh_small(paths.taken) or b"").decode(errors="replace").strip().rpartition(" ")
    return int(pid) if pid.isascii() and pid.isdigit() else None


def _started_s(paths: AttemptPaths) -> float | None:
    for path in (paths.taken, paths.submission, paths.claimant):
        with contextlib.suppress(OSError):
            return os.stat(path).st_mtime
    return None


def entry_of(paths: AttemptPaths) -> Entry | None:
    """What an attempt runs with; None where that is not written yet, or cannot be read."""
    try:
        document = msgspec.json.decode(files.read_at_once(paths.entry), type=dict[str, Any])
    except (OSError, ValueError, RecursionError):
        return None
    return read_entry(document, 0)[0]
