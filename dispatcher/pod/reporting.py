"""What a pod shows of itself: its file, the lines at its beginning and its end, its exit code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.messages import counted, indented
from dispatcher.base.times import duration_text
from dispatcher.outlets.bundle import time_limit_s
from dispatcher.pod.offers import offers_of_others, published
from dispatcher.pod.reconciler import Reconciler
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.pod.waiting import Reason, root_causes, summary
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.progress import elapsed_s, parse_progress, progress_text, remaining_s
from dispatcher.run_state.states import IN_FLIGHT, Record, State

_SHOWN: Final = 10


class PodReport:
    """Of one pod, whose reconciler has begun."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler
        self._shared = reconciler.shared
        self._options = reconciler.shared.options
        self._attempts = reconciler.shared.attempts
        self._backlog = reconciler.backlog
        self._participants = reconciler.participants
        self._shown_slots: list[SlotInfo] = []

    # The pod's file.

    def slots_changed(self) -> bool:
        """Whether the slots are otherwise than `describe` last had them."""
        return self._attempts.slot_infos() != self._shown_slots

    def offered(self) -> dict[str, Any]:
        """The fields of the pod's file that say what it takes."""
        return published(self._backlog.offer())

    def describe(self) -> dict[str, Any]:
        """The fields of the pod's file that say what it takes and what it runs."""
        self._shown_slots = self._attempts.slot_infos()
        outlets = self._shared.outlets.values()
        warnings = [*self._attempts.notes(), *(note for outlet in outlets for note in outlet.notes())]
        return {
            **self.offered(),
            "stopped": self._why_no_claims(),
            "slots": self._shown_slots,
            "pending": self._attempts.pending(),
            "notes": [*(note for one in self._participants.all for note in one.notes()), *warnings],
            "warnings": warnings,
            "matrix": os.fspath(self._backlog.manifest.path),
        }

    # Lines for people.

    def opening_lines(self) -> list[str]:
        """The slots and the entries of a pod that begins, then what looks wrong with its options."""
        manifest = self._backlog.manifest
        slots = " and ".join(filter(None, (outlet.describe() for outlet in self._shared.outlets.values())))
        lines = [f"{slots}; {manifest.name}: {manifest.counts()}", *manifest.warnings()]
        return [*lines, *(line for one in self._participants.all for line in one.opening_lines())]

    def closing_lines(self) -> list[str]:
        """What a pod that ends by itself leaves behind, and why."""
        if self._options.once:
            return [*self._not_claimed(), *self._participants.orphans.notes()]
        lines = []
        if self._participants.claims.has_enough:
            lines.append(f"ended after --max-jobs {self._options.max_jobs}; others may take the rest")
        queue, stuck = self._backlog.queue, self._stuck()
        waiting = queue.waiting(_now())
        why = summary(root_causes([waiting.why(job) for job in stuck]))
        early = self._stopped_early() and _stopped_early_text(
            queue.unfinished, stuck, self._shared.records, self._why_no_claims()
        )
        if early:
            lines += [early, *([f"{len(stuck)} of these cannot run now: {why}"] if stuck else [])]
        elif stuck:
            lines.append(f"ended with {counted(len(stuck), 'job')} left that cannot run now: {why}")
        refused = self._refused()
        if refused:
            why = summary(reason.text for reason in refused.values())
            lines.append(f"{counted(len(refused), 'job')} left that this pod cannot run: {why}")
        return lines

    def summary(self) -> str:
        """How the attempts ended that this pod has recorded, what goes on without it, and which ends it must leave."""
        ended = self.unrecorded_ends()
        running = len(self._attempts) - ended
        parts = [self._participants.tally.text()]
        if running:
            parts.append(f"{counted(running, 'job keeps', 'jobs keep')} running")
        if ended:
            parts.append(f"{counted(ended, 'end')} not recorded: a pod of this workspace finds them")
        return "; ".join(parts)

    def exit_code(self) -> int:
        """0 when all that this pod was to run is done, or left to others that can; else 1."""
        is_stopped = bool(self._reconciler.must_drain() or self._stopped_early())
        is_left = bool(self._stuck()) or any(not why.other_takes for why in self._refused().values())
        return int(self._participants.tally.failed > 0 or is_stopped or is_left)

    def unrecorded_ends(self) -> int:
        """The number of attempts that have ended, which could not be recorded yet."""
        return sum(attempt.ended is not None for attempt in self._attempts)

    def still_running(self) -> list[str]:
        """What is in flight and how long it may take, where that is known; the first line has it in brief."""
        return _still_running(self._attempts, self._shared.records, self._limit_s, time.time())

    def _limit_s(self, job: str) -> float | None:
        entry = self._backlog.entry(job)
        return None if entry is None else time_limit_s(entry, self._shared.config.now.method(entry.method)) or None

    def _why_no_claims(self) -> str:
        return next((obstacle.why for obstacle in self._backlog.obstacles()), "")

    def _stopped_early(self) -> bool:
        return self._options.until_empty and any(obstacle.is_final for obstacle in self._backlog.obstacles())

    def _not_claimed(self) -> list[str]:
        """Why jobs that were to be submitted are still queued; of a pod without slots there are none."""
        if not self._shared.outlets:
            return []
        waiting, records = self._backlog.queue.waiting(_now()), self._shared.records
        wanted = [job for job in sorted(self._options.jobs or ()) if job in records]
        queued = [job for job in wanted if records[job].state is State.QUEUED]
        held = self._participants.adding.held_lines
        return [*held, *(f"{job} was not submitted: {waiting.why(job).text}" for job in queued)]

    def _stuck(self) -> list[str]:
        return self._backlog.queue.stuck(_now()) if self._options.until_empty else []

    def _refused(self) -> dict[str, Reason]:
        """The jobs that are left because this pod can never run them, and why; or which other pod takes them."""
        refused = self._backlog.queue.refused() if self._options.until_empty else []
        if not refused:
            return {}
        matrix = os.fspath(self._backlog.manifest.path)
        is_alive = self._shared.observer.pod_is_alive
        found = offers_of_others(self._shared.config.now.layout, self._options.pod, is_alive)
        waiting = self._backlog.queue.waiting(_now(), [offer for info, offer in found if info.matrix == matrix])
        return {job: waiting.why(job) for job in refused}


def _now() -> str:
    return now_text(time.time())


def _stopped_early_text(
    unfinished: Collection[str], stuck: Collection[str], records: Mapping[str, Record], why: str
) -> str:
    """What a pod leaves that has stopped claiming; empty where that is only what is `stuck`."""
    others = set(unfinished).difference(stuck)
    if not others:
        return ""
    elsewhere = sum(records[job].state in IN_FLIGHT for job in others)
    parts = [f"{len(others) - elsewhere} of which this pod no longer claims"]
    parts += [f"{elsewhere} of which other pods run"] if elsewhere else []
    return f"ended with {counted(len(unfinished), 'job')} left, {' and '.join(parts)}: {why}"


def _still_running(
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
