"""Carries out what people request: changes of records, pauses, notices, drains. changes.py decides what each does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dispatcher.base import files
from dispatcher.base.values import BadValueError, shown
from dispatcher.errors import DispatcherError, StateError, UsageError, nearest
from dispatcher.matrix.entry import READERS
from dispatcher.query import changes
from dispatcher.query.changes import Changes, Plan
from dispatcher.run_state.change import Change
from dispatcher.run_state.facets.notices import NoticesCleared
from dispatcher.run_state.facets.pauses import Paused, Unpaused
from dispatcher.run_state.facets.refusals import Cleared
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.states import IN_FLIGHT, Record, State
from dispatcher.run_state.store import Transaction
from dispatcher.workspace import Layout

Begin = Callable[[], AbstractContextManager[Transaction]]


def apply(layout: Layout, transaction: Begin, plan: Plan, *, force: bool) -> Changes:
    """Apply a plan to every job for which it is still possible."""
    outcome = Changes({}, {}, {}, tuple(plan.left_alone))
    copy, problem = _code_copy(layout, plan)
    killed_at = _killed_at(layout, (job for job, seen in plan.jobs.items() if force and seen.force))
    with transaction() as tx:
        for job, seen in plan.jobs.items():
            decision = changes.decide(plan.state, seen, tx.record(job), force=force)
            if decision.refused:
                outcome.refused[job] = decision.refused
            elif decision.event is None:
                record = tx.record(job)
                outcome.unchanged[job] = f"already {record.state if record else State.QUEUED}"
            elif problem and changes.takes_copy(plan, job, decision):
                outcome.refused[job] = problem
            else:
                has_copy = copy and changes.takes_copy(plan, job, decision)
                more = Change(snapshot=copy) if has_copy else Change()
                tx.change(job, decision.event, decision.change | more)
                outcome.changed[job] = changes.what_happened(decision.event, seen, killed_at.get(job))
    return outcome


def _killed_at(layout: Layout, jobs: Iterable[str]) -> dict[str, str]:
    """When the kill of each of these jobs was first requested; the journal has it."""
    from dispatcher.run_state import journal

    wanted = set(jobs)
    found: dict[str, str] = {}
    for line in journal.history(layout, wanted) if wanted else ():
        if line.job is not None and line.set.get("force"):
            found.setdefault(line.job, line.at)
        elif line.job is not None and line.set.get("attempt"):
            found.pop(line.job, None)
    return found


def _code_copy(layout: Layout, plan: Plan) -> tuple[str, str]:
    """The copy of the code for the jobs of the plan that are queued again, or why there can be none."""
    decisions = ((job, changes.decide(plan.state, seen, seen)) for job, seen in plan.jobs.items())
    if not any(changes.takes_copy(plan, job, decision) for job, decision in decisions):
        return "", ""
    from dispatcher.outlets.code import copies

    try:
        return copies.take(layout).label, ""
    except DispatcherError as error:
        return "", f"no copy of the code (snapshot): {error}"


def update_of(priority: int | None, time_limit: str | None) -> Change:
    """The change of a priority and a time limit. Raises UsageError for a value that cannot be used, and for none."""
    if priority is None and time_limit is None:
        raise UsageError("what is to change? --priority N or --time-limit TIME")
    given: dict[str, Any] = {"priority": priority, "time_limit": time_limit}
    for key, value in given.items():
        try:
            _ = value is None or READERS[key][1](value)
        except BadValueError as error:
            raise UsageError(f"{key} = {shown(value)}: {error}") from None
    return Change(**{key: value for key, value in given.items() if value is not None})


def apply_update(transaction: Begin, plan: Plan, asked: Change) -> Changes:
    """Change the priority or the time limit of the jobs of a plan."""
    outcome = Changes({}, {}, {}, tuple(plan.left_alone))
    with transaction() as tx:
        for job in plan.jobs:
            record = tx.record(job)
            decision = changes.decide_update(asked, record)
            words = changes.what_changed(asked, record)
            if decision.event is None:
                outcome.unchanged[job] = f"already {words}"
            else:
                tx.change(job, decision.event, decision.change)
                outcome.changed[job] = words
    return outcome


def delete(tx: Transaction, jobs: Iterable[str]) -> list[str]:
    """Delete the records of these jobs; those that had one. Raises StateError where one is in flight."""
    known = {job: record for job in jobs if (record := tx.record(job)) is not None}
    refuse_in_flight(known)
    for job in known:
        tx.delete(job)
    return list(known)


def refuse_in_flight(records: Mapping[str, Record]) -> None:
    """Raise StateError if one of the jobs is submitted or running: its record cannot be deleted."""
    busy = [job for job, record in records.items() if record.state in IN_FLIGHT]
    external = [job for job in busy if records[job].external]
    if external:
        raise StateError(
            f"{', '.join(external[:3])}: running externally; when it has ended, record how first "
            f"(`dispatcher mark failed {external[0]}`)"
        )
    if busy:
        raise StateError(f"{', '.join(busy[:3])}: running; cancel it first (`dispatcher cancel {busy[0]}`)")


def pause(tx: Transaction, fold: Fold, scope: str, why: str, values: dict[str, str | None]) -> None:
    """Raises UsageError when the scope is paused already."""
    paused = fold.pauses.get(scope)
    if paused is not None:
        raise UsageError(f"{scope} is already paused: {paused.why}")
    tx.note(Paused(scope=scope, why=why, values=values))


def unpause(tx: Transaction, fold: Fold, scope: str) -> None:
    """Raises UsageError when the scope is not paused."""
    pauses = fold.pauses
    if scope not in pauses:
        raise UsageError(f"{scope} is not paused" + (nearest(scope, pauses) if pauses else "; nothing is"))
    tx.note(Unpaused(scope=scope))


def clear_refused(tx: Transaction, fold: Fold, wanted: Sequence[str]) -> list[str]:
    """Clear refused hand edits of these jobs, none: of all; the jobs. Raises UsageError for one without."""
    known = fold.refusals
    for job in wanted:
        if job not in known:
            raise UsageError(f"{job} has no refused hand edit" + (nearest(job, known) if known else ""))
    cleared = list(wanted or known)
    for job in cleared:
        tx.note(Cleared(), job=job or None)
    return cleared


def clear_notices(tx: Transaction, fold: Fold, now_s: float) -> list[int]:
    """Dismiss the notices that want attention; their numbers."""
    from dispatcher.query.notices import as_known

    numbers = [notice.number for notice in as_known(fold.notices, now_s) if notice.wants_attention]
    if numbers:
        tx.note(NoticesCleared(notices=tuple(numbers)))
    return numbers


def drain(layout: Layout, pod: str, by: str) -> None:
    """Raises UsageError when there is no such pod."""
    path = _drain_file(layout, pod)
    with files.shared_umask(layout.root), files.storing("asking the pod to drain with", path):
        files.replace_file(path, f"{by}\n".encode(), durable=False)


def undrain(layout: Layout, pod: str) -> None:
    """Raises UsageError when there is no such pod."""
    path = _drain_file(layout, pod)
    with files.storing("letting the pod claim again by removing", path):
        path.unlink(missing_ok=True)


def _drain_file(layout: Layout, pod: str) -> Path:
    from dispatcher.run_state import liveness

    known = liveness.pod_names(layout)
    if pod not in known:
        raise UsageError(f"there is no pod {pod!r}" + (nearest(pod, known) if known else ": no pod has run here"))
    return layout.pod_drain(pod)
