"""Checks of the workspace: its files, and the filesystem that they are on. `checks.CHECKS` lists them."""

from __future__ import annotations

import os
from collections import Counter
from typing import Final

from dispatcher.base import files
from dispatcher.base.messages import counted, first_texts
from dispatcher.base.mounts import mount_of
from dispatcher.config import Config, LockKind
from dispatcher.doctor import submitted_jobs
from dispatcher.doctor.context import Context
from dispatcher.doctor.findings import OK, WARNING, WRONG, Finding, Findings
from dispatcher.doctor.fitness import check_directories, state_paths
from dispatcher.doctor.lock_checks import lock_cure, severity
from dispatcher.errors import ManifestError
from dispatcher.matrix.manifest import parse_manifest
from dispatcher.outlets.lost_claims import find_lost_claim, jobs_with_directories
from dispatcher.run_state import journal as journal_files
from dispatcher.run_state import liveness
from dispatcher.run_state.adoption import adopt_hint, find_unadopted
from dispatcher.run_state.head import peek_head
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.lock_choice import AUTO, check_wanted, hardlink_is_in_force
from dispatcher.run_state.results import lost_result
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store

_MIB: Final = 1 << 20
_LITTLE_SPACE: Final = 1024 * _MIB
_NO_SPACE: Final = 20 * _MIB
_FEW_FILES: Final = 10_000
_NO_FILES: Final = 100
# How many attempts that the journal does not have, and lost results, are named.
_SHOWN: Final = 20


def config(context: Context) -> Findings:
    found = context.config
    if isinstance(found, Config):
        yield Finding("config", OK, f"{found.layout.config_file.name}: lock {found.lock}")
    else:
        yield Finding("config", WRONG, str(found), "correct the file; no dispatcher starts before")


def manifest(context: Context) -> Findings:
    if not isinstance(context.config, Config):
        return
    path = context.config.matrix
    try:
        # Jobs that entries need may be in another manifest.
        found = parse_manifest(files.read_plain(path), str(path), None)
    except FileNotFoundError:
        if context.layout.submitted_manifest.exists():
            yield Finding("manifest", OK, f"there is no {path}: only submitted jobs")
            return
        cure = "write it, or make it with `dispatcher matrix make SWEEP`"
        yield Finding("manifest", WARNING, f"there is no {path}", cure)
        return
    except ManifestError as error:
        yield Finding("manifest", WRONG, str(error), "correct it; `dispatcher matrix check` shows more")
        return
    yield Finding("manifest", OK, f"{path}: {counted(len(found), 'job')}")


def submitted(context: Context) -> Findings:
    if not isinstance(context.config, Config):
        return
    found = submitted_jobs.examine(context.config)
    if found is None:
        yield Finding("submitted", OK, "no job was submitted without a manifest")
        return
    path = context.layout.submitted_manifest
    for fault in found.faults:
        yield Finding("submitted", WRONG, f"{path}: {fault}", "the other jobs go on; correct the line")
    if not found.faults:
        notes = "".join(f"; {note}" for note in found.notes)
        yield Finding("submitted", OK, f"{path}: {counted(len(found.entries), 'job')}{notes}")


def permissions(context: Context) -> Findings:
    fault = check_directories(context.layout)
    if fault is not None:
        yield Finding("permissions", WRONG, fault.what, fault.cure)
        return
    open_to_all = [path for path in state_paths(context.layout) if os.stat(path).st_mode & 0o002]
    if open_to_all:
        yield Finding("permissions", WARNING, f"all users may write {open_to_all[0]}", f"chmod o-w {open_to_all[0]}")
    else:
        others = "others outside its group may not write it"
        yield Finding("permissions", OK, f"this user may read and write the run state, {others}")


def disk_space(context: Context) -> Findings:
    layout = context.layout
    found = os.statvfs(layout.run_state if layout.run_state.exists() else layout.root)
    free = found.f_bavail * found.f_frsize
    cure = "free some space: on a full disk nothing is lost, but nothing is claimed either"
    verdict = WRONG if free < _NO_SPACE else WARNING if free < _LITTLE_SPACE else OK
    what = f"{free / _MIB:,.0f} MiB free"
    yield Finding("disk space", verdict, what, cure if verdict != OK else "", free / _MIB, "MiB")
    if found.f_files and found.f_favail < _FEW_FILES:
        verdict = WRONG if found.f_favail < _NO_FILES else WARNING
        yield Finding("inodes", verdict, f"only {found.f_favail} more files can be made", cure)


