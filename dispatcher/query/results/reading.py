"""Reads the results of a workspace's jobs, and the parameters that they ran with."""

from __future__ import annotations

import os
from typing import Any

from dispatcher.outlets.base import Ended
from dispatcher.outlets.wrapper import read_exit
from dispatcher.query import attempts
from dispatcher.query.ran import RanWith
from dispatcher.query.results.rows import Results
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state import journal
from dispatcher.run_state.results import parse_result
from dispatcher.run_state.states import BY_HAND, PRUNED, Record, State
from dispatcher.workspace import Layout


def read_results(layout: Layout, snapshot: Snapshot, *, every_job: bool) -> Results:
    """The results of the snapshot's jobs that have succeeded; with `every_job` also rows of those that have none.

    Each row is of the last attempt that has succeeded: its `result.json`, and its `entry.json`.
    """
    ran = snapshot.ran or RanWith(layout)
    results = Results()
    older: list[tuple[int, str, int]] = []
    for job, record in snapshot.records.items():
        attempt = last_success(layout, job, record)
        data = attempts.read_or_why(layout.result_file(job, attempt)) if attempt else None
        if not attempt and record.state is State.FAILED and os.path.exists(layout.result_file(job, record.attempt)):
            results.failed.append(job)
        if record.result_lacks and attempt == record.attempt:
            results.lacking[job] = record.result_lacks
        if data is None:
            if attempt and (lost := snapshot.lost_result(job)):
                results.unreadable[job] = lost
            if every_job:
                results.add(_fixed(job, record, record.attempt or None), snapshot.entry(job), {})
            continue
        result = None if isinstance(data, str) else parse_result(data)
        if result is None and not data:
            results.unreadable[job] = "empty"
        elif result is None:
            results.unreadable[job] = data if isinstance(data, str) else "not a JSON object"
        listed = snapshot.entries.get(job)
        is_last = attempt == record.attempt
        entry = ran.last(job, record, listed) if is_last else ran.attempt(job, attempt)
        if entry is None:
            results.unsure.append(job)
        if not is_last:
            older.append((len(results), job, attempt))
        if is_last and job in snapshot.newer_inputs:
            results.older.append(job)
        results.with_result.add(job)
        results.add(_fixed(job, record, attempt), entry or listed, result or {})
    _set_times(layout, results, older)
    return results


def last_success(layout: Layout, job: str, record: Record) -> int:
    """The number of the last attempt that succeeded; 0 when none did, and for a job that was pruned."""
    if record.state is State.DONE and record.reason == PRUNED:
        return 0
    if record.state is State.DONE and record.reason != BY_HAND:
        return record.attempt
    older = range(record.attempt, 0, -1)
    return next((number for number in older if _is_done(layout, job, number)), 0)


def _is_done(layout: Layout, job: str, number: int) -> bool:
    ended = read_exit(layout.attempt(job, number).directory)
    return isinstance(ended, Ended) and ended.is_done


def _fixed(job: str, record: Record, attempt: int | None) -> dict[str, Any]:
    """The columns of every row, with the times of the record's last attempt."""
    is_last = attempt == record.attempt
    return {
        "job_id": job,
        "state": record.state.value,
        "attempt": attempt,
        "started_at": record.started_at if is_last else None,
        "finished_at": record.finished_at if is_last else None,
    }


def _set_times(layout: Layout, results: Results, older: list[tuple[int, str, int]]) -> None:
    """Set the times of attempts that are not the last ones of their jobs: the journal has them, and is read once."""
    if not older:
        return
    lines: dict[str, list[journal.Line]] = {job: [] for _, job, _ in older}
    for line in journal.history(layout, lines.keys()):
        lines[line.job or ""].append(line)
    for row, job, attempt in older:
        facts = attempts.journalled(lines[job]).get(attempt, {})
        results[row] |= {key: facts.get(key) for key in ("started_at", "finished_at")}
