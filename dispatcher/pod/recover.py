"""Attempts of dead dispatchers: any pod that has an attempt's outlet may record how it ended.

The outlet tells how an attempt ended. Whether its dispatcher is dead, and whether a record is that of an attempt at
all, does not depend on the outlet and is decided here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from dispatcher.base import files
from dispatcher.base.times import parse_time
from dispatcher.outlets.base import Ended, Key, Orphan, Outlet, Placement, Report
from dispatcher.outlets.kinds import DEFAULT
from dispatcher.pod import outcome
from dispatcher.pod.placements import differs, has_run, placement_of
from dispatcher.pod.unknown import UnknownAttempts
from dispatcher.run_state.external import Presence, presence
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import CLOCKS_DIFFER_S
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import AttemptPaths, Layout


class Found(msgspec.Struct, frozen=True):
    """What is news of an attempt of a dead dispatcher: it has ended, or where it runs is known now.

    `ended` has why (outcome.judge); None: it has not. `has_begun`: it runs, or has run. `last_seen_at` is the last sign
    of one whose end was not seen.
    """

    key: Key
    ended: Ended | None
    placement: Placement = Placement()
    has_begun: bool = False
    last_seen_at: str | None = None


class Recovery:
    """Finds out how attempts in flight are whose dispatcher is dead, and so cannot record it.

    `make_outlet` makes the outlet of an attempt that is in none of `outlets`; None where it cannot be made here.
    `outlet_of` is the name of the outlet that hears of an attempt, given the one in its record.
    """

    def __init__(
        self,
        layout: Layout,
        me: str,
        outlets: Mapping[str, Outlet],
        observer: Observer,
        make_outlet: Callable[[str], Outlet | None] = lambda _: None,
        outlet_of: Callable[[Key, str], str] = lambda _, outlet: outlet,
    ) -> None:
        self._layout = layout
        self._me = me
        # Those that were made for orphans join them.
        self._outlets = dict(outlets)
        self._make_outlet = make_outlet
        self._outlet_of = outlet_of
        self._observer = observer
        self._unknown = UnknownAttempts()
        # When those that were asked about last began, by the clocks of their pods' hosts.
        self._begun_at: dict[Key, str | None] = {}

    @property
    def asked(self) -> Collection[Key]:
        """The attempts of dead dispatchers that `find` has asked about."""
        return self._begun_at.keys()

    def find(self, running: Iterable[tuple[str, Record]], *, is_dry: bool = False) -> list[Found]:
        """Those of these attempts in flight, none this dispatcher's own, of which there is something to record.

        `is_dry`: nothing is stopped or superseded.
        """
        found: list[Found] = []
        self._begun_at = {}
        records: dict[Key, Record] = {}
        orphans: dict[str, list[Orphan]] = {name: [] for name in self._outlets}
        alive: dict[str, bool] = {}
        # Asked at every look, so that a restart of the file server is noticed before a free lock is believed.
        self._observer.free_locks_prove_nothing()
        for job, record in running:
            key, pod = Key(job, record.attempt), record.pod or ""
            if not record.external:
                if pod not in alive:
                    alive[pod] = pod != self._me and self._observer.pod_is_alive(pod)
                if alive[pod]:
                    continue
                if self._is_there(key):
                    name = self._outlet_of(key, record.outlet or DEFAULT)
                    orphans.setdefault(name, []).append(orphan_of(key, record))
                    records[key] = record
                    self._begun_at[key] = record.started_at
                    continue
            # No outlet can stop it: what a person asked for is carried out when its process is gone.
            if record.desired is not None and presence(record) is not Presence.HERE:
                found.append(self._judged(Found(key, Ended(None))))
        for name, group in orphans.items():
            # Attempts of an outlet that cannot be used here are left to other pods. Those that can are also told when
            # there are no orphans left to watch.
            outlet = self._outlet(name)
            if outlet is not None:
                reports: Mapping[Key, Report]
                if is_dry:
                    reports = {key: Report(status) for key, status in outlet.inspect(group).items()}
                else:
                    reports = outlet.recover(group)
                self._unknown.take_in(name, reports)
                found += [self._judged(news) for key, one in reports.items() if (news := _news(key, one, records[key]))]
        self._unknown.keep({orphan.key for group in orphans.values() for orphan in group})
        return found

    def notes(self) -> list[str]:
        """Which attempts of dead dispatchers are in a state that their outlets cannot tell, and why."""
        return self._unknown.notes()

    def _outlet(self, name: str) -> Outlet | None:
        outlet = self._outlets.get(name) or self._make_outlet(name)
        if outlet is not None:
            self._outlets[name] = outlet
        return outlet

    def _judged(self, found: Found) -> Found:
        """With why it ended, and the last sign of it where that is the only date of its end.

        Its log and its files are read here, outside of a transaction: no pod waits for a slow disk.
        """
        if found.ended is None:
            return found
        paths = self._layout.attempt(found.key.job_id, found.key.number)
        seen_at = None if found.ended.ended_at else last_sign(paths, self._begun_at.get(found.key))
        return msgspec.structs.replace(found, ended=outcome.judge(found.ended, paths), last_seen_at=seen_at)

    def _is_there(self, key: Key) -> bool:
        """Whether the attempt has a directory: a record that a person or a script wrote has none."""
        paths = self._layout.attempt(key.job_id, key.number)
        if self._observer.is_network:
            with contextlib.suppress(OSError):
                files.refresh_names(paths.directory.parent)
        return not files.is_missing(paths.directory)


def _news(key: Key, report: Report, record: Record) -> Found | None:
    """What a report has that the record does not."""
    ended = report.status if isinstance(report.status, Ended) else None
    placement = report.placement or Placement()
    has_begun = has_run(report.status, placement)
    is_news = ended is not None or (has_begun and record.state is State.SUBMITTED)
    return Found(key, ended, placement, has_begun) if is_news or differs(placement, record) else None


def orphan_of(key: Key, record: Record) -> Orphan:
    """An attempt whose dispatcher is dead, as its record has it."""
    is_unwanted = record.desired is not None
    force = record.rev if record.force else 0
    return Orphan(key=key, pod=record.pod or "", placement=placement_of(record), is_unwanted=is_unwanted, force=force)


def last_sign(paths: AttemptPaths, begun_at: str | None) -> str | None:
    """When an attempt last wrote one of its files, as a journal time; None when it has written none.

    The files tell how long it ran, by the clock of the file server; `begun_at`, by the clock of the attempt's host, is
    what that is counted from.
    """
    written = []
    for path in (paths.taken, paths.log, paths.progress, paths.checkpoint, paths.result, paths.run):
        with contextlib.suppress(OSError):
            written.append(os.stat(path).st_mtime)
    if not written:
        return None
    begun_s, ran_s = parse_time(begun_at), max(written) - min(written)
    is_one_clock = begun_s is None or abs(min(written) - begun_s) <= CLOCKS_DIFFER_S
    return now_text(max(written) if is_one_clock or begun_s is None else begun_s + ran_s)