def journal(context: Context) -> Findings:
    layout = context.layout
    head = peek_head(layout.lock_file)
    newest = journal_files.newest_generation(layout)
    if newest is None:
        yield _no_journal(context, is_missing=head is not None)
        return
    store = Store(layout, by="doctor")
    store.refresh(to_the_end=True)
    path = layout.journal(store.generation or newest)
    size = os.stat(path).st_size if path.exists() else 0
    if head is not None and head.generation == store.generation and size < head.length:
        what = f"{path}: {size} bytes, but according to the lock file {head.length} were written"
        cure = f"`dispatcher doctor --repair` continues without them; if other hosts see more: {mount_of(path).cure}"
        yield Finding("journal", WRONG, what, cure)
    elif size > store.offset:
        what = f"{path}: the last {size - store.offset} bytes are not complete lines"
        yield Finding("journal", WARNING, what, "the next change removes them: their transaction never finished")
    else:
        yield Finding("journal", OK, f"{path}: {len(store.records)} records, line {store.seq}")
    if isinstance(context.config, Config) and store.fold.lock_kind is not None:
        used = LockKind.HARDLINK if hardlink_is_in_force(layout) else store.fold.lock_kind
        check_wanted(layout, context.config.lock, used)
        yield Finding("kind of lock", OK, f"{used} (dispatcher.yaml: {context.config.lock})")


def attempts(context: Context) -> Findings:
    """Attempts that the journal does not have, because it has gone back; also after `--repair`."""
    store = Store(context.layout, by="doctor")
    store.refresh(to_the_end=True)
    running: list[tuple[str, str]] = []
    over: list[tuple[str, str]] = []
    for job in jobs_with_directories(context.layout):
        record = store.records.get(job)
        lost = find_lost_claim(context.layout, job, 0 if record is None else record.attempt)
        if lost is not None:
            # Of a job without a record, a pod looks there when a manifest has it.
            is_waiting = record is None or record.state is State.QUEUED
            state = "no record" if record is None else f"record: {record.state}, attempt {record.attempt}"
            (running if lost.runs else over).append((f"{lost.text()}; {state}", "" if is_waiting else job))
    for found, what in ((running, "running"), (over, "over or submitted")):
        if found:
            shown = first_texts([text for text, _ in found], _SHOWN)
            yield Finding(
                "attempts", WARNING, f"{counted(len(found), 'attempt')} not in the journal, {what}: {shown}",
                _lost_cure([job for _, job in found if job]),
            )  # fmt: skip
    if not running and not over:
        yield Finding("attempts", OK, "the journal has all that have begun")


def results(context: Context) -> Findings:
    """Results of done jobs that are lost, and those that their scripts have not left where their methods say."""
    store = Store(context.layout, by="doctor")
    store.refresh(to_the_end=True)
    done = {job: store.records[job] for job in store.records.by_state().jobs((State.DONE,))}
    lost = [what for job, record in done.items() if (what := lost_result(context.layout, job, record))]
    lacking = [f"{job}: {record.result_lacks}" for job, record in done.items() if record.result_lacks]
    if lost:
        cure = "take them from a backup, or run the jobs again: `dispatcher requeue --no-result`"
        yield Finding(
            "results",
            WRONG,
            f"{counted(len(lost), 'result')} of done jobs lost or damaged: {first_texts(lost, _SHOWN)}",
            cure,
        )
    if lacking:
        cure = (
            "correct `result` of the method in dispatcher.yaml, or what the script writes; then "
            "`dispatcher requeue --no-result`"
        )
        what = f"{counted(len(lacking), 'job')} done without all of the result: {first_texts(lacking, _SHOWN)}"
        yield Finding("results", WARNING, what, cure)
    if not lost and not lacking:
        yield Finding("results", OK, "none is known to be missing")


