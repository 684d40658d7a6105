"""Refused hand edits: which are still of interest, and their messages. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dispatcher.base.times import parse_time
from dispatcher.run_state.facets.refusals import Refusal
from dispatcher.run_state.states import ENDED, MARKABLE, PUT_ASIDE, Record, State, parse_state

_AT_REST: Final = ENDED | PUT_ASIDE


def open_refusals(refusals: Iterable[Refusal], records: Mapping[str, Record]) -> tuple[Refusal, ...]:
    """Those that are not settled by what has become of their jobs since."""
    return tuple(one for one in refusals if not is_settled(one, records.get(one.job)))


def is_settled(refusal: Refusal, record: Record | None) -> bool:
    """Whether the job has ended since the edit was refused, and that has left nothing of what the edit asked for.

    Not settled: a line without a valid state, `done` or `failed` where the job ended otherwise, and `queued` where no
    attempt has begun since.
    """
    refused_s = parse_time(refusal.at)
    if record is None or refused_s is None or record.state not in _AT_REST:
        return False
    ended_s = parse_time(record.finished_at)
    wanted = _wanted(refusal.line)
    # Ends that people and other programs write have whole seconds: one in the second of the edit counts as later.
    is_exact = "." in (record.finished_at or "")
    if ended_s is None or ended_s < (refused_s if is_exact else int(refused_s)) or wanted is None:
        return False
    if wanted is State.QUEUED:
        started_s = parse_time(record.started_at)
        return started_s is not None and started_s >= refused_s
    return wanted is record.state or wanted not in MARKABLE


def refusal_text(refusal: Refusal, clock: Callable[[str | None], str]) -> str:
    """What was refused, when, why, and what to do; `clock` writes the time."""
    job = refusal.job
    where = f"hand edit of {job} refused" if job else "hand edit refused"
    when = f" at {clock(refusal.at)}" if refusal.at else ""
    wrote = f" (written: {refusal.line})" if refusal.line else ""
    clear = f"`dispatcher edit --clear-refused {job}`" if job else "`dispatcher edit --clear-refused`"
    return f"{where}{when}: {refusal.why}{wrote}. Edit it again, or clear this with {clear}"


def _wanted(line: str) -> State | None:
    """The state in a line as it was written; None where it has none that is known."""
    try:
        (fields,) = json.loads("{" + line + "}").values()
        return parse_state(fields["state"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
