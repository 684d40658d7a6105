"""How an attempt ended, and what becomes of its job. Pure, but for reading the end of its log."""

from __future__ import annotations

import math
import os
import re
import signal
import stat
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.outlets.base import (
    CANCELLED,
    CANNOT_START,
    GPU_IDLE,
    LOST,
    NOT_REACHED,
    OUT_OF_MEMORY,
    PREEMPTED,
    QUEUE_LIMIT,
    SUPERSEDED,
    TIME_LIMIT,
    Ended,
)
from dispatcher.pod.error_line import last_error_line, last_line, until_first_end
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.requests import FRESH_START
from dispatcher.run_state.states import PRUNED, Record, State
from dispatcher.workspace import AttemptPaths

_SETUP: Final = "setup"
STOPPED: Final = "stopped on request"
REQUEUE: Final = "requeue"
_LONGEST_BACKOFF_S: Final = 3600.0
# More than any backoff needs to reach the longest one.
_MOST_DOUBLINGS: Final = 40
# The first pause of a job that is requeued: one preemption costs next to nothing, and no job loops without a pause.
_QUICK_S: Final = 1.0
# After an attempt that could not start because of the storage.
_PASSING_S: Final = 5.0
# An attempt that ran for so long was worth its start.
_USEFUL_S: Final = 600.0
# An attempt that is lost this soon after its start may be the fault of its host.
_SOON_S: Final = 60.0
_LOG_END: Final = 64 * 1024
# Ends that are neither the job's fault nor a host's: they use up neither retries nor requeues.
NOT_COUNTED: Final = (QUEUE_LIMIT, NOT_REACHED)
# Ends that are no fault of the job: they speak against neither its method nor a GPU.
NO_FAULT: Final = (LOST, PREEMPTED, CANCELLED, *NOT_COUNTED)
# What CUDA, XLA and PyTorch print when the device's memory is used up, and what the kernel or an allocator prints
# for the host's: `RESOURCE_EXHAUSTED` (XLA), `CUDA out of memory` (PyTorch), `CUDA_ERROR_OUT_OF_MEMORY` (driver).
_OOM_TEXT: Final = re.compile(
    r"RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY|out of memory|OutOfMemoryError|std::bad_alloc|\bMemoryError\b", re.I
)
_OOM_LINES: Final = 40


class _Reached(msgspec.Struct):
    step: float


_decode_step = msgspec.json.Decoder(_Reached).decode


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """When a job is tried again by itself. `on_lost`, `on_preempted`: requeue it, or fail."""

    retries: int = 0
    retry_on: tuple[str, ...] = ()
    backoff_s: float = 30.0
    max_requeues: int = 20
    on_lost: str = REQUEUE
    on_preempted: str = REQUEUE


def is_suspicious(ended: Ended) -> bool:
    """Whether the host may be to blame: no job could be started, or it died at once without an exit status."""
    at_once = ended.ran_s is not None and ended.ran_s < _SOON_S
    return ended.blames_host or (ended.exit_reason == LOST and ended.exit_code is None and at_once)


def judge(ended: Ended, paths: AttemptPaths) -> Ended:
    """Why an attempt ended, with the end of its log and how far it got where that matters."""
    if ended.is_done or ended.exit_reason == CANNOT_START:
        return ended
    judged = classify(ended, _read_log_end(paths.log_of(ended.worker)))
    if ended.worker and judged.exit_reason != PREEMPTED:
        judged = msgspec.structs.replace(
            judged, error=f"worker {ended.worker}: {judged.error or 'no error in its log'}"
        )
    if judged.exit_reason == LOST and judged.exit_code is None and _is_gone(paths.directory):
        # Its wrapper could not write an exit status there.
        gone = f"the attempt's directory {paths.directory} was removed or emptied, by the job or by another process"
        judged = msgspec.structs.replace(judged, error=gone)
    step, checkpoint = read_step(paths.progress), read_step(paths.checkpoint)
    return msgspec.structs.replace(judged, step=step, checkpoint=checkpoint)


