"""`dispatcher history [JOB]...`: all changes, with time and author."""

from __future__ import annotations

import collections
import fnmatch
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.base.times import Clock, parse_since
from dispatcher.base.users import user_of
from dispatcher.base.values import BadValueError
from dispatcher.cli.common import (
    WholeNumber,
    jobs_argument,
    json_option,
    open_workspace,
    read_list,
    utc_option,
    where_option,
)
from dispatcher.cli.complete import complete_words
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import note, print_json, print_rows
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import Where
from dispatcher.run_state.edits.status_file import TIMES
from dispatcher.run_state.events import Event

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.run_state.journal import Line

_EVENTS: Final = tuple(event.value for event in Event if event is not Event.CONTINUED)
_COLUMNS: Final = ("time", "by", "event", "job", "changes")
_NARROWING: Final = Narrowing(shrink=("by", "job", "changes"), drop=("by",), keep=("event", "job", "changes"))
# Rows of one table: the first ones of a long history are shown before the last ones are read.
_ROWS: Final = 10_000
# What the other columns tell already, and digests, which tell people nothing; JSON has them.
_UNSHOWN: Final = frozenset(
    {"pod", "started_at", "finished_at", "ran_with", "user", "has_result", "inputs_at", "redone"}
)
# The state follows from these.
_TELL_STATE: Final = frozenset(
    {
        *(Event.QUEUED, Event.CLAIMED, Event.SUBMITTED, Event.STARTED, Event.DONE, Event.FAILED, Event.RETRIED),
        *(Event.AUTO_REQUEUED, Event.REQUEUED, Event.HELD, Event.ABANDONED),
    }
)
# Data of dispatchers: `set` has what was edited, an end counts for the method, GPU and host where it happened, and a
# scope tells its values.
_UNSHOWN_DATA: Final = frozenset(
    {"edit", "born", "method", "gpu", "host", "suspect", "outlets", "started_at", "ended_at", "values", "until_success"}
)
# What was paused, and why: that is clear without their names.
_TELLING_DATA: Final = frozenset({"scope", "why", "pod"})


@click.command()
@jobs_argument
@where_option
@click.option(
    "--since", metavar="TIME", help="Only changes since then: 2h or 3d ago, 14:30, 2026-06-17, '2026-06-17 14:30'."
)
@click.option(
    "--event",
    "events",
    multiple=True,
    metavar="EVENT",
    shell_complete=complete_words(_EVENTS),
    help=f"Only this event, or these (comma-separated): {', '.join(_EVENTS)}.",
)
@click.option("--by", callback=read_list, metavar="NAMES", help="Only changes by these users (ada, ada@desk) or pods.")
@click.option("-n", "--tail", type=WholeNumber(1), metavar="N", help="Only the last N changes.")
@utc_option
@json_option
def history(
    jobs: tuple[str, ...],
    where: Where,
    since: str | None,
    events: tuple[str, ...],
    by: tuple[str, ...],
    tail: int | None,
    utc: bool,
    as_json: bool,
) -> None:
    """List the changes of JOB... (ids, globs), or of all jobs, oldest first."""
    clock = Clock(time.time(), utc)
    workspace = open_workspace()
    names, authors = _Names(jobs), _Authors(by)
    lines = _chosen(workspace, names, where, _read_since(since, clock), _read_events(events), authors)
    if tail is not None:
        lines = iter(collections.deque(lines, maxlen=min(tail, sys.maxsize)))
    if as_json:
        print_json(list(lines))
        names.refuse_unknown(workspace)
        authors.refuse_unknown(is_whole=names.only is None)
        return
    # A job that alone was asked for need not be named in each line.
    some = _print(lines, clock, [name for name in _COLUMNS if name != "job" or len(names.only or ()) != 1])
    names.refuse_unknown(workspace)
    authors.refuse_unknown(is_whole=names.only is None)
    if not some:
        note("no changes")


