"""The records as the next transaction will find them: with hand edits, or from a status file alone. Read-only."""

from __future__ import annotations

from typing import Final

import msgspec

from dispatcher.base import files
from dispatcher.errors import StatusFileError
from dispatcher.run_state.edits import status_file
from dispatcher.run_state.edits.adopting import adopt
from dispatcher.run_state.edits.changes import Changes
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
    found = _pending(store)
    for _ in range(_TRIES):
        seq = store.seq
        if not found:
            break
        store.refresh(to_the_end=True, for_display=True)
        if store.seq == seq:
            break
        found = _pending(store)
    records = store.records.copy() if found else store.records
    for edit in found.edits:
        old = records.get(edit.job)
        records.put(edit.job, apply(old, edit.fields(), old.rev if old else 0), records.born(edit.job) or 0)
    changed = tuple(edit.job for edit in found.edits)
    refused = tuple(one for one in found.refusals if store.fold.refusals.unrecorded(one) is not None)
    # Without a journal there is only the status file, and nothing in it is an edit.
    has_journal = store.generation is not None
    return Preview(records, changed if has_journal else (), () if has_journal else changed, refused)


def _pending(store: Store) -> Changes:
    if store.generation is not None:
        return store.pending_edits()
    path = store.layout.status_file
    data = files.read_fresh(path)
    store.problem = None
    if data is None:
        return Changes()
    try:
        lines = status_file.parse(data, str(path))
        store.first.refuse_unrelated(lines, str(path))
        return adopt(lines)
    except StatusFileError as error:
        store.problem = f"{error}. Correct it: there is no journal yet, so these jobs are recorded nowhere else"
        return Changes()
