"""Reads a snapshot of a workspace from its files. Changes nothing and takes no lock."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dispatcher.base import files
from dispatcher.base.times import parse_time
from dispatcher.base.values import number_of
from dispatcher.config import Config
from dispatcher.errors import ManifestError
from dispatcher.matrix.entries import Entries
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Limits
from dispatcher.matrix.manifest import no_manifest_text
from dispatcher.matrix.submitted import Listed, SubmittedJobs
from dispatcher.pod.offers import Offer, offer_of, request_of
from dispatcher.pod.outcome import longest_pause_s
from dispatcher.pod.waiting import UNKNOWN_JOB
from dispatcher.provenance.read import read_provenance
from dispatcher.query import attempts
from dispatcher.query.inputs import NewerInputs
from dispatcher.query.listed_records import ListedRecords
from dispatcher.query.manifests import ManifestCache
from dispatcher.query.metric_lines import NOT_METRICS, LastLines
from dispatcher.query.ran import RanWith
from dispatcher.query.refusals import open_refusals
from dispatcher.query.silence import silent_for_s
from dispatcher.query.snapshot import PodStatus, Snapshot
from dispatcher.run_state import journal, liveness
from dispatcher.run_state.adoption import adopt_hint, find_unadopted, ignored_file_text
from dispatcher.run_state.edits import editors
from dispatcher.run_state.external import presence, runs_externally
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.head import peek_head
from dispatcher.run_state.liveness import CLOCKS_DIFFER_S
from dispatcher.run_state.preview import preview
from dispatcher.run_state.progress import Progress, parse_progress
from dispatcher.run_state.records import Records
from dispatcher.run_state.results import lost_result
from dispatcher.run_state.stalls import Stalls
from dispatcher.run_state.states import IN_FLIGHT, Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout, named_workspace

if TYPE_CHECKING:
    from dispatcher.query.results.rows import Results
    from dispatcher.templates.readiness import Readiness


class SnapshotReader:
    """Reads snapshots of one workspace. A file that has not changed since the last snapshot is not read again."""

    def __init__(self, layout: Layout, config: Config, store: Store) -> None:
        self._layout = layout
        self._config = config
        self._store = store
        self._watch = liveness.Watch()
        self._ran = RanWith(layout)
        self._readiness: Readiness | None = None
        self._listed = ListedRecords()
        self._newer_inputs = NewerInputs()
        self._manifests = ManifestCache(layout.saved_entries)
        self._submitted = SubmittedJobs(layout.submitted_manifest, layout.saved_submitted)
        # The entries of the manifest, the submitted jobs whose lines count, and both as one.
        self._joined: tuple[Entries, Sequence[str], Entries] | None = None
        self._stalls = Stalls(layout, config)
        self._last_lines = LastLines()
        self._now_s = time.time()
        self._limits = Limits.of(config)

    def read(self) -> Snapshot:
        """The state of the workspace now. Raises UsageError when the directory is not a workspace."""
        if self._readiness is not None:
            self._readiness.has_changed()
        store = self._store
        head = peek_head(self._layout.lock_file)
        seen = preview(store)
        pods = self.pods()
        warnings: list[str] = []
        entries = self._default_entries(seen.records, warnings)
        entries = self._with_submitted(entries, seen.records.by_state().ad_hoc(), warnings)
        listed = self._listed
        listed.follow(store, seen, entries)
        records = listed.records
        in_flight = {job: records[job] for job in records.by_state().jobs(IN_FLIGHT)}
        if listed.unknown:
            unlisted = [job for job in listed.unknown if not records.is_ad_hoc(job)]
            others = self._in_other_manifests(unlisted, pods, warnings) if unlisted else []
            warnings += self._lost_manifest(records, unlisted, others)
            entries = entries.with_others(others)
        unknown_job = "its manifest cannot be read" if warnings else UNKNOWN_JOB
        warnings += self._outdated_status_file()
        return Snapshot(
            records=records,
            entries=entries,
            now_s=self._now_s,
            edited=frozenset(seen.edited),
            unqueued=listed.unqueued,
            progress=self._progress(in_flight),
            external={job: presence(record) for job, record in in_flight.items() if runs_externally(record)},
            pauses=dict(store.fold.pauses),
            refusals=(*open_refusals(store.fold.refusals.values(), store.records), *seen.refused),
            pods=tuple(pods),
            offers=tuple(self._offer(pod) for pod in pods if pod.is_alive),
            last_offer=_last_offer(pods),
            problem=store.problem,
            obstacle=_full_disk(self._layout),
            gpu_idle=_idle_gpus(store.fold, pods, self._now_s),
            untold=_untold(store.fold),
            unknown_job=unknown_job,
            warnings=(*self._adoption_warnings(), *store.shortage(head), *warnings),
            ran=self._ran,
            request_of=lambda entry: request_of(self._config, entry),
            on_move=lambda entry: self._config.method(entry.method).on_move,
            longest_pause_s=lambda entry, record: longest_pause_s(record, self._config.method(entry.method).backoff_s),
            wants_copy=lambda entry: self._config.wants_copy(entry.method, entry.snapshot),
            fault_of=self._fault_of,
            limits=self._limits,
            find_changed=listed.changed,
            find_newer=self._newer_inputs.find,
            find_stalled=self._stalls.find,
            lost_result_of=functools.partial(lost_result, self._layout),
        )

    def results(self, snapshot: Snapshot, *, every_job: bool) -> Results:
        """The results of the snapshot's jobs; see `Workspace.results`."""
        from dispatcher.query.results.reading import read_results

        return read_results(self._layout, snapshot, every_job=every_job)

    def last_result(self, job: str, record: Record) -> tuple[int, bytes | None]:
        """The number of the job's last attempt that succeeded, 0 when none did, and its result."""
        from dispatcher.query.results.reading import last_success

        attempt = last_success(self._layout, job, record)
        return attempt, attempts.read_small(self._layout.attempt(job, attempt).result) if attempt else None

    def attempts(self, job: str) -> list[dict[str, Any]]:
        """The attempts of a job that have a directory; see `Workspace.attempts`."""
        try:
            numbers = sorted(int(name) for name in os.listdir(self._layout.job_dir(job)) if name.isdigit())
        except FileNotFoundError:
            return []
        known = attempts.journalled(journal.history(self._layout, job)) if numbers else {}
        return [self._attempt(job, number, known.get(number, {})) for number in numbers]

    def _attempt(self, job: str, number: int, known: Mapping[str, Any]) -> dict[str, Any]:
        paths = self._layout.attempt(job, number)
        status = attempts.parse_object(attempts.read_small(paths.exit)) or {}
        provenance = read_provenance(self._layout, job, number)
        return {
            "attempt": number,
            "host": known.get("host"),
            "started_at": known.get("started_at"),
            "ended_at": status.get("ended_at") or known.get("finished_at"),
            "exit_code": status.get("exit_code", known.get("exit_code")),
            "event": known.get("event"),
            # What was recorded counts: one that was stopped and has proved that it is complete is done.
            "reason": (known if known.get("event") else status).get("reason") or None,
            "error": known.get("error"),
            "claimed_by": _first_line(attempts.read_small(paths.claimant)),
            "log_bytes": _size(paths.log),
            "cleaned_at": (attempts.parse_object(attempts.read_small(paths.cleaned)) or {}).get("cleaned_at"),
            "directory": str(paths.directory),
            "run": attempts.parse_object(attempts.read_small(paths.run)),
            "provenance": None if provenance is None else msgspec.to_builtins(provenance),
        }

    def _fault_of(self, entry: Entry) -> str:
        """Why no pod could start the entry."""
        if self._readiness is None:
            # Imported only when a job waits: reading templates costs more than everything else imported here.
            from dispatcher.templates.readiness import Readiness

            self._readiness = Readiness(self._config, on_pod=False)
        return self._readiness.fault(entry)

    def _adoption_warnings(self) -> list[str]:
        manifests = (self._config.matrix,)
        unadopted = find_unadopted(self._layout, manifests)
        if unadopted is not None:
            return [adopt_hint(self._layout, unadopted)]
        ignored = ignored_file_text(self._layout, manifests)
        return [ignored] if ignored else []

    def _outdated_status_file(self) -> list[str]:
        """A warning when the status file is older than the journal because an editor has it open."""
        layout = self._layout
        open_in = editors.editor_files(layout.status_file)
        head = peek_head(layout.lock_file) if open_in else None
        if head is None or head.projected >= self._store.seq:
            return []
        return [editors.waiting_note(layout.status_file, open_in[0])]

    def _progress(self, in_flight: Mapping[str, Record]) -> dict[str, Progress]:
        found = {}
        for job, record in in_flight.items():
            if record.attempt:
                paths = self._layout.attempt(job, record.attempt)
                progress = parse_progress(attempts.read_small(paths.progress))
                progress = progress or _progress_of(self._last_lines.of(paths.directory))
                if progress is not None:
                    found[job] = progress
        return found

    def pods(self) -> list[PodStatus]:
        """Every pod that has run here, and whether it is alive as far as this host can tell."""
        pods = []
        for info in liveness.read_pods(self._layout):
            alive = liveness.pod_is_alive(self._layout, info, self._watch, self._config.lost_after_s)
            draining = alive and os.path.exists(self._layout.pod_drain(info.pod))
            pods.append(PodStatus(info, alive, draining, _changed_at_s(self._layout.pod_file(info.pod))))
        self._now_s = self._find_now_s(pods)
        for number, pod in enumerate(pods):
            if pod.is_alive:
                silent_s = silent_for_s(pod.info, pod.beat_at_s, self._watch, self._now_s)
                pods[number] = msgspec.structs.replace(pod, silent_s=silent_s)
        return pods

    def _find_now_s(self, pods: Iterable[PodStatus]) -> float:
        """The time by the file server's clock: it is asked only where the last heartbeats contradict this host's."""
        now_s = time.time()
        newest_s = max((pod.beat_at_s for pod in pods if pod.is_alive and pod.beat_at_s), default=now_s)
        return now_s if abs(now_s - newest_s) <= CLOCKS_DIFFER_S else files.server_now_s(self._layout.pods_dir)

    def _offer(self, pod: PodStatus) -> Offer:
        """What a live pod takes. A pod may use another manifest than the default one."""
        path = self._layout.root / pod.info.matrix
        lists = self._manifests.read(path) if pod.info.matrix and path != self._config.matrix else None
        known = None
        if lists is not None and not isinstance(lists, ManifestError):
            known = Listed(lists, self._submitted.entries, self._store.records.is_ad_hoc)
        is_silent = pod.silent_s is not None
        return offer_of(pod.info, is_draining=pod.state != "running", is_silent=is_silent, lists=known)

    def _default_entries(self, records: Mapping[str, Record], warnings: list[str]) -> Entries:
        """The entries of the default manifest; none, and a warning, when it cannot be read."""
        entries = self._manifests.read(self._config.matrix, records.keys())
        if not isinstance(entries, ManifestError):
            return entries
        if not records:
            named_workspace(self._layout.root)
        # A link that leads nowhere is there, too.
        if os.path.lexists(self._config.matrix) or not self._submitted.path.exists():
            warnings.append(str(entries))
        return Entries()

    def _lost_manifest(self, records: Records, unlisted: Iterable[str], others: Iterable[Entry]) -> list[str]:
        """A warning when jobs wait for a default manifest that is gone; it may be missing where all were submitted."""
        path = self._config.matrix
        if os.path.lexists(path) or not self._submitted.path.exists():
            return []
        known = {entry.job_id for entry in others}
        open_ = (job for job in unlisted if job not in known)
        lost = [job for job in open_ if records[job].state is State.QUEUED]
        return [no_manifest_text(path, lost)] if lost else []

    def _with_submitted(self, manifest: Entries, ad_hoc: Sequence[str], warnings: list[str]) -> Entries:
        """The entries of the manifest, and those of submitted jobs that it does not have."""
        if not ad_hoc:
            return manifest
        news = self._submitted.read(thoroughly=True)
        if self._submitted.problem:
            warnings.append(self._submitted.problem)
        joined = self._joined
        is_known = joined is not None and joined[0] is manifest and joined[1] == ad_hoc
        if joined is None or not is_known or news.added or news.is_rewritten:
            joined = self._joined = manifest, ad_hoc, manifest.joined(self._submitted.entries, ad_hoc)
        return joined[2]

    def _in_other_manifests(self, unknown: list[str], pods: Iterable[PodStatus], warnings: list[str]) -> list[Entry]:
        """The entries of jobs that the default manifest does not have, from the other manifests of the workspace."""
        missing = set(unknown)
        entries: list[Entry] = []
        named = [Path(pod.info.matrix) for pod in pods if pod.info.matrix]
        for path in dict.fromkeys([*named, *self._layout.manifests()]):
            if not missing:
                break
            if path == self._config.matrix:
                continue
            found = self._manifests.read(self._layout.root / path)
            if isinstance(found, ManifestError):
                warnings.append(str(found))
                continue
            entries += [found[job] for job in missing & found.keys()]
            missing -= found.keys()
        return entries