def classify(ended: Ended, log_end: str) -> Ended:
    """Completes the reason and the error from the exit status, what the wrapper tells and the end of the log."""
    code = ended.exit_code
    if ended.is_done or ended.exit_reason in NOT_COUNTED:
        return ended
    # One that was told to stop by a signal, and left with 0, has saved and left as one does that leaves with 75.
    has_left = code == contract.EXIT_PREEMPTED or (code == contract.EXIT_DONE and not ended.exit_reason)
    if ended.exit_reason == PREEMPTED or (
        has_left and ended.exit_reason not in (TIME_LIMIT, _SETUP) and not ended.exit_reason.startswith(GPU_IDLE)
    ):
        # The wrapper writes it when its dispatcher was stopped; a job that is told by others uses the exit status.
        stopped = ended.exit_reason == PREEMPTED and not ended.by_scheduler
        return msgspec.structs.replace(ended, exit_reason=PREEMPTED, error=None, pod_stopped=stopped)
    if ended.exit_reason == SUPERSEDED or (code is None and not (ended.by_scheduler and ended.exit_reason)):
        known = ": ".join(filter(None, (ended.exit_reason, ended.error)))
        known = _what_is_known(ended, log_end) if code is None else known
        return msgspec.structs.replace(ended, exit_reason=LOST, error=known)
    lines = until_first_end(log_end.splitlines())
    # A wrapper adds 128 to the signal's number, as shells do.
    number = code - 128 if code is not None and 128 < code < 128 + signal.NSIG else None
    if ended.exit_reason:
        reason = ended.exit_reason
    elif (number == signal.SIGKILL and ended.oom_killed) or _names_out_of_memory(lines):
        reason = OUT_OF_MEMORY
    else:
        reason = f"exit {code}" if number is None else f"signal {number}"
    error = last_error_line(lines) or ended.error
    if reason == _SETUP and error and (why := last_line(lines, but="dispatcher: ")) and why not in error:
        # Which step failed is ours to say; why, what it ran has said before.
        error = f"{error}: {why}"
    return msgspec.structs.replace(ended, exit_reason=reason, error=error)


def _is_gone(directory: Path) -> bool:
    # Where files are in use, NFS keeps the directory.
    try:
        return not os.listdir(directory)
    except OSError:
        return files.is_missing(directory)


def _names_out_of_memory(lines: Sequence[str]) -> bool:
    return any(_OOM_TEXT.search(line) for line in [line for line in lines if line.strip()][-_OOM_LINES:])


def _what_is_known(ended: Ended, log_end: str) -> str:
    """What there is to tell of an attempt that left no exit status."""
    lines = log_end.splitlines()
    ran = "" if ended.ran_s is None else f" after {_duration(ended.ran_s)}"
    known = [(ended.exit_reason or "no exit status") + ran]
    if ended.error:
        known.append(ended.error)
    if ended.oom_killed:
        known.append("the kernel killed a process of this host for lack of memory meanwhile")
    line = last_error_line(lines) or last_line(lines)
    known.append(f"its log ends: {line}" if line else "its log is empty")
    return ", ".join(known)


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.2g} s"
        if seconds < 10
        else f"{seconds:.0f} s"
        if seconds < 60
        else str(timedelta(seconds=round(seconds)))
    )


def read_step(path: Path) -> float | None:
    """The step in an attempt's progress.json or checkpoint.json; None when there is none, or something else."""
    try:
        step = _decode_step(files.read_at_once(path)).step
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return step if math.isfinite(step) else None


def _read_log_end(path: Path) -> str:
    """The last part of a log; empty when there is none, or something else is in its place."""
    try:
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_END))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def is_retried(reason: str, policy: Policy, used: int) -> bool:
    """Whether a failure for `reason` (`exit 1`, `signal 9`, `out of memory` ...) is tried again by itself."""
    kinds = {reason, reason.partition(" ")[0]} if re.fullmatch(r"(?:exit|signal) \d+", reason) else {reason}
    if reason.startswith(GPU_IDLE):
        kinds = {GPU_IDLE.lower()}
    return used < policy.retries and (not policy.retry_on or bool(kinds & set(policy.retry_on)))


def after(ended: Ended, record: Record, policy: Policy, now_s: float) -> tuple[Event, Change]:
    """The event and the change of a record whose attempt has ended. `now_s`: wall clock, for the backoff."""
    finished = Change(
        finished_at=ended.ended_at or now_text(now_s),
        exit_code=ended.exit_code,
        reason=ended.exit_reason or None,
        error=ended.error,
        desired=None,
    )
    if record.desired is not None and not (ended.is_done and record.desired is not State.QUEUED):
        return _stopped(record.desired, finished)
    if ended.is_done:
        unset = Change(
            retries=None,
            requeues=None,
            retry_at=None,
            backoff=None,
            furthest_step=None,
            furthest_checkpoint=None,
            checkpoint_at=None,
        )
        return Event.DONE, finished | unset | Change(state=State.DONE, has_result=ended.has_result or None)
    reason = ended.exit_reason or "unknown"
    goes_back = _goes_back(ended, policy)
    is_counted = not (ended.pod_stopped or ended.is_passing or ended.exit_reason in NOT_COUNTED)
    if not is_counted or (goes_back and record.requeues < policy.max_requeues):
        change = FRESH_START | _requeued(ended, record, policy, now_s) | Change(state=State.QUEUED)
        return Event.AUTO_REQUEUED, change
    if is_retried(reason, policy, record.retries):
        again = Change(state=State.QUEUED, retries=record.retries + 1, pid=None, gpu=None, handle=None)
        return Event.RETRIED, finished | _backoff(ended, record, policy, now_s, quick=False) | again
    if goes_back:
        reason = f"{reason} {record.requeues + 1} times"
    return Event.FAILED, finished | Change(state=State.FAILED, reason=reason)


