"""A whole status file that a person saved: what its lines change, and which are refused together. Pure.

One mistake is one refusal: a renamed job is not two refusals (an unknown job, a missing line), and a copy that is older
than the journal is not ten thousand.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from dispatcher.run_state.edits import Fault, MergeContext, Outcome, merge_line
from dispatcher.run_state.events import Event

# More refusals for one reason than this are one.
_MANY: Final = 20
# The nearest id is searched among so many that begin and end alike.
_CANDIDATES: Final = 50
_ADD: Final = "add it to the manifest, then a dispatcher queues it and writes its line"
_DELETE: Final = "`dispatcher delete JOB` removes one, `abandoned` stops it from being claimed"


def merge(lines: Mapping[str, Mapping[str, Any]], context: MergeContext, *, is_whole: bool = True) -> list[Outcome]:
    """What a saved status file changes. `is_whole`: a job without a line in it has lost its line."""
    outcomes = [outcome for job, line in lines.items() if (outcome := merge_line(job, line, context)) is not None]
    removed = _removed(lines, context) if is_whole else []
    unknown = [outcome for outcome in outcomes if outcome.fault is Fault.UNKNOWN_JOB]
    too_old = [outcome for outcome in outcomes if outcome.fault is Fault.TOO_OLD]
    whole = []
    if len(too_old) > _MANY:
        whole.append(_all_too_old(too_old))
        outcomes = [outcome for outcome in outcomes if outcome.fault is not Fault.TOO_OLD]
    if unknown:
        outcomes = [outcome for outcome in outcomes if outcome.fault is not Fault.UNKNOWN_JOB]
        if len(unknown) > _MANY:
            whole.append(
                f"{len(unknown)} lines are of unknown jobs ({_some(unknown)}): no manifest has them; "
                "add them to the manifest, then a dispatcher queues them and writes their lines"
            )
        else:
            refused = [_unknown(outcome, lines, removed, context) for outcome in unknown]
            outcomes += refused
            removed = [job for job in removed if job not in {outcome.job for outcome in refused}]
    if len(removed) > _MANY or (removed and len(removed) == len(context.records)):
        shown = ", ".join(removed[:3])
        whole.append(f"{len(removed)} lines were removed ({shown}, ...); records are never lost: {_DELETE}")
    else:
        why = f"the line was removed; records are never lost: {_DELETE}"
        outcomes += [Outcome(job, Event.REFUSED, why=why) for job in removed]
    return [*outcomes, *([Outcome("", Event.REFUSED, why=". ".join(whole))] if whole else [])]


def _removed(lines: Mapping[str, Mapping[str, Any]], context: MergeContext) -> list[str]:
    """The jobs whose lines were removed. A copy that is older than a job cannot have its line."""
    revs = [rev for line in lines.values() if type(rev := line.get("rev")) is int]
    newest = max(revs, default=0)
    return [job for job in context.records if job not in lines and (context.born(job) or 0) <= newest]


def _all_too_old(refused: Sequence[Outcome]) -> str:
    return (
        f"{len(refused)} lines are older than the journal, so it is not known what was changed in them "
        f"({_some(refused)}): open matrix_status.json as it is now and edit that"
    )


def _some(refused: Sequence[Outcome]) -> str:
    return ", ".join(outcome.job for outcome in refused[:3]) + ", ..."


def _unknown(
    outcome: Outcome, lines: Mapping[str, Mapping[str, Any]], removed: Collection[str], context: MergeContext
) -> Outcome:
    """The refusal of a line whose job is in no manifest: it was renamed if another job has lost its line."""
    rev = lines[outcome.job].get("rev", 0)
    owner = next((job for job in removed if _has_had(job, rev, context)), "") or _nearest(outcome.job, removed)
    if owner:
        why = (
            f"unknown job {outcome.job!r}: the line was that of {owner}, and a job cannot be renamed here. Its record "
            f"stays under {owner}; with a new id in a manifest it is a new job"
        )
        return Outcome(owner, Event.REFUSED, why=why, line=outcome.line)
    near = _nearest(outcome.job, context.records)
    meant = f" (did you mean {near!r}?)" if near else ""
    return Outcome(outcome.job, Event.REFUSED, why=f"unknown job: no manifest has it{meant}; {_ADD}", line=outcome.line)


def _has_had(job: str, rev: int, context: MergeContext) -> bool:
    """Whether `rev` is the number of a change of this job."""
    return context.records[job].rev == rev or (0 < rev <= context.seq and context.base_of(job, rev) is not None)


def _nearest(job: str, ids: Collection[str]) -> str:
    """The id that is most like `job`, empty when none is; compares only those that begin and end alike."""

    def alike(other: str) -> int:
        return _alike(job, other) + _alike(job[::-1], other[::-1])

    candidates = heapq.nlargest(_CANDIDATES, ids, key=alike) if len(ids) > _CANDIDATES else list(ids)
    return next(iter(difflib.get_close_matches(job, candidates, n=1)), "")


def _alike(one: str, other: str) -> int:
    """The length of the common prefix."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