def _last_offer(pods: Sequence[PodStatus]) -> Offer | None:
    """Of the pod that ended last, where none is alive: what it could run, without its limits to methods and values."""
    if not pods or any(pod.is_alive for pod in pods):
        return None
    info = max(pods, key=lambda pod: pod.beat_at_s or 0.0).info
    return offer_of(msgspec.structs.replace(info, methods=[], where=[], unusable_methods={}))


def _full_disk(layout: Layout) -> str:
    if not files.is_full(layout.run_state):
        return ""
    return f"the disk of {layout.run_state} is full, so no claim can be recorded: free some space"


def _untold(fold: Fold) -> tuple[str, ...]:
    if not fold.notices.sent:
        return ()
    from dispatcher.query.notices import attention_texts

    return tuple(attention_texts(fold.notices, time.time()))


def _idle_gpus(fold: Fold, pods: Iterable[PodStatus], now_s: float) -> dict[str, float]:
    """Jobs whose GPUs are idle, and for how many seconds; those of dead pods are left out."""
    alive = {pod.info.pod: pod.clock_ahead_s for pod in pods if pod.is_alive} if fold.gpu_idle else {}
    found = {}
    for job in fold.gpu_idle:
        idle = fold.gpu_idle.of(job, fold.records.get(job))
        since_s = None if idle is None else parse_time(idle.since)
        ahead_s = alive.get(fold.records[job].pod or "")
        if since_s is not None and ahead_s is not None:
            found[job] = max(0.0, now_s + ahead_s - since_s)
    return found


def _changed_at_s(path: Path) -> float | None:
    """When the file was last written, in seconds since 1970; None when it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _progress_of(line: Mapping[str, Any] | None) -> Progress | None:
    """The progress of a script that reports none, but logs metrics where its method says, by its last line."""
    if line is None:
        return None
    numbers = {name: number_of(value) for name, value in line.items() if name not in NOT_METRICS}
    return Progress(line["step"], metrics={name: value for name, value in numbers.items() if value is not None})


def _size(path: Path) -> int | None:
    """None also where a job has closed its attempt's directory to others."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _first_line(data: bytes | None) -> str | None:
    return (data or b"").partition(b"\n")[0].decode(errors="replace") or None
