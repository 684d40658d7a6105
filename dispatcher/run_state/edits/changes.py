"""What a person has changed in a saved status file: the entry point of hand edits. Pure.

One mistake is one refusal: a renamed job is not two refusals (an unknown job, a missing line), and a copy that is older
than the journal is not ten thousand.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.run_state.edits.line import Edit, Fault, Recorded, compare, refuse
from dispatcher.run_state.facets.refusals import Refusal

# More refusals for one reason than this are one.
_MANY: Final = 20
# The nearest id is searched among so many that begin and end alike.
_CANDIDATES: Final = 50
_TOO_OLD: Final = "the line is older than the journal (rev {}): edit it as it is now"
_ADD: Final = "add it to the manifest, then a dispatcher queues it and writes its line"
_DELETE: Final = "`dispatcher delete JOB` removes one, `abandoned` stops it from being claimed"


class Changes(msgspec.Struct, frozen=True):
    """What becomes of a saved file: each edit changes the record of its job, and the rest is refused."""

    edits: list[Edit] = []
    refusals: list[Refusal] = []

    def __bool__(self) -> bool:
        return bool(self.edits or self.refusals)

    def __add__(self, other: Changes) -> Changes:
        return Changes(self.edits + other.edits, self.refusals + other.refusals)


def changes(old: Recorded, new: Mapping[str, Mapping[str, Any]], *, is_whole: bool = True) -> Changes:
    """What a saved status file changes. `is_whole`: a job without a line in it has lost its line."""
    found = {job: compare(job, line, old) for job, line in new.items()}
    edits = [one for one in found.values() if isinstance(one, Edit)]
    refusals = [one for one in found.values() if isinstance(one, Refusal)]
    removed = _removed(new, old) if is_whole else []
    whole = []
    too_old = [job for job, one in found.items() if one is Fault.TOO_OLD]
    if len(too_old) > _MANY:
        whole.append(
            f"{len(too_old)} lines are older than the journal, so it is not known what was changed in them "
            f"({_some(too_old)}): open matrix_status.json as it is now and edit that"
        )
    else:
        refusals += [refuse(job, new[job], _TOO_OLD.format(new[job]["rev"])) for job in too_old]
    unknown = [job for job, one in found.items() if one is Fault.UNKNOWN_JOB]
    if len(unknown) > _MANY:
        whole.append(
            f"{len(unknown)} lines are of unknown jobs ({_some(unknown)}): no manifest has them; "
            "add them to the manifest, then a dispatcher queues them and writes their lines"
        )
    else:
        renamed = [_unknown(job, new[job], removed, old) for job in unknown]
        refusals += renamed
        owners = {one.job for one in renamed}
        removed = [job for job in removed if job not in owners]
    if len(removed) > _MANY or (removed and len(removed) == len(old.records)):
        whole.append(f"{len(removed)} lines were removed ({_some(removed)}); records are never lost: {_DELETE}")
    else:
        why = f"the line was removed; records are never lost: {_DELETE}"
        refusals += [Refusal(job, "", why) for job in removed]
    if whole:
        refusals.append(Refusal("", "", ". ".join(whole)))
    return Changes(edits, refusals)


def _removed(lines: Mapping[str, Mapping[str, Any]], old: Recorded) -> list[str]:
    """The jobs whose lines were removed. A copy that is older than a job cannot have its line."""
    revs = [rev for line in lines.values() if type(rev := line.get("rev")) is int]
    newest = max(revs, default=0)
    return [job for job in old.records if job not in lines and (old.born(job) or 0) <= newest]


def _some(jobs: Sequence[str]) -> str:
    return ", ".join(jobs[:3]) + ", ..."


def _unknown(job: str, line: Mapping[str, Any], removed: Collection[str], old: Recorded) -> Refusal:
    """The refusal of a line whose job is in no manifest: it was renamed if another job has lost its line."""
    rev = line.get("rev", 0)
    owner = next((one for one in removed if _has_had(one, rev, old)), "") or _nearest(job, removed)
    if owner:
        why = (
            f"unknown job {job!r}: the line was that of {owner}, and a job cannot be renamed here. Its record "
            f"stays under {owner}; with a new id in a manifest it is a new job"
        )
        return msgspec.structs.replace(refuse(job, line, why), job=owner)
    near = _nearest(job, old.records)
    meant = f" (did you mean {near!r}?)" if near else ""
    return refuse(job, line, f"unknown job: no manifest has it{meant}; {_ADD}")


def _has_had(job: str, rev: int, old: Recorded) -> bool:
    """Whether `rev` is the number of a change of this job."""
    return old.records[job].rev == rev or (0 < rev <= old.seq and old.base_of(job, rev) is not None)


def _nearest(job: str, ids: Collection[str]) -> str:
    """The id that is most like `job`, empty when none is; compares only those that begin and end alike."""

    def alike(other: str) -> int:
        return _alike(job, other) + _alike(job[::-1], other[::-1])

    candidates = heapq.nlargest(_CANDIDATES, ids, key=alike) if len(ids) > _CANDIDATES else list(ids)
    return next(iter(difflib.get_close_matches(job, candidates, n=1)), "")


def _alike(one: str, other: str) -> int:
    """The length of the common prefix."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
