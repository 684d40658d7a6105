"""Lists of jobs, and all that is known about one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.values import text_of
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.condition import literal
from dispatcher.matrix.entry import OWNER
from dispatcher.query.job_columns import Job, JobRow, page_columns, page_row
from dispatcher.query.pods import gpu_uses
from dispatcher.query.provenance import provenance_facts
from dispatcher.query.ran import is_unknown, last_counts
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.sorting import sorted_places
from dispatcher.query.waiting import reasons
from dispatcher.run_state.results import parse_result
from dispatcher.run_state.states import IN_FLIGHT, WAITING
from dispatcher.web.answers import RefusedError, encode
from dispatcher.web.board import Board, Filter

MOST_JOBS: Final = 500
# Of an error, and of a parameter, in a list.
_LONG: Final = 300
_ATTEMPTS: Final = 50
# A row has so many parameters beside those that were asked for.
_PARAMS: Final = 50
_VALUES: Final = 50
# A list goes on in the next answer when its rows have more.
_LIST_BYTES: Final = 800_000


def listed(
    board: Board, wanted: Filter, sort: str | None, limit: int, after: int, show: Sequence[str] = ()
) -> dict[str, Any]:
    """Some of the jobs that match a filter: `limit` from number `after` on; `next` is the number to go on with.

    `show` are parameters that rows have in any case, however many there are.
    `sort` is a key or a result, with a minus for the reverse order; None is the order of the manifest.
    """
    places: Sequence[int] = board.places(wanted)
    if sort:
        places = sorted_places(board.snapshot, board.columns, board.results, places, sort)
    chosen = places[after : after + limit]
    snapshot = board.snapshot
    waiting = reasons(snapshot)
    rows: list[JobRow] = []
    size = 0
    for place in chosen:
        job = board.columns.jobs[place]
        row = _plain_row(board, snapshot, job, show)
        record = snapshot.records[job]
        row["why"] = waiting.why(job).text if record.state in WAITING else None
        size += len(encode(row)) + 1
        if size > _LIST_BYTES and rows:
            break
        rows.append(row)
    end = after + len(rows)
    more = {"total": len(places), "next": end if end < len(places) else None}
    return {"columns": page_columns(), "jobs": rows, **more}


def rows_of(board: Board, jobs: Sequence[str]) -> dict[str, Any]:
    """The rows of these jobs, of those that exist."""
    snapshot = board.snapshot
    known = [job for job in jobs if job in snapshot.records]
    return {"jobs": [_plain_row(board, snapshot, job) for job in known], "total": len(known), "next": None}


def _plain_row(board: Board, snapshot: Snapshot, job: str, show: Sequence[str] = ()) -> JobRow:
    """A row of a list: `page_row`, the parameters and the numbers of the result; no more than a few kilobytes."""
    in_flight = snapshot.records[job].state in IN_FLIGHT
    row = board.shown.running_row(snapshot, job, {}) if in_flight else page_row(Job(snapshot, job))
    row["error"] = row["error"] and row["error"][:_LONG]
    entry = snapshot.entry(job)
    params = {} if entry is None else entry.params
    shown = dict.fromkeys([*(key for key in show if key in params), *itertools.islice(params, _PARAMS)])
    row["params"] = {key: _short(params[key]) for key in shown}
    by_name = board.results.by_name
    row["result"] = {name: of[job] for name, of in by_name.items() if job in of}
    return row


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_LONG]
    return value if isinstance(value, (int, float)) or value is None else msgspec.json.encode(value).decode()[:_LONG]


def values(board: Board, key: str | None, text: str) -> dict[str, Any]:
    """Values to choose from that contain the text, each with the filter that selects it and the number of its jobs."""
    _ = board.snapshot
    found = board.columns.matching(key, text)
    rows = [
        {
            "key": one.key,
            "value": text_of(one.value)[:_LONG],
            "where": f"{one.key}={literal(text_of(one.value))}",
            "of": one.jobs,
        }
        for one in found[:_VALUES]
    ]
    return {"values": rows, "total": len(found)}


def known(board: Board, job: str) -> str:
    """The job, if there is one of that name; otherwise the answer is 404."""
    records = board.snapshot.records
    if job not in records:
        near = [one for one in records if one[:3] == job[:3]][:200]
        raise RefusedError(404, f"unknown job {job!r}{nearest(job, near)}")
    return job


def one(board: Board, job: str) -> dict[str, Any]:
    """Everything about one job: record, attempts, parameters as run, provenance, needs, error."""
    snapshot = board.snapshot
    record = snapshot.records[job]
    ran = snapshot.last_ran(job)
    entry = snapshot.entry(job)
    attempts = board.reader.attempts(job)[-_ATTEMPTS:]
    for attempt in attempts:
        # Shown as text; the whole of it may have thousands of names.
        attempt["provenance"] = provenance_facts(board.layout, job, attempt["attempt"])
    why = reasons(snapshot).why(job).text if record.state in WAITING else None
    row = (
        board.shown.running_row(snapshot, job, gpu_uses(snapshot.pods))
        if record.state in IN_FLIGHT
        else page_row(Job(snapshot, job))
    )
    needs = [] if entry is None else list(entry.needs)[:MOST_JOBS]
    return {
        "job": job,
        "row": row,
        "record": record.fields(),
        "params": None if entry is None else {k: v for k, v in entry.document().items() if k not in ("job_id", OWNER)},
        "params_as": "ran" if ran is not None and entry is not None and last_counts(record) else "manifest",
        "params_unknown": is_unknown(record) and not last_counts(record),
        "changes": snapshot.differences(job),
        "attempts": attempts,
        "needs": [{"job": need, "state": _state(snapshot, need)} for need in needs],
        "result": _result(board, snapshot, job),
        "why": why,
        "error": record.error,
        "refused_edits": [refusal for refusal in snapshot.refusals if refusal.job == job],
    }


def _state(snapshot: Snapshot, job: str) -> str | None:
    return snapshot.records[job].state.value if job in snapshot.records else None


def _result(board: Board, snapshot: Snapshot, job: str) -> Any:
    attempt, data = board.reader.last_result(job, snapshot.records[job])
    return None if data is None else {"attempt": attempt, "values": parse_result(data)}


def attempt_of(board: Board, job: str, number: int | None) -> int:
    """The attempt that was asked for, else the last one; 404 when the job has not run."""
    last = board.snapshot.records[known(board, job)].attempt
    if number is None:
        if not last:
            raise RefusedError(404, f"{job} has not run yet: it has no attempt")
        return last
    if not 1 <= number <= max(last, 1):
        raise UsageError(f"{job} has no attempt {number}: the last one is {last}")
    return number