def longest_pause_s(record: Record, backoff_s: float) -> float:
    """The longest time until `retry_at` that this module sets, of a record with a `backoff`."""
    return min(backoff_s * 2.0 ** max(0, record.backoff - 1), _LONGEST_BACKOFF_S)


def _stopped(desired: State, finished: Change) -> tuple[Event, Change]:
    """What becomes of a job whose attempt was stopped for another state."""
    if desired is State.QUEUED:
        return Event.STOPPED, FRESH_START | Change(state=State.QUEUED)
    if desired is State.DONE:
        # People cannot ask for it: the study does whose trial the job is.
        return Event.PRUNED, finished | Change(state=State.DONE, reason=PRUNED, error=None)
    return Event.STOPPED, finished | Change(state=desired, reason=STOPPED, error=None)


def _requeued(ended: Ended, record: Record, policy: Policy, now_s: float) -> Change:
    """What a job keeps that is requeued; for one whose pod was stopped, or that never ran, the attempt does not count.

    The outlet is kept: placing.in_order goes by it. So is the copy of the code: the next attempt runs the same.
    """
    kept = Change(
        reason=ended.exit_reason or None,
        error=ended.error,
        retries=record.retries or None,
        outlet=record.outlet,
        snapshot=record.snapshot,
    )
    if ended.pod_stopped or ended.is_passing or ended.exit_reason in NOT_COUNTED:
        again = Change(backoff=record.backoff or None, requeues=record.requeues or None)
        if ended.is_passing:
            again |= Change(retry_at=now_text(now_s + _PASSING_S))
        # From then on other pods may take what waited too long in this one's queue.
        finished_at = now_text(now_s) if ended.exit_reason == QUEUE_LIMIT else None
        return kept | _furthest(ended, record) | again | Change(finished_at=finished_at)
    before = 0 if _got_further(ended, record) else record.requeues
    return kept | _backoff(ended, record, policy, now_s, quick=True) | Change(requeues=before + 1)


def _goes_back(ended: Ended, policy: Policy) -> bool:
    """Whether the end is not the job's fault and its method lets it be requeued."""
    if ended.exit_reason == PREEMPTED:
        return policy.on_preempted == REQUEUE
    return (ended.exit_reason == LOST or ended.blames_host) and policy.on_lost == REQUEUE


def _saves(ended: Ended, record: Record) -> bool:
    """Whether the attempt, or one before it, has reported a checkpoint."""
    return ended.checkpoint is not None or record.furthest_checkpoint is not None


def _got_further(ended: Ended, record: Record) -> bool:
    """Whether the attempt saved a newer checkpoint than all before it; where none reports any, reached a later step.

    What an attempt reached and did not save is lost. So the two are never compared: the first checkpoint of a job is
    further than any step, and after it steps no longer count.
    """
    if _saves(ended, record):
        return _is_beyond(ended.checkpoint, record.furthest_checkpoint)
    return _is_beyond(ended.step, record.furthest_step)


def _is_beyond(step: float | None, furthest: float | None) -> bool:
    return step is not None and (furthest is None or step > furthest)


def _furthest(ended: Ended, record: Record) -> Change:
    """The greatest step that was saved, and the greatest that was reported, by this attempt or one before it."""
    step, checkpoint = record.furthest_step, record.furthest_checkpoint
    return Change(
        furthest_step=ended.step if _is_beyond(ended.step, step) else step,
        furthest_checkpoint=ended.checkpoint if _is_beyond(ended.checkpoint, checkpoint) else checkpoint,
    )


def _backoff(ended: Ended, record: Record, policy: Policy, now_s: float, *, quick: bool) -> Change:
    """When the job may be claimed again: after a pause that doubles until an attempt gets further than the others.

    An attempt that reports neither checkpoints nor steps got further when it ran for long. `quick`: the first pause is
    a short one.
    """
    silent = ended.step is None and not _saves(ended, record)
    worth_it = _got_further(ended, record) or (silent and (ended.ran_s or 0.0) >= _USEFUL_S)
    level = 0 if worth_it else record.backoff
    if quick:
        pause_s = min(_QUICK_S, policy.backoff_s) if level == 0 else policy.backoff_s * 2.0 ** (level - 1)
    else:
        pause_s = policy.backoff_s * 2.0**level
    at = datetime.fromisoformat(now_text(now_s)) + timedelta(seconds=min(pause_s, _LONGEST_BACKOFF_S))
    return _furthest(ended, record) | Change(
        backoff=min(level + 1, _MOST_DOUBLINGS), retry_at=now_text(at.timestamp()) if pause_s > 0 else None
    )
