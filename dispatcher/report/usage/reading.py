"""Reads the account of a window from the journal and a snapshot."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence

from dispatcher.config import Config
from dispatcher.matrix.condition import Where
from dispatcher.matrix.manifest import job_ids
from dispatcher.matrix.submitted import SubmittedJobs
from dispatcher.report.selection import check_keys, select
from dispatcher.report.snapshot import Snapshot
from dispatcher.report.usage.history import Attempt, History
from dispatcher.report.usage.ledger import OF_PODS, Ledger, Usage
from dispatcher.report.usage.pools import Eligibility, stays_of
from dispatcher.report.usage.sweep import Window
from dispatcher.run_state import journal


def read_usage(
    config: Config,
    snapshot: Snapshot,
    window: Window,
    keys: Sequence[str],
    where: Where,
) -> Usage:
    """The account of a window by `keys`, of all jobs or of those that match `where`.

    Raises UsageError for a key that neither pods nor jobs have.
    """
    check_keys(snapshot, [key for key in keys if key not in OF_PODS])
    chosen = set(select(snapshot, where=where)) if where else None
    kinds = dict(zip(snapshot.records, snapshot.kinds(snapshot.records), strict=True))
    history = History(_needs(snapshot, kinds))
    history.read(journal.history(config.layout))
    history.finish()
    stays = stays_of(history, snapshot.pods, snapshot.now_s)
    eligibility = Eligibility(stays, snapshot.entries.get, snapshot.request_of, functools.partial(_listed, config))
    counts = None if chosen is None else chosen.__contains__
    usage = Ledger(window, keys, _values(snapshot), counts).usage(history, stays, eligibility, kinds)
    if history.is_cut and history.first_s is not None and history.first_s > window.since_s:
        usage.accounted_since_s = history.first_s
    return usage


def _listed(config: Config, matrix: str) -> Collection[str] | None:
    """The jobs of a pod that was started with this manifest (empty: the default one); None: all there are."""
    layout, default = config.layout, config.matrix
    if not matrix and set(layout.manifests()) <= {default}:
        return None
    submitted = SubmittedJobs(layout.submitted_manifest)
    submitted.read()
    found = set(submitted.entries)
    with contextlib.suppress(OSError):
        found |= set(job_ids((layout.root / (matrix or default)).read_bytes()))
    return found


def _needs(snapshot: Snapshot, kinds: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """What each job needs; a job of a kind needs nothing (see matrix/entries.py)."""
    found = {}
    for job, kind in kinds.items():
        entry = None if kind else snapshot.entries.get(job)
        if entry is not None and entry.needs:
            found[job] = tuple(entry.needs)
    return found


def _values(snapshot: Snapshot) -> Callable[[Attempt, str], object]:
    """Values of jobs; each is looked up once, and of a job that was deleted in its attempt's directory."""
    known: dict[tuple[str, str], object] = {}

    def value(attempt: Attempt, key: str) -> object:
        place = attempt.job, key
        if place not in known:
            known[place] = snapshot.value(attempt.job, key)
            if known[place] is None and snapshot.entry(attempt.job) is None and snapshot.ran is not None:
                ran = snapshot.ran.attempt(attempt.job, attempt.number)
                known[place] = attempt.job if key == "job_id" else None if ran is None else ran.value(key)
        return known[place]

    return value