class _Names:
    """The jobs that were named, and which of the names a job was found for. No names are all jobs."""

    def __init__(self, names: Sequence[str]) -> None:
        from dispatcher.query.selection import is_glob

        self._exact = {name for name in names if not is_glob(name)}
        self._globs = [name for name in names if is_glob(name)]
        self._found: set[str] = set()
        self._known: dict[str, bool] = {}

    @property
    def only(self) -> set[str] | None:
        """All jobs that can be meant, which is quicker; None where that is not known."""
        return self._exact if self._exact and not self._globs else None

    def hold(self, job: str | None) -> bool:
        """Whether the job is one of them."""
        if not self._exact and not self._globs:
            return True
        if job is None:
            return False
        if job not in self._known:
            found = [glob for glob in self._globs if fnmatch.fnmatchcase(job, glob)]
            found += [job] if job in self._exact else []
            self._found.update(found)
            self._known[job] = bool(found)
        return self._known[job]

    def refuse_unknown(self, workspace: Workspace) -> None:
        """UsageError for a name that is neither in the history nor in the workspace."""
        missing = sorted({*self._exact, *self._globs} - self._found)
        if missing:
            from dispatcher.query.selection import select

            select(workspace.snapshot(), missing)


class _Authors:
    """Who has made changes, as `--by` names them: users, users at a host, pods. No names are everybody."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._seen: set[str] = set()

    def hold(self, by: str) -> bool:
        """Whether a change by this author is meant."""
        if not self._names:
            return True
        own = {by, user_of(by) or by}
        self._seen |= own
        return not own.isdisjoint(self._names)

    def refuse_unknown(self, *, is_whole: bool) -> None:
        """UsageError for a name that has changed nothing, as far as all of the history was read."""
        missing = sorted(self._names - self._seen)
        if missing and is_whole:
            raise UsageError(
                f"--by {missing[0]}: the history has no change by that name{nearest(missing[0], sorted(self._seen))}"
            )


def _chosen(
    workspace: Workspace, names: _Names, where: Where, since: str, events: frozenset[Event], authors: _Authors
) -> Iterator[Line]:
    from dispatcher.query.selection import select
    from dispatcher.run_state import journal

    chosen = set(select(workspace.snapshot(), where=where)) if where else None
    for line in journal.history(workspace.layout, names.only):
        is_meant = authors.hold(line.by) and names.hold(line.job) and (chosen is None or line.job in chosen)
        if is_meant and line.at >= since and (not events or line.event in events):
            yield line


def _read_since(text: str | None, clock: Clock) -> str:
    """The time from which on changes are shown, as the journal writes it; empty for all."""
    from dispatcher.run_state.journal import now_text

    if text is None:
        return ""
    try:
        return now_text(parse_since(text, clock))
    except BadValueError as error:
        raise UsageError(f"--since {text}: {error}") from None


def _read_events(words: Sequence[str]) -> frozenset[Event]:
    names = [part.strip() for word in words for part in word.split(",")]
    for name in names:
        if name not in _EVENTS:
            raise UsageError(f"--event {name}: unknown event; the events are {', '.join(_EVENTS)}")
    return frozenset(Event(name) for name in names)


def _print(lines: Iterator[Line], clock: Clock, columns: Sequence[str]) -> bool:
    """Print the changes as they are read; whether there are any."""
    is_first = True
    while block := list(itertools.islice(lines, _ROWS)):
        if not is_first:
            click.echo()
        is_first = False
        print_rows([_row(line, clock) for line in block], "plain", columns, narrowing=_NARROWING)
    return not is_first


def _row(line: Line, clock: Clock) -> dict[str, Any]:
    return {
        "time": clock(line.at),
        "by": line.by,
        "event": line.event.value,
        "job": line.job or "-",
        "changes": "  ".join(_changes(line, clock)),
    }


def _changes(line: Line, clock: Callable[[str], str]) -> Iterable[str]:
    """What the line has set, and what else it carries."""
    from dispatcher.query.selection import cell_text

    known = {key: value for key, value in line.set.items() if value is not None and key not in _UNSHOWN}
    if line.event in _TELL_STATE:
        known.pop("state", None)
    # What people look for comes first: the rest may not fit.
    why = [str(known.pop(key)) for key in ("reason", "error") if key in known]
    if why and why[0].startswith(("exit ", "signal ")):
        known.pop("exit_code", None)
    if why:
        yield ": ".join(why)
    for key, value in known.items():
        yield f"{key}={clock(value) if key in TIMES else cell_text(value)}"
    for key, value in (line.data or {}).items():
        if key not in _UNSHOWN_DATA:
            yield cell_text(value) if key in _TELLING_DATA else f"{key}: {cell_text(value)}"
