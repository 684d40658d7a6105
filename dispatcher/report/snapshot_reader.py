"""One look at a workspace: reads everything, changes nothing, takes no lock."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatcher.config import Config
from dispatcher.errors import ManifestError, UsageError
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.manifest import parse_manifest
from dispatcher.pod.offers import Offer, offer_of, request_of
from dispatcher.pod.waiting import UNKNOWN_JOB
from dispatcher.report import attempts
from dispatcher.report.progress import Progress, parse_progress
from dispatcher.report.ran import RanWith
from dispatcher.report.snapshot import PodStatus, Snapshot
from dispatcher.run_state import editors, liveness
from dispatcher.run_state.adoption import adopt_hint, find_unadopted, neglected_text
from dispatcher.run_state.external import is_unwatched, presence
from dispatcher.run_state.head import peek_head
from dispatcher.run_state.preview import preview
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, Record, State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.templates.readiness import Readiness

# A dispatcher that replaces the status file between two of our reads looks like a hand edit until we look again.
_LOOKS = 3

_Signature = tuple[int, int, int]


class SnapshotReader:
    """Looks at one workspace, again and again if asked to; what has not changed is not read twice."""

    def __init__(self, layout: Layout, config: Config, store: Store) -> None:
        self._layout = layout
        self._config = config
        self._store = store
        self._watch = liveness.Watch()
        self._looks = 0
        self._ran = RanWith(layout)
        self._readiness: Readiness | None = None
        self._manifests: dict[Path, tuple[_Signature, dict[str, Entry] | ManifestError]] = {}

    def read(self) -> Snapshot:
        """How things stand now; UsageError when there is no workspace."""
        self._looks += 1
        if self._readiness is not None:
            self._readiness.has_changed()
        store = self._store
        seen = preview(store)
        records = dict(seen.records)
        pods = self._pods()
        default = self._manifest(self._config.matrix)
        warnings: list[str] = []
        entries: dict[str, Entry] = {}
        if isinstance(default, ManifestError):
            self._check_workspace(default, records)
            warnings.append(str(default))
        else:
            entries.update(default)
        unqueued = [job for job in entries if job not in records]
        unknown = [job for job in records if job not in entries]
        # The manifest's order is the one that people know; jobs that it does not have come last.
        records = {job: records.get(job) or Record(state=State.QUEUED) for job in [*entries, *unknown]}
        if unknown:
            self._add_other_manifests(entries, unknown, pods, warnings)
        unknown_job = "its manifest cannot be read" if warnings else UNKNOWN_JOB
        warnings += self._old_status_file()
        return Snapshot(
            records=records,
            entries=entries,
            now_s=time.time(),
            edited=frozenset(seen.edited),
            unqueued=frozenset(unqueued),
            progress=self._progress(records),
            unwatched={job: presence(record) for job, record in records.items() if is_unwatched(record)},
            pauses=dict(store.fold.pauses),
            refusals=(*store.fold.refusals.values(), *seen.refused),
            pods=tuple(pods),
            offers=tuple(self._offer(pod) for pod in pods if pod.is_alive),
            problem=store.problem,
            unknown_job=unknown_job,
            warnings=(*self._about_moving_in(), *warnings),
            ran=self._ran,
            request_of=lambda entry: request_of(self._config, entry),
            fault_of=self._fault_of,
        )

    def _fault_of(self, entry: Entry) -> str:
        """Why no pod could start the entry."""
        if self._readiness is None:
            # Imported when something waits: reading templates costs more than all else that is imported here.
            from dispatcher.templates.readiness import Readiness

            self._readiness = Readiness(self._config, on_pod=False)
        return self._readiness.fault(entry)

    def _about_moving_in(self) -> list[str]:
        manifests = (self._config.matrix,)
        unadopted = find_unadopted(self._layout, manifests)
        if unadopted is not None:
            return [adopt_hint(self._layout, unadopted)]
        neglected = neglected_text(self._layout, manifests)
        return [neglected] if neglected else []

    def results(self, snapshot: Snapshot, unsure: list[str]) -> Iterator[dict[str, Any]]:
        """The result rows of all jobs of the snapshot that have been done; see `Workspace.results`.

        `unsure` gets the jobs whose attempt has left no `entry.json`: their rows have the manifest's parameters.
        """
        for job, record in snapshot.records.items():
            attempt = self._last_done(job, record)
            data = attempts.read_small(self._layout.attempt(job, attempt).result) if attempt else None
            if data is None:
                continue
            listed = snapshot.entries.get(job)
            is_last = attempt == record.attempt
            ran = self._ran.last(job, record, listed) if is_last else self._ran.attempt(job, attempt)
            if ran is None:
                unsure.append(job)
            # A file that is no JSON object is a row without values, which a pivot says that it leaves out.
            yield attempts.result_row(job, ran or listed, attempt, attempts.parse_object(data) or {})

    def attempts(self, job: str) -> list[dict[str, Any]]:
        """The attempts of a job that have a directory; see `Workspace.attempts`."""
        try:
            numbers = sorted(int(name) for name in os.listdir(self._layout.job_dir(job)) if name.isdigit())
        except FileNotFoundError:
            return []
        rows = []
        for number in numbers:
            paths = self._layout.attempt(job, number)
            status = attempts.parse_object(attempts.read_small(paths.exit)) or {}
            rows.append(
                {
                    "attempt": number,
                    "exit_code": status.get("exit_code"),
                    "reason": status.get("reason"),
                    "ended_at": status.get("ended_at"),
                    "claimed_by": _first_line(attempts.read_small(paths.claimant)),
                    "log_bytes": paths.log.stat().st_size if paths.log.exists() else None,
                    "directory": str(paths.directory),
                }
            )
        return rows

    def _old_status_file(self) -> list[str]:
        """Whether an editor keeps the status file from showing what the journal says."""
        layout = self._layout
        open_in = editors.editor_files(layout.status_file)
        head = peek_head(layout.lock_file) if open_in else None
        if head is None or head.projected >= self._store.seq:
            return []
        return [editors.note(layout.status_file, open_in[0])]

    def _progress(self, records: dict[str, Record]) -> dict[str, Progress]:
        found = {}
        for job, record in records.items():
            if record.state in IN_FLIGHT and record.attempt:
                progress = parse_progress(attempts.read_small(self._layout.attempt(job, record.attempt).progress))
                if progress is not None:
                    found[job] = progress
        return found

    def _last_done(self, job: str, record: Record) -> int:
        """The number of the last attempt that was done; 0 for none."""
        if record.state is State.DONE and record.reason != BY_HAND:
            return record.attempt
        older = range(record.attempt, 0, -1)
        return next(
            (n for n in older if attempts.ended_well(attempts.read_small(self._layout.attempt(job, n).exit))), 0
        )

    def _pods(self) -> list[PodStatus]:
        pods = []
        for info in liveness.read_pods(self._layout):
            counter = (info.pid, info.heartbeat)
            alive = liveness.pod_is_alive(self._layout, info, self._watch, self._config.lost_after_s)
            unchanged_s = self._watch.unchanged_s(f"pod:{info.pod}", counter)
            draining = alive and os.path.exists(self._layout.pod_drain(info.pod))
            pods.append(PodStatus(info, alive, draining, unchanged_s if self._looks > 1 else None))
        return pods

    def _offer(self, pod: PodStatus) -> Offer:
        """What a live pod takes, which may work on a manifest of its own."""
        path = self._layout.root / pod.info.matrix
        lists = self._manifest(path) if pod.info.matrix and path != self._config.matrix else None
        return offer_of(
            pod.info,
            is_draining=pod.state != "running",
            lists=None if isinstance(lists, ManifestError) else lists,
        )

    # Manifests.

    def _manifest(self, path: Path) -> dict[str, Entry] | ManifestError:
        try:
            found = os.stat(path)
            signature = (found.st_ino, found.st_size, found.st_mtime_ns)
            known = self._manifests.get(path)
            if known is not None and known[0] == signature:
                return known[1]
            data = path.read_bytes()
        except FileNotFoundError:
            problem = "there is no such file; write it, or make it with `dispatcher matrix make SPEC`"
            return ManifestError(str(path), [problem])
        except OSError as error:
            return ManifestError(str(path), [f"cannot be read: {error.strerror}"])
        entries: dict[str, Entry] | ManifestError
        try:
            # Entries may need jobs of any other manifest; whether these exist is shown as why they wait.
            entries = parse_manifest(data, str(path), None)
        except ManifestError as error:
            entries = error
        self._manifests[path] = (signature, entries)
        return entries

    def _check_workspace(self, error: ManifestError, records: dict[str, Record]) -> None:
        layout, manifest = self._layout, self._config.matrix
        if not records and not os.path.exists(manifest) and not os.path.isdir(layout.run_state):
            raise UsageError(
                f"{layout.root} is no workspace: there is neither {os.path.relpath(manifest, layout.root)} nor "
                "run_state/. `dispatcher init DIR` makes one, --root DIR names one that stands elsewhere"
            ) from error

    def _add_other_manifests(
        self, entries: dict[str, Entry], unknown: list[str], pods: Iterable[PodStatus], warnings: list[str]
    ) -> None:
        """Look for the jobs that the default manifest does not know in the other ones of the workspace."""
        missing = set(unknown)
        named = [Path(pod.info.matrix) for pod in pods if pod.info.matrix]
        for path in dict.fromkeys([*named, *self._layout.manifests()]):
            if not missing:
                return
            if path == self._config.matrix:
                continue
            found = self._manifest(self._layout.root / path)
            if isinstance(found, ManifestError):
                warnings.append(str(found))
                continue
            entries.update((job, found[job]) for job in missing & found.keys())
            missing -= found.keys()


def _first_line(data: bytes | None) -> str | None:
    return (data or b"").partition(b"\n")[0].decode(errors="replace") or None
