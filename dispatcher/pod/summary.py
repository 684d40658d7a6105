"""What a pod tells people about its work: what still runs when it drains, and what it has done when it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.messages import counted, indented
from dispatcher.base.times import duration_text
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import Line
from dispatcher.run_state.progress import elapsed_s, parse_progress, progress_text, remaining_s
from dispatcher.run_state.states import IN_FLIGHT, Record

_SHOWN: Final = 10
# In this order. How attempts end is in the journal; each is counted when its line is there.
_ENDS: Final[Mapping[Event, str]] = {
    Event.DONE: "done",
    Event.FAILED: "failed",
    Event.RETRIED: "requeued",
    Event.AUTO_REQUEUED: "requeued",
    Event.STOPPED: "stopped",
    Event.PRUNED: "pruned",
}


class EndCounts:
    """Counts how the attempts ended that a pod has recorded, by reason."""

    def __init__(self) -> None:
        self._ends: dict[str, Counter[str]] = {word: Counter() for word in _ENDS.values()}

    def add(self, lines: Iterable[Line]) -> None:
        """Count the ends among the lines of a transaction."""
        for line in lines:
            word = _ENDS.get(line.event)
            if word is not None:
                self._ends[word][line.set.get("reason") or ""] += 1

    @property
    def failed(self) -> int:
        return self._ends["failed"].total()

    def text(self) -> str:
        """`12 done, 3 failed (exit 1: 2, out of memory: 1), 1 requeued (preempted: 1)`."""
        parts = [f"{reasons.total()} {word}{_by_reason(reasons)}" for word, reasons in self._ends.items() if reasons]
        return ", ".join(parts) or "no job has ended"


def _by_reason(reasons: Counter[str]) -> str:
    known = [f"{reason}: {number}" for reason, number in reasons.most_common() if reason]
    return f" ({', '.join(known)})" if known else ""


def stopped_early_text(
    unfinished: Collection[str], stuck: Collection[str], records: Mapping[str, Record], why: str
) -> str:
    """What a pod leaves that has stopped claiming; empty where that is only what is `stuck`, whoever claims."""
    others = set(unfinished).difference(stuck)
    if not others:
        return ""
    elsewhere = sum(records[job].state in IN_FLIGHT for job in others)
    parts = [f"{len(others) - elsewhere} of which this pod no longer claims"]
    parts += [f"{elsewhere} of which other pods run"] if elsewhere else []
    return f"ended with {counted(len(unfinished), 'job')} left, {' and '.join(parts)}: {why}"


def still_running(
    attempts: Iterable[RunningAttempt],
    records: Mapping[str, Record],
    limit_s: Callable[[str], float | None],
    now_s: float,
) -> list[str]:
    """How many attempts are in flight and how long they may take, then a line for each of the first ones.

    `limit_s` is the time limit of a job, None where it has none.
    """
    running = [one for one in attempts if one.ended is None]
    if not running:
        return ["nothing is running"]
    lefts: list[float | None] = []
    lines: list[str] = []
    for attempt in running:
        left_s, text = _outlook(attempt, records.get(attempt.key.job_id), limit_s(attempt.key.job_id), now_s)
        lefts.append(left_s)
        lines.append(f"{attempt.key.job_id}: {text}")
    known = [left_s for left_s in lefts if left_s is not None]
    more = f", for about {duration_text(max(known))}" if known else ""
    more += " or longer" if known and len(known) < len(lefts) else ""
    heading = f"{counted(len(running), 'job')} still running{more}"
    return indented(heading, lines, _SHOWN).splitlines()


def _outlook(
    attempt: RunningAttempt, record: Record | None, limit_s: float | None, now_s: float
) -> tuple[float | None, str]:
    """The seconds that an attempt may take yet, None when that is unknown; and what there is to tell of it."""
    if not attempt.has_begun:
        return None, f"submitted to {attempt.outlet}{f', {attempt.waits_for}' if attempt.waits_for else ''}"
    elapsed = elapsed_s(record, now_s) if record is not None else None
    progress = parse_progress(_read(attempt.paths.progress))
    left_s = remaining_s(elapsed, progress)
    if left_s is not None:
        return left_s, f"{progress_text(progress)}, about {duration_text(left_s)} left"
    ran = f"runs for {duration_text(elapsed)}"
    if limit_s is not None and elapsed is not None:
        return None, f"{ran}, at most {duration_text(max(0.0, limit_s - elapsed))} left (time limit)"
    return None, f"{ran}, reports no progress"


def _read(path: Path) -> bytes | None:
    try:
        return files.read_at_once(path)
    except OSError:
        return None
