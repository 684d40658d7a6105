"""`dispatcher wait` and `submit --wait`: wait until jobs have ended; the exit status is theirs."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from dispatcher.base.messages import counted, first_names
from dispatcher.cli.common import jobs_argument, json_option, open_workspace, where_option
from dispatcher.cli.printing import note, print_json
from dispatcher.cli.time_limit import timeout_option
from dispatcher.cli.wait_notes import START_A_POD, WaitNotes
from dispatcher.errors import INTERRUPTED, LockError, PodError, StaleViewError, StorageError
from dispatcher.matrix.condition import Where
from dispatcher.pod.waiting import SLOT
from dispatcher.query.ends import Ends
from dispatcher.run_state.states import IN_FLIGHT, WAITING, Record, State

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.api import Workspace
    from dispatcher.config import Config

_TELL_PAUSE_S: Final = 10.0
_NOT_DONE: Final = 1
_TROUBLE: Final = (StorageError, LockError, PodError, StaleViewError, OSError)


@click.command()
@jobs_argument
@where_option
@timeout_option
@json_option
def wait(jobs: tuple[str, ...], where: Where, as_json: bool) -> int:
    """Wait until jobs (ids, globs, --where; by default all) have ended.

    The exit status is the job's own, of several 0 if all are done, else 1. Ends at once when what is left cannot end
    unless a person does something: it is held, its method is paused, or no pod is alive that would notice the end.
    """
    from dispatcher.query.selection import select

    workspace = open_workspace()
    chosen = select(workspace.snapshot(), jobs, where=where)
    _tell(WaitNotes(workspace, START_A_POD), workspace, chosen, SLOT)
    with goes_on_when_interrupted(chosen):
        ended = workspace.wait(chosen)
    states = Counter("deleted" if record is None else record.state.value for record in ended.values())
    if as_json:
        others = {job: _how(record) for job, record in ended.items() if not _is_done(record)}
        print_json({"states": states, "not_done": others})
    else:
        listed = ", ".join(f"{state} {count}" for state, count in states.most_common())
        click.echo(f"{counted(len(chosen), 'job')}: {listed}" if chosen else "no job matches")
    return _status(chosen, ended)


def wait_for(workspace: Workspace, jobs: Sequence[str], hosts_file: Path | None = None) -> int:
    """Wait until all of the jobs have ended; the exit status: the job's own, of several 0 if all are done, else 1.

    Says why they wait. Attempts that no live pod looks after are looked after here.
    """
    notes = WaitNotes(workspace, START_A_POD)
    trouble = ""
    next_tell_s = 0.0
    # A pod takes a moment to find a new job.
    expected = SLOT
    next_poll_s = time.monotonic() + workspace.readable_config.poll_interval_s
    with goes_on_when_interrupted(jobs), Ends(workspace.store, jobs) as ends:
        while True:
            try:
                ends.look()
                if not ends.left:
                    break
                if time.monotonic() >= next_tell_s:
                    _tell(notes, workspace, ends.left, expected)
                    next_tell_s, expected = time.monotonic() + _TELL_PAUSE_S, ""
                if time.monotonic() >= next_poll_s:
                    look_after(workspace, [*ends.left], hosts_file)
                    next_poll_s = time.monotonic() + workspace.readable_config.poll_interval_s
                trouble = ""
                ends.pause(min(next_tell_s, next_poll_s) - time.monotonic())
            except _TROUBLE as error:
                # The jobs do not end with it, so the waiting, whose exit status is theirs, does not either.
                if str(error) != trouble:
                    note(f"{error}; waiting goes on")
                trouble = str(error)
                ends.pause(_TELL_PAUSE_S)
        ended = dict(ends.ended)
    return _status(jobs, ended)


@contextlib.contextmanager
def goes_on_when_interrupted(jobs: Sequence[str]) -> Iterator[None]:
    """Tell a person who interrupts the waiting that the jobs are not over with it."""
    try:
        yield
    except KeyboardInterrupt:
        what, them = (jobs[0], "it") if len(jobs) == 1 else ("the jobs", "them")
        note(f"only the waiting has ended, not {what}: `dispatcher status` shows {them}, `dispatcher cancel` gives up")
        raise


def _status(jobs: Sequence[str], ended: dict[str, Record | None]) -> int:
    others = [job for job in jobs if not _is_done(ended[job])]
    for job in others[:10]:
        note(f"{job}: {_how(ended[job])}")
    if len(others) > 10:
        note(f"{len(others) - 10} more have not succeeded: {first_names(others[10:])}")
    if not others:
        return 0
    record = ended[others[0]] if len(jobs) == 1 else None
    code = record.exit_code if record is not None and record.state is State.FAILED else None
    return code if code is not None and 0 < code < 256 else _NOT_DONE


def _is_done(record: Record | None) -> bool:
    return record is not None and record.state is State.DONE


def _how(record: Record | None) -> str:
    if record is None:
        return "deleted"
    return " ".join(filter(None, (f"{record.state}:" if record.reason else str(record.state), record.reason)))


def poll_once(config: Config, jobs: frozenset[str] | None, log: Callable[[str], None]) -> int:
    """Look once after these jobs, or all, that no live pod looks after. Returns what `run_pod` does."""
    from dispatcher.pod.options import PodOptions
    from dispatcher.pod.run import run_pod
    from dispatcher.pod.short_lived import unique_name

    # A workspace may have no other manifest.
    manifest = None if config.matrix.exists() else next(iter(config.layout.manifests()), None)
    options = PodOptions(pod=unique_name("poll"), matrix=manifest, jobs=jobs, once=True, on_exit="leave")
    return run_pod(config.layout, config, options, log=log)


def _tell(notes: WaitNotes, workspace: Workspace, jobs: Collection[str], expected: str) -> None:
    """Say why jobs wait. Reads the whole workspace only if one does."""
    records = workspace.store.records
    waiting = [job for job in jobs if (record := records.get(job)) is not None and record.state in WAITING]
    if waiting:
        notes.tell(waiting, expected=expected)


def look_after(workspace: Workspace, jobs: Sequence[str], hosts_file: Path | None) -> None:
    """Record how attempts have ended whose pod is gone, as `dispatcher poll` does."""
    from dispatcher.config import load_config

    records = workspace.store.records
    in_flight = [job for job in jobs if (record := records.get(job)) is not None and record.state in IN_FLIGHT]
    if in_flight and not any(pod.is_alive for pod in workspace.pods()):
        # Meanwhile signals go to the pod that looks.
        status = poll_once(load_config(workspace.layout, hosts_file), frozenset(in_flight), note)
        if status == INTERRUPTED:
            raise KeyboardInterrupt
