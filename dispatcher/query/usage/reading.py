"""Reads the account of a window from the journal and a snapshot."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Collection, Mapping, Sequence

from dispatcher.base import files
from dispatcher.base.times import Clock, days_between
from dispatcher.config import Config
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import OWNER
from dispatcher.matrix.manifest import job_ids
from dispatcher.matrix.submitted import SubmittedJobs
from dispatcher.query.selection import check_keys, owners, select
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.usage.ends import find_ends
from dispatcher.query.usage.history import Attempt, History
from dispatcher.query.usage.ledger import DAY, OF_SLOTS, Ledger, Usage
from dispatcher.query.usage.pools import Eligibility, stays_of
from dispatcher.query.usage.sweep import Window
from dispatcher.query.values import check_users
from dispatcher.run_state import journal


def read_usage(
    config: Config,
    snapshot: Snapshot,
    between_s: tuple[float, float | None],
    keys: Sequence[str],
    where: Where,
    *,
    utc: bool,
) -> Usage:
    """The account of the time between two moments by `keys`, of all jobs or of those that match `where`.

    The second moment None: now. Days are those of local time, with `utc` those of UTC.
    Raises UsageError for a key that neither pods nor jobs have.
    """
    since_s, until_s = between_s[0], min(snapshot.now_s, between_s[1] or snapshot.now_s)
    days = days_between(since_s, until_s, Clock(snapshot.now_s, utc)) if DAY in keys else ()
    window = Window(since_s, until_s, tuple(days))
    check_keys(snapshot, [key for key in keys if key not in OF_SLOTS], OF_SLOTS)
    kinds = dict(zip(snapshot.records, snapshot.kinds(snapshot.records), strict=True))
    history = History(_needs(snapshot, kinds))
    history.read(journal.history(config.layout))
    history.finish()
    find_ends(config.layout, history, {pod.info.pod for pod in snapshot.pods if pod.is_alive})
    stays = stays_of(history, snapshot.pods, snapshot.now_s)
    lists = _Lists(config, snapshot)
    eligibility = Eligibility(stays, snapshot.entries.get, snapshot.request_of, lists, history.pauses)
    counts = _Counting(snapshot, history, where) if where else None
    usage = Ledger(window, keys, _Values(snapshot, kinds), counts).usage(history, stays, eligibility, kinds)
    if history.is_cut and history.first_s is not None and history.first_s > window.since_s:
        usage.accounted_since_s = history.first_s
    return usage


class _Counting:
    """Whether an attempt is one of the jobs that are asked for; whose it is, is asked of the attempt itself.

    Raises UsageError for a key that no job has, and for an unknown user.
    """

    def __init__(self, snapshot: Snapshot, history: History, where: Where) -> None:
        of_users = [condition.key == OWNER for condition in where.conditions]
        self._users = Where(tuple(itertools.compress(where.conditions, of_users)))
        self._others = Where(tuple(itertools.compress(where.conditions, map(operator.not_, of_users))))
        known = {attempt.user for attempt in history.attempts} | set(history.owners.values())
        check_users(self._users, lambda: {user for user in known if user is not None} | owners(snapshot))
        self._chosen = set(select(snapshot, where=self._others)) if self._others else None

    def __call__(self, attempt: Attempt, user: object) -> bool:
        is_chosen = self._chosen is None or attempt.job in self._chosen
        return is_chosen and self._users.holds(lambda _: user)


class _Lists:
    """The jobs of a pod that was started with a manifest (empty: the default one); None: all there are.

    A line of submitted.jsonl counts for a job whose record says that it was submitted so, and for every pod.
    """

    def __init__(self, config: Config, snapshot: Snapshot) -> None:
        self._config = config
        self._records = snapshot.records

    def __call__(self, matrix: str) -> Collection[str] | None:
        layout, default = self._config.layout, self._config.matrix
        if not matrix and set(layout.manifests()) <= {default}:
            return None
        found = set(self._submitted)
        with contextlib.suppress(OSError):
            found |= set(job_ids(files.read_plain(layout.root / (matrix or default))))
        return found

    @functools.cached_property
    def _submitted(self) -> frozenset[str]:
        submitted = SubmittedJobs(self._config.layout.submitted_manifest)
        submitted.read()
        records = self._records
        return frozenset(job for job in submitted.entries if job in records and records[job].ad_hoc)


def _needs(snapshot: Snapshot, kinds: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """What each job needs; a job of a kind needs nothing (see matrix/entries.py)."""
    found = {}
    for job, kind in kinds.items():
        entry = None if kind else snapshot.entries.get(job)
        if entry is not None and entry.needs:
            found[job] = tuple(entry.needs)
    return found


class _Values:
    """The values of jobs, as their last attempts ran with them; of a job that was deleted, as this attempt did.

    Of most jobs that is the manifest's entry, and of all of a kind the method is the same: so few files are opened, and
    few entries unpacked.
    """

    def __init__(self, snapshot: Snapshot, kinds: Mapping[str, int]) -> None:
        self._snapshot = snapshot
        self._kinds = kinds
        self._changed = frozenset(snapshot.changed)
        self._methods: dict[int, object] = {}
        self._known: dict[tuple[str, str], object] = {}

    def __call__(self, attempt: Attempt, key: str) -> object:
        job = attempt.job
        if key == "job_id":
            return job
        kind = self._kinds.get(job, 0) if key == "method" and job not in self._changed else 0
        if kind:
            if kind not in self._methods:
                self._methods[kind] = self._find(attempt, key)
            return self._methods[kind]
        if (job, key) not in self._known:
            self._known[job, key] = self._find(attempt, key)
        return self._known[job, key]

    def _find(self, attempt: Attempt, key: str) -> object:
        snapshot, job = self._snapshot, attempt.job
        listed = snapshot.entries.get(job)
        if listed is not None and job not in self._changed and (value := listed.value(key)) is not None:
            return value
        if job in snapshot.records or listed is not None:
            return snapshot.value(job, key)
        ran = None if snapshot.ran is None else snapshot.ran.attempt(job, attempt.number)
        return None if ran is None else ran.value(key)
