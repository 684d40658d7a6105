"""The records as the next transaction will find them: with hand edits, or from a status file alone. Read-only."""

from __future__ import annotations

from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.errors import StatusFileError
from dispatcher.run_state import edits, status_file
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.refusals import Refusal
from dispatcher.run_state.records import Records
from dispatcher.run_state.states import apply
from dispatcher.run_state.store import Store

# A dispatcher that replaces the status file between two reads looks like a hand edit until both are read again.
_TRIES: Final = 3


class Preview(msgspec.Struct, frozen=True):
    """`records` are those of the store where nothing was edited, and change with them.

    `edited` are jobs with hand edits that were not applied yet, `adopted` those that only the status file has.
    `refused` are the edits that will be refused.
    """

    records: Records
    edited: tuple[str, ...] = ()
    adopted: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


def preview(store: Store) -> Preview:
    """Read everything and change nothing; `store.problem` says what is wrong with the status file."""
    store.refresh(to_the_end=True, for_display=True)
    outcomes = _pending(store)
    for _ in range(_TRIES):
        seq = store.seq
        if not outcomes:
            break
        store.refresh(to_the_end=True, for_display=True)
        if store.seq == seq:
            break
        outcomes = _pending(store)
    records = store.records.copy() if outcomes else store.records
    changed, refused = [], []
    for outcome in outcomes:
        if outcome.event is Event.REFUSED:
            known = store.fold.refusals.get(outcome.job)
            if known is None or (known.line, known.why) != (outcome.line[:2000], outcome.why):
                refused.append(Refusal(outcome.job, outcome.line, outcome.why, ""))
        else:
            old = records.get(outcome.job)
            record = apply(old, outcome.fields(), old.rev if old else 0)
            records.put(outcome.job, record, records.born(outcome.job) or 0)
            changed.append(outcome.job)
    # Without a journal there is only the status file, and nothing in it is an edit.
    has_journal = store.generation is not None
    return Preview(
        records,
        edited=tuple(changed) if has_journal else (),
        adopted=() if has_journal else tuple(changed),
        refused=tuple(refused),
    )


def _pending(store: Store) -> list[edits.Outcome]:
    if store.generation is not None:
        return store.pending_edits()
    path = store.layout.status_file
    data = files.read_fresh(path)
    store.problem = None
    if data is None:
        return []
    try:
        lines = status_file.parse(data, str(path))
        store.refuse_unrelated(lines, str(path))
        return edits.adopt(lines)
    except StatusFileError as error:
        store.problem = f"{error}. Correct it: there is no journal yet, so these jobs are recorded nowhere else"
        return []
