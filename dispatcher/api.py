"""The Python API: read and change a workspace, as the commands do.

    from dispatcher import Workspace

    workspace = Workspace("/shared/lab")
    for row in workspace.results():
        print(row["lang"], row["test_bpc"])
    workspace.requeue("fft_*", where={"reason": "out of memory"})

Methods that only read take no lock and write nothing. Methods that change something take the claims lock for a moment
and update the status file before they return.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dispatcher.base.users import owner_by, user_at_host
from dispatcher.base.values import text_of
from dispatcher.config import Config, load_config, load_readable
from dispatcher.errors import ConfigError, StorageError, UsageError
from dispatcher.matrix import condition
from dispatcher.query.overview import Overview, overview
from dispatcher.query.selection import parse_states, select
from dispatcher.query.snapshot import PodStatus, Snapshot
from dispatcher.query.snapshot_reader import SnapshotReader
from dispatcher.query.waiting import queue
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.states import MARKABLE, Record, State
from dispatcher.run_state.store import Store, Transaction
from dispatcher.workspace import Layout, find_workspace, usable_layout

if TYPE_CHECKING:
    from pathlib import Path

    from dispatcher.cleaning.plan import RemovalPlan
    from dispatcher.matrix.entry import Entry
    from dispatcher.matrix.manifest import Manifest
    from dispatcher.notify.process import Outcome
    from dispatcher.query.changes import Changes, Plan
    from dispatcher.query.metrics import Metrics
    from dispatcher.query.results.rows import Results
    from dispatcher.query.usage.ledger import Usage
    from dispatcher.run_state.journal import Line

# `{"lang": "spa*", "seed": 42}`, or as after --where: `["lang=spa*", "seed!=42"]`. All conditions must hold.
Where = Mapping[str, object] | Sequence[str] | condition.Where
# The users whose jobs are meant, as after --user: `"ada"`, `"ada,bob"`, `["ada", "bob"]`; none: all jobs.
Users = str | Iterable[str]


class Workspace:
    """The workspace at `root` (default: `$DISPATCHER_ROOT`, else the nearest from the current directory upwards).

    Changes are recorded under the name `by` (default: `user@host`). Any method may raise ConfigError (a faulty
    dispatcher.yaml), UsageError (not a workspace, an unknown job), StateError (the run state cannot be read) and
    StorageError. Methods that change something may also raise LockError; then nothing was changed.

    Methods that take `names` accept job ids and globs such as `fft_*`. `where` and `user` are filters, as `--where` and
    `--user`; all of them must hold.

    `warn` gets a message about a change that is recorded, but that the status file cannot show yet, as on a full disk;
    without it, that is a StorageError. It also gets the faults in dispatcher.yaml from methods that do not depend on
    them; without it, these raise ConfigError, too.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        by: str | None = None,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        self.root = (usable_layout(root) if root else find_workspace()).root
        self._by = by
        self._warn = warn

    @functools.cached_property
    def config(self) -> Config:
        """The settings of dispatcher.yaml."""
        return load_config(Layout(self.root))

    @functools.cached_property
    def readable_config(self) -> Config:
        """As `config`, for what goes on with a faulty dispatcher.yaml: `warn` gets the faults."""
        return self.config if self._warn is None else load_readable(Layout(self.root), None, self._warn)

    @property
    def layout(self) -> Layout:
        """The paths of all files."""
        return self.readable_config.layout

    @functools.cached_property
    def store(self) -> Store:
        """The run state, for operations that have no method here."""
        config = self.readable_config
        return Store(
            config.layout,
            by=self._by or user_at_host(),
            lock=config.lock,
            lost_after_s=config.lost_after_s,
            manifests=(config.matrix,),
            manifest_jobs=ManifestJobs(config).ids,
        )

    @functools.cached_property
    def _reader(self) -> SnapshotReader:
        return SnapshotReader(self.layout, self.readable_config, self.store)

    def snapshot(self) -> Snapshot:
        """The state of everything at this moment: records, entries, progress, pauses, refused edits, pods.

        Hand edits that no dispatcher has read yet are included; `Snapshot.edited` names their jobs.
        """
        return self._reader.read()

    def records(self) -> dict[str, Record]:
        """The record of every job by job id. A job that only the manifest has is queued, with `rev` 0."""
        return dict(self.snapshot().records)

    def entries(self) -> dict[str, Entry]:
        """The entry of every job by job id: of the default manifest, then of others for jobs that it does not have."""
        return dict(self.snapshot().entries)

    def status(self, *, states: Iterable[str] = (), where: Where = (), user: Users = ()) -> Overview:
        """Counts by state, running and failed jobs, and why the others wait. Durations are in seconds."""
        unfiltered = self.snapshot()
        jobs = select(unfiltered, (), parse_states(states), _parsed(where, user))
        return overview(unfiltered.only({job: unfiltered.records[job] for job in jobs}), unfiltered)

    def queue(self) -> list[tuple[str, str]]:
        """The queued jobs in the order in which they are claimed, each with the reason why it waits."""
        return queue(self.snapshot())

    def results(
        self, *, states: Iterable[str] = (), where: Where = (), user: Users = (), every_job: bool = False
    ) -> Results:
        """One row per job that has succeeded: `result.json` of its last such attempt and the parameters it ran with.

        The list has `to_pandas()` and `to_polars()`. A row has `job_id`, `state`, `method`, the parameters, `attempt`,
        `started_at` and `finished_at` (UTC), and the result's keys. A parameter whose result has the same name and
        another value is `parameter.NAME`. Jobs that wrote no result, and jobs that have failed, have no row; with
        `every_job` they have one without results.

        `Results` also says of which jobs it is unsure (their rows have the parameters of the current manifest, because
        their attempt has no `entry.json`), which have failed although they wrote a result, and which results cannot be
        read.
        """
        return self._reader.results(self._chosen((), states, where, user), every_job=every_job)

    def metrics(
        self,
        jobs: str | Iterable[str] = (),
        *,
        names: str | Iterable[str] = (),
        states: Iterable[str] = (),
        where: Where = (),
        user: Users = (),
    ) -> Metrics:
        """The metrics of jobs (`metrics.jsonl`, or the file that their method names), one series per job and metric.

        The list has `to_pandas()` and `to_polars()`: long frames with a row per value. `jobs` are ids and globs (none:
        all), `names` are metrics or globs of them. Of attempts that recorded the same step the last one counts; what an
        earlier one recorded beyond the step from which a later one resumed is left out. NaN and infinities are kept.
        `Metrics.faults()` says what was left out. Raises UsageError for unknown names.
        """
        from dispatcher.query.metrics import read_metrics

        chosen = self._chosen(_listed(jobs), states, where, user)
        attempts = {job: record.attempt for job, record in chosen.records.items()}
        return read_metrics(self.layout, attempts, _listed(names))

    def _chosen(self, names: Sequence[str], states: Iterable[str], where: Where, user: Users) -> Snapshot:
        """A snapshot with only these jobs."""
        snapshot = self.snapshot()
        jobs = select(snapshot, names, parse_states(states), _parsed(where, user))
        return snapshot.only({job: snapshot.records[job] for job in jobs})

    def usage(
        self,
        *,
        by: Sequence[str] = (),
        since_s: float,
        until_s: float | None = None,
        where: Where = (),
        user: Users = (),
        utc: bool = False,
    ) -> Usage:
        """Where the time of slots and GPUs went between two moments (seconds since 1970; `until_s` None: now).

        Added up by the keys `by`: those of jobs, and `pod`, `host`, `user`, `outlet`, `day` (local time, with `utc`
        that of UTC). With `where`, only attempts of these jobs count, and no idle slots.
        """
        from dispatcher.query.usage.reading import read_usage

        return read_usage(self.readable_config, self.snapshot(), (since_s, until_s), by, _parsed(where, user), utc=utc)

    def clean(
        self,
        names: Sequence[str] = (),
        *,
        what: Collection[str] = ("attempts", "blobs"),
        where: Where = (),
        keep: int | None = None,
        older_than_s: float = 0.0,
        periodic: bool = False,
        remove: bool = False,
        on_job: Callable[[int], None] | None = None,
    ) -> RemovalPlan:
        """What old attempts have left, as `dispatcher clean` lists it; with `remove` it is removed.

        `names` are job ids or globs, none: all jobs; `what` of attempts, blobs and checkpoints; the options are those
        of the command. The result has `items`, `size`, `skipped`, and `remove()`, after which `removed` says what is
        gone. `on_job` gets the number of jobs that were checked.
        """
        from dispatcher.cleaning.finding import KINDS, Selection, find

        unknown = [kind for kind in what if kind not in KINDS]
        if unknown:
            raise UsageError(f"what = {unknown[0]!r}: expected some of {', '.join(KINDS)}")
        selection = Selection(
            tuple(names),
            _parsed(where),
            keep,
            older_than_s,
            attempts="attempts" in what,
            blobs="blobs" in what,
            checkpoints="checkpoints" in what,
            periodic=periodic,
        )
        plan = find(
            self.config, self.snapshot(), self.store, selection, by=self.store.by, on_job=on_job or (lambda _: None)
        )
        if remove:
            plan.remove()
        return plan

    def history(self, job: str | None = None) -> Iterator[Line]:
        """The changes of one job or of all, oldest first: `seq`, `at` (UTC), `by`, `event`, `job`, `set`, `data`."""
        from dispatcher.run_state import journal

        return journal.history(self.layout, job)

    def pods(self) -> list[PodStatus]:
        """Every pod that has run here, and whether it is alive as far as this host can tell."""
        return self._reader.pods()

    def plan(
        self,
        state: State,
        names: Sequence[str],
        *,
        states: Iterable[str] = (),
        where: Where = (),
        user: Users = (),
        changed: bool = False,
        no_result: bool = False,
        downstream: bool = False,
    ) -> Plan:
        """The jobs to which `requeue`, `hold`, `cancel` or `mark` would apply. Changes nothing.

        `state` is the requested state (queued, held, abandoned, done, failed). `changed`, `no_result` and `downstream`:
        see `requeue`.
        """
        from dispatcher.query import changes

        filters = list(states), _parsed(where, user)
        return changes.plan(
            self.snapshot(), state, names, *filters, changed=changed, no_result=no_result, downstream=downstream
        )

    def apply(self, plan: Plan, *, force: bool = False) -> Changes:
        """Apply a plan to every job for which it is still possible. `force`: see `cancel`."""
        from dispatcher.query import applying

        return applying.apply(self.layout, self.transaction, plan, force=force)

    def plan_update(
        self, names: Sequence[str], *, states: Iterable[str] = (), where: Where = (), user: Users = ()
    ) -> Plan:
        """The jobs to which `update` would apply. Changes nothing."""
        from dispatcher.query import changes

        return changes.plan_update(self.snapshot(), names, list(states), _parsed(where, user))

    def update(
        self,
        *names: str,
        priority: int | None = None,
        time_limit: str | None = None,
        states: Iterable[str] = (),
        where: Where = (),
        user: Users = (),
    ) -> Changes:
        """Change the priority or the time limit (`"8h"`) of jobs; None leaves it as it is. Filters as for `hold`.

        Globs and `where` without `states` select queued and held jobs only. An attempt that runs keeps its limit.
        """
        plan = self.plan_update(names, states=states, where=where, user=user)
        return self.apply_update(plan, priority=priority, time_limit=time_limit)

    def apply_update(self, plan: Plan, *, priority: int | None = None, time_limit: str | None = None) -> Changes:
        """As `update`, for the jobs of a plan. Raises UsageError for a value that cannot be used."""
        from dispatcher.query import applying

        return applying.apply_update(self.transaction, plan, applying.update_of(priority, time_limit))

    def requeue(
        self,
        *names: str,
        states: Iterable[str] = (),
        where: Where = (),
        user: Users = (),
        changed: bool = False,
        no_result: bool = False,
        downstream: bool = False,
    ) -> Changes:
        """Queue jobs again. Filters are combined with AND.

        A running job that is named exactly is stopped first. Globs and `where` without `states` select failed,
        abandoned and held jobs only. `changed` selects jobs that ran with other parameters than the manifest has now,
        or began before what they need was done again, including done ones. `no_result` selects done jobs whose results
        are lost, or not where their methods say. `downstream` adds all done and failed jobs that need the selected
        ones, directly or through others. Jobs that cannot be changed are in the result's `refused`, with the reason.
        """
        plan = self.plan(
            State.QUEUED, names, states=states, where=where, user=user,
            changed=changed, no_result=no_result, downstream=downstream,
        )  # fmt: skip
        return self.apply(plan)

    def hold(self, *names: str, states: Iterable[str] = (), where: Where = (), user: Users = ()) -> Changes:
        """Keep jobs from being claimed until requeued. Globs select queued jobs only. Otherwise like `requeue`."""
        return self.apply(self.plan(State.HELD, names, states=states, where=where, user=user))

    def cancel(
        self, *names: str, states: Iterable[str] = (), where: Where = (), user: Users = (), force: bool = False
    ) -> Changes:
        """Give jobs up and stop those that run; their state becomes `abandoned`.

        Globs select all jobs that are not done. `force` kills what runs at once, also what was asked to end before.
        Otherwise like `requeue`.
        """
        return self.apply(self.plan(State.ABANDONED, names, states=states, where=where, user=user), force=force)

    def mark(
        self,
        state: State | str,
        *names: str,
        states: Iterable[str] = (),
        where: Where = (),
        user: Users = (),
    ) -> Changes:
        """Set the state of jobs that are not running to `done` or `failed`. Otherwise like `requeue`."""
        if state not in MARKABLE:
            raise UsageError(f"{state}: a job can be marked {' or '.join(MARKABLE)}")
        return self.apply(self.plan(State(state), names, states=states, where=where, user=user))

    def delete(self, *names: str) -> list[str]:
        """Delete the records of these jobs (ids, globs) and return their ids. Directories and history are kept.

        A job that is still in a manifest is queued and run again; one that was submitted without a manifest is not.
        Raises StateError when one of the jobs is submitted or running; nothing is deleted then.
        """
        from dispatcher.query import applying

        if not names:
            raise UsageError("name the jobs to delete: ids, or globs such as 'fft_*'")
        jobs = select(self.snapshot(), names)
        with self.transaction() as tx:
            return applying.delete(tx, jobs)

    def pause(self, scope: str, why: str = "") -> None:
        """Stop claiming within a scope: a method, some of its values (`fft:lr=1.0`), `gpu:HOST:N` or `host:HOST`.

        Running jobs are not affected.
        `why` is shown by `status`, with the name under which the change is recorded. Raises UsageError when the scope
        is unknown or paused already.
        """
        from dispatcher.query import applying
        from dispatcher.query.scope import check_scope

        values = check_scope(scope, self.snapshot(), self.readable_config)
        with self.transaction() as tx:
            applying.pause(tx, self.store.fold, scope, f"{why or 'no reason given'} (by {self.store.by})", values)

    def unpause(self, scope: str) -> None:
        """Continue claiming within a paused scope. Raises UsageError when it is not paused."""
        from dispatcher.query import applying

        with self.transaction() as tx:
            applying.unpause(tx, self.store.fold, scope)

    def clear_refused(self, jobs: Iterable[str] = ()) -> list[str]:
        """Clear refused hand edits of these jobs or of all, and return the jobs (`""`: the file as a whole)."""
        from dispatcher.query import applying

        with self.transaction() as tx:
            return applying.clear_refused(tx, self.store.fold, list(jobs))

    def notices(self) -> list[dict[str, Any]]:
        """The notices that were sent, oldest first, then those that are pending. Keys: see query/notices.py."""
        from dispatcher.query.notices import notice_rows

        self.store.refresh(to_the_end=True, for_display=True)
        return notice_rows(self.store.fold.notices, self.readable_config.notify, time.time())

    def clear_notices(self) -> list[int]:
        """Dismiss notices that failed for good, and those that may not have arrived; their numbers."""
        from dispatcher.query import applying

        with self.transaction() as tx:
            return applying.clear_notices(tx, self.store.fold, time.time())

    def tell(self) -> list[dict[str, Any]]:
        """Send the notices that are due now, without a pod, and wait for that; they are rows as `notices` has them.

        Raises ConfigError when a target cannot be used, UsageError when there is none.
        """
        from dispatcher.pod.participants.notices import tell_once
        from dispatcher.query.notices import notice_row

        snapshot = self.snapshot()
        running = {f"{job}/{snapshot.records[job].attempt}": s for job, s in snapshot.stalled.items()}
        with self._changing():
            sent = tell_once(self.store, self.config, lambda: running)
        return [notice_row(notice) for notice in sent]

    def test_notice(self, *targets: str) -> dict[str, Outcome]:
        """Send a test notice to these targets, or to all; how it went (`state`, `why`)."""
        from dispatcher.notify.once import send_test

        return send_test(self.config, targets)

    def drain(self, pod: str) -> None:
        """Let a pod on any host finish its jobs, claim no more and end. Raises UsageError when there is no such pod."""
        from dispatcher.query import applying

        applying.drain(self.layout, pod, self.store.by)

    def undrain(self, pod: str) -> None:
        """Let a draining pod claim again. Raises UsageError when there is no such pod."""
        from dispatcher.query import applying

        applying.undrain(self.layout, pod)

    def add(self, entries: Iterable[Mapping[str, Any]], manifest: str | os.PathLike[str] | None = None) -> Manifest:
        """Append entries (as in matrix.json) to the default or another manifest, and return the new manifest.

        Running dispatchers notice within their poll interval. Raises ManifestError with all faults; nothing is written
        then.
        """
        from dispatcher.matrix.manifest import append_entries

        path: Path = self.layout.root / (manifest or self.config.matrix)
        self.store.refresh()
        return append_entries(path, entries, self.store.records.keys(), owner_by(self.store.by))

    def attempts(self, job: str) -> list[dict[str, Any]]:
        """One row per attempt that has a directory, oldest first. `exit_code` is None until it has ended.

        Keys: attempt, directory, claimed_by, host, started_at and ended_at (UTC), exit_code, event (done, failed,
        retried ...: what the journal recorded at its end), reason, error, log_bytes, cleaned_at (when
        `dispatcher clean` removed its log and the job's files), and run: what the bootstrap of a job class says of its
        run (run_id, status, host, devices, heartbeat_at ...), else None. provenance: what it ran from
        (dispatcher/provenance/record.py), None where that is not recorded.
        """
        return self._reader.attempts(job)

    def submit(
        self,
        command: str | Sequence[str],
        *,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        rows: Sequence[Mapping[str, Any]] | None = None,
        **keys: Any,
    ) -> list[str]:
        """Queue jobs that run `command`, without a manifest, and return their ids.

        `params` are values for its placeholders, such as `{lr}`: each combination of those that have a list or a range
        of values is a job of its own. `rows` are further parameters, a job each; under `name` a row may have the id.
        `keys` are keys of an entry (gpus, needs, priority, time_limit, retries, env, cwd, resources, outlet ...), and
        its method, which is `command` unless given. Without `name` the jobs are called after the program. Raises
        UsageError with all faults, and StateError when the name is taken; then nothing was queued.
        """
        from dispatcher.matrix.new_jobs import METHOD, new_jobs
        from dispatcher.submitting import Submission

        common = {"method": METHOD, **{key: value for key, value in keys.items() if value is not None}}
        new = new_jobs(command, name=name, params=params or {}, rows=rows, common=common)
        return Submission(self, new).add()

    def wait(self, jobs: str | Iterable[str], *, timeout_s: float | None = None) -> dict[str, Record | None]:
        """Wait until jobs (ids, globs) have ended: done, failed or abandoned. Their records; None: it was deleted.

        Raises StateError when some have not ended after `timeout_s` seconds, and when all that are left cannot end
        unless a person does something: they are held, need a job that has failed, their method is paused, or they run
        and no pod is alive that would notice the end. A queued job for which no pod is running yet is waited for.
        """
        from dispatcher.query.ends import stuck, wait_for_ends

        snapshot = self.snapshot()
        named = select(snapshot, _listed(jobs)) if jobs else []
        return wait_for_ends(self.store, named, snapshot.unqueued, timeout_s, lambda left: stuck(self.snapshot(), left))

    def wait_until_running(self, job: str, *, timeout_s: float | None = None) -> Record:
        """Wait until the job runs; its record, whose `host` says where.

        Raises StateError when the job cannot come to run by itself (it has ended, or is held), and when it does not run
        after `timeout_s` seconds (None: no limit), with the reason why it waits.
        """
        from dispatcher.query.starts import wait_for_start

        return wait_for_start(self.snapshot, job, timeout_s)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction under the claims lock. The status file is updated when it ends.

        `tx.change(job, Event.HELD, Change(state=State.HELD))` changes a record; see run_state.events and
        run_state.change.
        """
        with self._changing(), self.store.transaction() as tx:
            yield tx

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Around transactions: locks exclude before them, and the status file shows them afterwards."""
        from dispatcher.doctor.prove_locks import prove_for_command
        from dispatcher.run_state.projection import Projector

        config = self.readable_config
        if config.doubtful:
            raise ConfigError(config.doubtful)
        prove_for_command(self.store, config.layout, config.lock)
        projector = Projector(self.store)
        projector.check_replaced()
        yield
        try:
            projector.write_before_exit()
        except StorageError as error:
            text = f"the change is recorded, but the status file does not show it yet: {error}"
            if self._warn is None:
                raise StorageError(text) from error
            self._warn(text)
        finally:
            projector.close()


def _listed(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _parsed(where: Where, user: Users = ()) -> condition.Where:
    if isinstance(where, Mapping):
        conditions = tuple(condition.Condition(key, text_of(pattern)) for key, pattern in where.items())
        parsed = condition.Where(conditions)
    else:
        parsed = where if isinstance(where, condition.Where) else condition.Where.parse(where)
    return parsed.of_users(_listed(user))
