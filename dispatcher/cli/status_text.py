"""The screen of `dispatcher status`: a header with numbers, then tables: failures, what waits, what runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.base.terminal import clip, indented, one_line, width_of
from dispatcher.base.times import ago, duration_text, parse_time
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import coloured, table_text, terminal_width, wants_colour
from dispatcher.query.failures import failures

if TYPE_CHECKING:
    from dispatcher.query.failures import Failure
    from dispatcher.query.pace import Pace
    from dispatcher.query.snapshot import Snapshot
    from dispatcher.query.waiting import WaitReason

# So many causes, reasons and running jobs are listed, where the terminal has no room for more.
_CAUSES: Final = 5
_REASONS: Final = 6
_RUNNING: Final = 2
_HOUR_S: Final = 3600
_PLAIN_STATES: Final = ("running", "submitted")
# How tables of jobs become narrower.
OF_JOBS: Final = Narrowing(
    shrink=("user", "where", "progress", "reason", "error", "why", "job"),
    drop=("attempt", "elapsed", "user", "where"),
    keep=("job",),
)


class Table(msgspec.Struct, frozen=True):
    """A table of the screen.

    `more` says what is not shown of a table of which only the first rows are, `command` what shows it.
    """

    rows: Sequence[dict[str, Any]]
    columns: Sequence[str]
    narrowing: Narrowing
    most: int
    more: Callable[[Sequence[dict[str, Any]]], str]
    command: str

    def lines(self, most: int | None = None) -> list[str]:
        """The table with at most so many rows."""
        shown = self.rows if most is None or most >= len(self.rows) else self.rows[:most]
        text = table_text(shown, "plain", self.columns, narrowing=self.narrowing, bare=True)
        heading, *lines = text.splitlines()
        lines.insert(0, click.style(heading, bold=True) if wants_colour() else heading)
        return lines if len(shown) == len(self.rows) else [*lines, self._more(self.rows[len(shown) :])]

    def _more(self, rows: Sequence[dict[str, Any]]) -> str:
        """In one line, with the command where that has room."""
        more, width = f"... and {self.more(rows)}", terminal_width()
        with_command = f"{more}: dispatcher {self.command}"
        if width is None or width_of(with_command) <= width:
            return with_command
        return clip(more, width)


class Screen:
    """What `dispatcher status` shows of a snapshot of all jobs, for a terminal of this width (None: no limit)."""

    def __init__(self, snapshot: Snapshot, width: int | None) -> None:
        from dispatcher.query.pace import pace
        from dispatcher.query.waiting import waits

        self._snapshot = snapshot
        self._width = width
        waiting = waits(snapshot)
        self._pace = pace(snapshot, waiting)
        self._failures = failures(snapshot)
        failed = _failed(self._failures, snapshot.now_s)
        self._tables = [failed, _waiting(waiting, width), _running(snapshot)]

    def header(self) -> list[str]:
        """Counts, slots, rate, time left."""
        lines = counts_lines(self._snapshot, self._width)
        snapshot = self._snapshot
        for words in (rate_words(self._pace, len(snapshot.stalled), len(snapshot.gpu_idle)), left_words(self._pace)):
            lines += _joined(words, self._width)
        return lines

    def failed_line(self) -> list[str]:
        """How many jobs failed for which reasons, in one line; none where none has failed."""
        counts = Counter[str]()
        for failure in self._failures:
            counts[failure.reason or "unknown"] += len(failure.jobs)
        words = ", ".join(f"{count} {reason}" for reason, count in counts.most_common())
        line = one_line(f"failed: {words}")
        return [line if self._width is None else clip(line, self._width)] if counts else []

    def body(self, height: int | None = None) -> list[str]:
        """The tables. Where they do not fit into `height` lines (None: any number), they are shortened."""
        tables = [table for table in self._tables if table.rows]
        whole = [["", *table.lines()] for table in tables]
        if height is None or sum(map(len, whole)) <= height:
            return [line for lines in whole for line in lines]
        limits = [min(table.most, len(table.rows)) for table in tables]
        while len(_shown(tables, limits)) > height and max(limits) > 1:
            limits[limits.index(max(limits))] -= 1
        # What room is left is for what runs.
        limits[-1] += max(0, height - len(_shown(tables, limits)))
        return _shown(tables, limits)


def _shown(tables: Sequence[Table], limits: Sequence[int]) -> list[str]:
    """At most so many rows of each table, without empty lines between them."""
    return ["", *(line for table, limit in zip(tables, limits, strict=True) for line in table.lines(limit))]


def counts_lines(snapshot: Snapshot, width: int | None) -> list[str]:
    """`1200 jobs: queued 443, running 30`."""
    from dispatcher.query.groups import count_states
    from dispatcher.run_state.states import MARKABLE

    counts = {state: count for state, count in count_states(snapshot).items() if count}
    by_hand = {state.value: snapshot.by_state.by_hand(state) for state in MARKABLE}
    notes = {state: f" ({count} set by hand)" for state, count in by_hand.items() if count}
    words = [f"{state} {count}{notes.get(state, '')}" for state, count in counts.items()]
    total = counted(len(snapshot.records), "job")
    if not words:
        return [total]
    return [_painted(line) for line in _joined([f"{total}: {words[0]}", *words[1:]], width)]


def rate_words(pace: Pace, stalled: int, idle: int) -> list[str]:
    """Slots and rate, jobs that need a look; nothing where nothing runs and nothing is left to run."""
    if not (pace.left or pace.pods or pace.silent or pace.stuck):
        return []
    words = [f"{pace.slots_busy} of {counted(pace.slots, 'slot')} busy"] if pace.pods else []
    words += [f"{counted(len(pace.silent), 'pod shows', 'pods show')} no sign of life"] if pace.silent else []
    words = words or ["no pod is running"]
    if pace.done_per_hour is not None:
        rate = f"{pace.done_per_hour:.0f}" if pace.done_per_hour >= 10 else f"{pace.done_per_hour:.1f}"
        words.append(f"{rate} jobs/h in the last {_window_text(pace.window_s)}")
    words += [f"{stalled} stalled"] if stalled else []
    return [*words, f"{counted(idle, 'job leaves its GPU', 'jobs leave their GPUs')} idle"] if idle else words


def left_words(pace: Pace) -> list[str]:
    """How long the rest takes, and how many jobs need a person."""
    words = []
    if pace.left:
        words.append(f"{counted(pace.left, 'job')} left: {_left_text(pace)}")
    if pace.stuck:
        words.append(f"{pace.stuck} blocked")
    return words


def _left_text(pace: Pace) -> str:
    missing = f" ({'; '.join(words)})" if (words := _missing_words(pace)) else ""
    if pace.remaining_s is None and not pace.is_claiming:
        return "time unknown until a pod claims jobs"
    if pace.remaining_s is None:
        return f"time unknown{missing}"
    return f"{'at least' if missing else 'about'} {duration_text(pace.remaining_s)}{missing}"


def _missing_words(pace: Pace) -> list[str]:
    """What of the jobs that are left the estimate lacks."""
    words = [f"no {'/'.join(pace.unknown_methods[:3])} job to go by"] if pace.unknown_methods else []
    words += [f"{pace.refused} that no live pod can take"] if pace.refused else []
    words += [f"max_running of {pace.limited_by}"] if pace.limited_by else []
    return [*words, f"{pace.stalled} stalled"] if pace.stalled else words


def _window_text(window_s: float) -> str:
    if window_s == _HOUR_S:
        return "hour"
    return duration_text(window_s) if window_s % _HOUR_S else f"{window_s / _HOUR_S:.0f} hours"


def _joined(words: Sequence[str], width: int | None) -> list[str]:
    """The words with commas between them, in lines that break at commas where they can."""
    lines: list[str] = []
    for word in words:
        longer = f"{lines[-1]}, {word}" if lines else word
        if lines and width is not None and len(longer) >= width:
            lines.append(word)
        else:
            lines[-1:] = [longer]
    return indented(lines, width)


def _painted(line: str) -> str:
    """The counts of states in their colours."""
    if not wants_colour():
        return line
    head, colon, counts = line.rpartition(": ")
    return head + colon + ", ".join(coloured("state", count) for count in counts.split(", "))


def _failed(causes: Sequence[Failure], now_s: float) -> Table:
    def more(rows: Sequence[dict[str, Any]]) -> str:
        jobs = sum(row["failed"] for row in rows)
        return f"{counted(jobs, 'job')} of {counted(len(rows), 'other cause')}"

    rows = [
        {
            "failed": len(failure.jobs),
            "last": _ago(failure.last_at, now_s),
            "cause": failure.text,
            "job": failure.jobs[0],
        }
        for failure in causes
    ]
    narrowing = Narrowing(shrink=("job", "cause"), drop=("last", "job"), keep=("failed", "cause"))
    return Table(rows, ("failed", "last", "cause", "job"), narrowing, _CAUSES, more, "status --watch")


def _ago(at: str | None, now_s: float) -> str | None:
    moment = parse_time(at)
    return None if moment is None else ago(max(0.0, now_s - moment))


def _waiting(waiting: Sequence[WaitReason], width: int | None) -> Table:
    def more(rows: Sequence[dict[str, Any]]) -> str:
        jobs = sum(row["jobs"] for row in rows)
        return f"{counted(jobs, 'job')} for {counted(len(rows), 'other reason')}"

    rows = []
    for wait in waiting:
        # A terminal has room for one.
        which = first_names(wait.jobs) if width is None else wait.jobs[0]
        rows.append({"jobs": len(wait.jobs), "waiting because": wait.why, "which": which})
    columns = ("jobs", "waiting because", "which")
    narrowing = Narrowing(shrink=("which", "waiting because"), drop=("which",), keep=("jobs", "waiting because"))
    return Table(rows, columns, narrowing, _REASONS, more, "status --watch")


def _running(snapshot: Snapshot) -> Table:
    from dispatcher.query.job_columns import Job, text_of_job, used_columns

    def more(rows: Sequence[dict[str, Any]]) -> str:
        return f"{len(rows)} more"

    needs_a_look = {*snapshot.stalled, *snapshot.gpu_idle}
    jobs = sorted(snapshot.in_flight(), key=lambda job: job not in needs_a_look)
    rows = [text_of_job(Job(snapshot, job)) for job in jobs]
    columns = used_columns(rows, running=True)
    if all(row["state"] in _PLAIN_STATES for row in rows):
        columns.remove("state")
        for row in rows:
            if row["state"] == "submitted":
                row["progress"] = ": ".join(filter(None, ("submitted", row["progress"])))
    return Table(rows, columns, OF_JOBS, _RUNNING, more, "status --state running,submitted")