def _lost_cure(others: list[str]) -> str:
    """What to do about attempts that are not in the journal; `others` are those of their jobs that are not queued."""
    cure = "start a pod: before it runs a queued job again, it records such an attempt, and its end decides"
    if others:
        cure += f". Not queued: `dispatcher requeue {' '.join(others[:_SHOWN])}` has the pod do so"
    return f"{cure}. To run a job again all the same: `touch superseded` in the attempt's directory when it is over"


def _no_journal(context: Context, *, is_missing: bool) -> Finding:
    if is_missing:
        what = f"there is none, but {context.layout.lock_file} refers to one"
        cure = "the next start rebuilds it from matrix_status.json; a backup has the whole history"
        return Finding("journal", WRONG, what, cure)
    return Finding("journal", OK, "there is none yet: the first dispatcher creates it")


def status_file(context: Context) -> Findings:
    layout, config = context.layout, context.config
    if isinstance(config, Config):
        store = Store(layout, by="doctor", lock=config.lock, manifest_jobs=ManifestJobs(config).ids)
    else:
        store = Store(layout, by="doctor")
    store.refresh(to_the_end=True)
    unadopted = find_unadopted(layout, (config.matrix,) if isinstance(config, Config) else ())
    if unadopted is not None:
        yield Finding("status file", WARNING, f"{unadopted} is not adopted", adopt_hint(layout, unadopted))
    elif files.is_missing(layout.status_file):
        is_missing = bool(store.records)
        what = "missing; the next change writes it again" if is_missing else "there is none yet"
        yield Finding("status file", WARNING if is_missing else OK, what)
    else:
        yield _readable_status_file(context, store)


def _readable_status_file(context: Context, store: Store) -> Finding:
    waiting = len(store.pending_edits().edits)
    if store.problem is not None:
        return Finding("status file", WRONG, store.problem, "correct it, or `dispatcher status --restore`")
    refused = len(store.fold.refusals)
    what = f"{context.layout.status_file}: readable" + (
        f"; {counted(waiting, 'hand edit')} not applied yet" if waiting else ""
    )
    if refused:
        return Finding(
            "status file", WARNING, f"{what}; refused: {counted(refused, 'hand edit')}", "see `dispatcher status`"
        )
    return Finding("status file", OK, what)


def pods(context: Context) -> Findings:
    layout = context.layout
    watch = liveness.Watch()
    infos = liveness.read_pods(layout)
    alive = [info for info in infos if liveness.pod_is_alive(layout, info, watch, float("inf"))]
    dead = [info for info in infos if info not in alive and info.phase != "ended"]
    kinds = Counter(info.lock for info in alive)
    what = f"{len(alive)} running" + (f" ({', '.join(f'{i.pod} on {i.host}' for i in alive)})" if alive else "")
    if dead:
        what += f"; killed: {', '.join(info.pod for info in dead)}"
    if len(kinds) > 1:
        shown = ", ".join(f"{info.pod}: {info.lock}" for info in alive)
        yield Finding("pods", WRONG, f"they use different kinds of lock ({shown})", "end them and start them again")
    else:
        yield Finding("pods", OK, what)


def mount(context: Context) -> Findings:
    layout = context.layout
    found = mount_of(layout.run_state if layout.run_state.exists() else layout.root)
    options = found.options.split(",")
    if "ro" in options:
        yield Finding("mount", WRONG, f"{found} is read-only", "mount it with write access")
    elif found.fstype == "fuse.sshfs":
        what = f"{found}: locks do not reach other hosts, and old file content is shown for up to 20 s"
        yield Finding("mount", WRONG, what, found.cure)
    elif local := found.local_lock_options:
        verdict = severity(layout, found, AUTO)
        what = f"{found}: with {' and '.join(local)}, locks do not reach other hosts"
        yield Finding("mount", verdict, what, lock_cure(found, verdict))
    elif {"soft", "softerr"} & set(options):
        what = f"{found}: a soft mount gives up and reports errors when the file server is slow"
        yield Finding("mount", WARNING, what, "mount it with the option hard")
    else:
        kind = "may be shared by several hosts" if found.is_network else "is of this host only"
        yield Finding("mount", OK, f"{found} {kind}")
