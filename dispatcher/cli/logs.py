"""`dispatcher logs JOB`: the output of an attempt."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from dispatcher.cli.common import open_workspace
from dispatcher.cli.complete import complete_jobs
from dispatcher.cli.hardware import hosts_option
from dispatcher.cli.printing import note
from dispatcher.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.api import Workspace
    from dispatcher.cli.remote_log import Elsewhere
    from dispatcher.workspace import AttemptPaths

_BLOCK: Final = 1 << 20
# Reading the file's size costs microseconds, reading the journal a little more.
_PAUSE_S: Final = 0.2
_STATE_PAUSE_S: Final = 1.0


@click.command()
@click.argument("job", shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the attempt has ended.")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Which attempt.  [default: the last one]")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="LINES", help="Only the last lines.")
@hosts_option
def logs(job: str, follow: bool, attempt: int | None, tail: int | None, hosts_file: Path | None) -> None:
    """Print the log of JOB's last attempt."""
    workspace = open_workspace()
    number = attempt or _last_attempt(workspace, job)
    paths = workspace.layout.attempt(job, number)
    out = sys.stdout.buffer
    elsewhere = _elsewhere(workspace, paths, job, number, hosts_file) if follow else None
    if elsewhere is not None:
        _follow_elsewhere(workspace, elsewhere, out, job, number, tail)
        return
    file = _open(workspace, paths, job, number, follow)
    if file is None:
        return
    with file:
        _show(file, out, tail)
        if follow:
            _follow(workspace, file, out, job, number)


def _show(file: BinaryIO, out: BinaryIO, tail: int | None) -> None:
    """Print what the log has now, or its last lines."""
    if tail is not None:
        file.seek(_tail_start(file, tail))
    _copy(file, out)


def _elsewhere(
    workspace: Workspace, paths: AttemptPaths, job: str, number: int, hosts_file: Path | None
) -> Elsewhere | None:
    """Where an attempt in flight writes its log, if that is not in the workspace."""
    if not paths.submission.exists() or _is_over(workspace, job, number):
        return None
    from dispatcher.cli.remote_log import log_elsewhere
    from dispatcher.config import load_config

    return log_elsewhere(load_config(workspace.layout, hosts_file), paths)


def _follow_elsewhere(
    workspace: Workspace, elsewhere: Elsewhere, out: BinaryIO, job: str, number: int, tail: int | None
) -> None:
    """Print what was brought home of the log, then the rest from where it is written."""
    from dispatcher.cli.remote_log import follow_elsewhere, several_logs

    several = several_logs(elsewhere)
    if several:
        from dispatcher.cli.worker_logs import follow_several

        with contextlib.closing(elsewhere.road):
            follow_several(several, out, tail, lambda: _is_over(workspace, job, number))
        return
    offset = 0
    with contextlib.suppress(FileNotFoundError), open(workspace.layout.attempt(job, number).log, "rb") as file:
        _show(file, out, tail)
        offset = file.tell()
    follow_elsewhere(elsewhere, out, offset, lambda: _is_over(workspace, job, number))


def _last_attempt(workspace: Workspace, job: str) -> int:
    from dispatcher.report.selection import select

    snapshot = workspace.snapshot()
    select(snapshot, [job])
    number = snapshot.records[job].attempt
    if not number:
        raise StateError(f"{job} has not run yet: there is no log (state: {snapshot.records[job].state})")
    return number


def _open(workspace: Workspace, paths: AttemptPaths, job: str, number: int, follow: bool) -> BinaryIO | None:
    """Open the log. With `follow`, wait until it exists; None when the attempt ends without one."""
    while True:
        has_ended = _has_ended(workspace, job, number)
        try:
            return open(paths.log, "rb", buffering=0)
        except FileNotFoundError:
            if not paths.directory.is_dir():
                known = ", ".join(str(row["attempt"]) for row in workspace.attempts(job)) or "none"
                raise StateError(f"{job} has no attempt {number} (attempts: {known})") from None
            if has_ended or not follow:
                note(f"attempt {number} of {job} has no log")
                return None
        time.sleep(_PAUSE_S)


def _copy(file: BinaryIO, out: BinaryIO) -> bool:
    """Copy the rest of the file; whether there was any."""
    some = False
    while block := file.read(_BLOCK):
        out.write(block)
        some = True
    if some:
        out.flush()
    return some


def _follow(workspace: Workspace, file: BinaryIO, out: BinaryIO, job: str, number: int) -> None:
    next_look_s = 0.0
    while True:
        # Checked before the rest is read, so that nothing written before the end is missed.
        has_ended = False
        if time.monotonic() >= next_look_s:
            has_ended = _has_ended(workspace, job, number)
            next_look_s = time.monotonic() + _STATE_PAUSE_S
        if not _copy(file, out) and has_ended:
            return
        if not has_ended:
            time.sleep(_PAUSE_S)


def _has_ended(workspace: Workspace, job: str, number: int) -> bool:
    from dispatcher.run_state import liveness
    from dispatcher.run_state.states import State

    if _is_over(workspace, job, number):
        return True
    paths, record = workspace.layout.attempt(job, number), workspace.store.records[job]
    # Killed, and not recorded yet. One that was only submitted holds no lock before it begins.
    return record.state is State.RUNNING and os.path.exists(paths.alive) and liveness.is_held(paths.alive) is False


def _is_over(workspace: Workspace, job: str, number: int) -> bool:
    """Whether the workspace knows that the attempt has ended."""
    from dispatcher.run_state.states import IN_FLIGHT

    if os.path.exists(workspace.layout.attempt(job, number).exit):
        return True
    workspace.store.refresh()
    record = workspace.store.records.get(job)
    return record is None or record.attempt != number or record.state not in IN_FLIGHT


def _tail_start(file: BinaryIO, lines: int) -> int:
    """The offset of the last `lines` lines."""
    end = file.seek(0, os.SEEK_END)
    position, found = end, 0
    while position > 0:
        start = max(0, position - _BLOCK)
        file.seek(start)
        block = file.read(position - start)
        for index in range(len(block) - 1, -1, -1):
            # A newline at the end of the file does not begin a line.
            if block[index] == 0x0A and start + index != end - 1:
                found += 1
                if found == lines:
                    return start + index + 1
        position = start
    return 0 if lines else end
