"""How an attempt ended, and what becomes of its entry. Pure, but for reading the end of its log."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.outlets.base import Ended
from dispatcher.pod.error_line import last_error_line, last_line
from dispatcher.run_state.edits import FRESH_START
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import Record, State

PREEMPTED: Final = "preempted"
LOST: Final = "lost"
OUT_OF_MEMORY: Final = "out of memory"
TIME_LIMIT: Final = "time limit"
SETUP: Final = "setup"
STOPPED: Final = "stopped on request"
CANNOT_START: Final = "cannot start"
REQUEUE: Final = "requeue"
_LONGEST_BACKOFF_S: Final = 3600.0
# Beyond any backoff's way to the longest one.
_MOST_DOUBLINGS: Final = 40
# The first pause of an entry that goes back: one preemption costs nothing, and nothing goes round without a pause.
_QUICK_S: Final = 1.0
# An attempt that ran so long was worth its start.
_USEFUL_S: Final = 600.0
# An attempt that is lost so soon after its start may be the fault of its host.
_SOON_S: Final = 60.0
_LOG_END: Final = 64 * 1024
# What CUDA, XLA and PyTorch print when the device's memory is used up, and what the kernel or an allocator says of
# the host's: `RESOURCE_EXHAUSTED` (XLA), `CUDA out of memory` (PyTorch), `CUDA_ERROR_OUT_OF_MEMORY` (driver).
_OOM_TEXT: Final = re.compile(
    r"RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY|out of memory|OutOfMemoryError|std::bad_alloc|\bMemoryError\b", re.I
)
_OOM_LINES: Final = 40


class _Reached(msgspec.Struct):
    step: float


_decode_step = msgspec.json.Decoder(_Reached).decode


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """When an entry is tried again by itself. `on_lost`, `on_preempted`: go back to the queue, or fail."""

    retries: int = 0
    retry_on: tuple[str, ...] = ()
    backoff_s: float = 30.0
    max_requeues: int = 20
    on_lost: str = REQUEUE
    on_preempted: str = REQUEUE


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt ended: `done`, or a failure with its reason and last error line.

    `step` is the last one in its progress.json, `checkpoint` the step in its checkpoint.json and `ran_s` how long it
    ran, where they are known. `pod_stopped`: its dispatcher was told to stop. `blames_host`: it could not be started,
    and the entry has no part in that.
    """

    exit_code: int | None
    reason: str | None = None
    error: str | None = None
    ended_at: str | None = None
    step: float | None = None
    checkpoint: float | None = None
    ran_s: float | None = None
    pod_stopped: bool = False
    blames_host: bool = False

    @property
    def is_suspicious(self) -> bool:
        """Whether the host may be to blame: no job could be started, or it died at once and told nothing."""
        at_once = self.ran_s is not None and self.ran_s < _SOON_S
        return self.blames_host or (self.reason == LOST and self.exit_code is None and at_once)


def classify(ended: Ended, log_end: str, *, oom_killed: bool = False, ran_s: float | None = None) -> Ending:
    """The reason of an end, from the exit status, what the wrapper says and the end of the log.

    `oom_killed`: the host's kernel has killed a process for want of memory while the attempt ran.
    """
    code = ended.exit_code
    if code == contract.EXIT_DONE:
        return Ending(exit_code=0, ended_at=ended.ended_at)
    if ended.reason == PREEMPTED or (code == contract.EXIT_PREEMPTED and ended.reason not in (TIME_LIMIT, SETUP)):
        # The wrapper says so when its dispatcher was stopped; a job that was told by others says it by its status.
        stopped = ended.reason == PREEMPTED
        return Ending(exit_code=code, reason=PREEMPTED, ended_at=ended.ended_at, pod_stopped=stopped, ran_s=ran_s)
    if code is None or ended.reason == "superseded":
        known = _what_is_known(ended, log_end, oom_killed, ran_s) if code is None else ended.reason
        return Ending(exit_code=code, reason=LOST, error=known, ended_at=ended.ended_at, ran_s=ran_s)
    lines = log_end.splitlines()
    # A wrapper adds 128 to the signal's number, as shells do.
    number = code - 128 if 128 < code < 128 + signal.NSIG else None
    if ended.reason:
        reason = ended.reason
    elif (number == signal.SIGKILL and oom_killed) or _says_out_of_memory(lines):
        reason = OUT_OF_MEMORY
    else:
        reason = f"exit {code}" if number is None else f"signal {number}"
    error = last_error_line(lines)
    return Ending(exit_code=code, reason=reason, error=error, ended_at=ended.ended_at, ran_s=ran_s)


def _says_out_of_memory(lines: Sequence[str]) -> bool:
    return any(_OOM_TEXT.search(line) for line in [line for line in lines if line.strip()][-_OOM_LINES:])


def _what_is_known(ended: Ended, log_end: str, oom_killed: bool, ran_s: float | None) -> str:
    """All that there is to say of an attempt that nobody saw ending."""
    lines = log_end.splitlines()
    known = [(ended.reason or "no exit status") + (f" after {_duration(ran_s)}" if ran_s is not None else "")]
    if ended.detail:
        known.append(ended.detail)
    if oom_killed:
        known.append("the kernel killed a process of this host for want of memory meanwhile")
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
        step = _decode_step(path.read_bytes()).step
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return step if math.isfinite(step) else None


def read_log_end(path: Path) -> str:
    """The last part of a log; empty when there is none."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_END))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def is_retried(reason: str, policy: Policy, used: int) -> bool:
    """Whether a failure for `reason` (`exit 1`, `signal 9`, `out of memory` ...) is tried again by itself."""
    kinds = {reason, reason.partition(" ")[0]} if re.fullmatch(r"(?:exit|signal) \d+", reason) else {reason}
    return used < policy.retries and (not policy.retry_on or bool(kinds & set(policy.retry_on)))


def after(ending: Ending, record: Record, policy: Policy, now_s: float) -> tuple[str, dict[str, Any]]:
    """The event and the changed fields of a record whose attempt has ended. `now_s`: wall clock, for the backoff."""
    finished = {
        "finished_at": ending.ended_at or now_text(now_s),
        "exit_code": ending.exit_code,
        "reason": ending.reason,
        "error": ending.error,
        "desired": None,
    }
    if record.desired is not None and not (ending.exit_code == 0 and record.desired is not State.QUEUED):
        if record.desired is State.QUEUED:
            return "stopped", {"state": State.QUEUED, **FRESH_START}
        return "stopped", {**finished, "state": record.desired, "reason": STOPPED, "error": None}
    if ending.exit_code == 0 and ending.reason is None:
        unset = dict.fromkeys(("retries", "requeues", "retry_at", "backoff", "furthest_step", "furthest_checkpoint"))
        return "done", {**finished, **unset, "state": State.DONE}
    reason = ending.reason or "unknown"
    goes_back = _goes_back(ending, policy)
    if ending.pod_stopped or (goes_back and record.requeues < policy.max_requeues):
        return "auto_requeued", {**FRESH_START, **_requeued(ending, record, policy, now_s), "state": State.QUEUED}
    if is_retried(reason, policy, record.retries):
        fields = {**finished, **_backoff(ending, record, policy, now_s, quick=False)}
        return "retried", {**fields, "state": State.QUEUED, "retries": record.retries + 1, "pid": None, "gpu": None}
    if goes_back:
        reason = f"{reason} {record.requeues + 1} times"
    return "failed", {**finished, "state": State.FAILED, "reason": reason}


def _requeued(ending: Ending, record: Record, policy: Policy, now_s: float) -> dict[str, Any]:
    """What an entry keeps that goes back to the queue; one whose pod was stopped goes on as if nothing had been."""
    kept = {"reason": ending.reason, "error": ending.error, "retries": record.retries or None}
    if ending.pod_stopped:
        again = {"backoff": record.backoff or None, "requeues": record.requeues or None}
        return {**kept, **_furthest(ending, record), **again}
    before = 0 if _got_further(ending, record) else record.requeues
    return {**kept, **_backoff(ending, record, policy, now_s, quick=True), "requeues": before + 1}


def _goes_back(ending: Ending, policy: Policy) -> bool:
    """Whether the end is not the entry's fault and its method lets it go back to the queue."""
    if ending.reason == PREEMPTED:
        return policy.on_preempted == REQUEUE
    return (ending.reason == LOST or ending.blames_host) and policy.on_lost == REQUEUE


def _saves(ending: Ending, record: Record) -> bool:
    """Whether the attempt, or one before it, has reported a checkpoint."""
    return ending.checkpoint is not None or record.furthest_checkpoint is not None


def _got_further(ending: Ending, record: Record) -> bool:
    """Whether the attempt saved a newer checkpoint than all before it; where none reports any, reached a later step.

    What an attempt reached and did not save is lost. So the two are never compared: the first checkpoint of an entry
    is further than any step, and after it steps no longer count.
    """
    if _saves(ending, record):
        return _is_beyond(ending.checkpoint, record.furthest_checkpoint)
    return _is_beyond(ending.step, record.furthest_step)


def _is_beyond(step: float | None, furthest: float | None) -> bool:
    return step is not None and (furthest is None or step > furthest)


def _furthest(ending: Ending, record: Record) -> dict[str, float | None]:
    """The greatest step that was saved, and the greatest that was reported, by this attempt or one before it."""
    step, checkpoint = record.furthest_step, record.furthest_checkpoint
    return {
        "furthest_step": ending.step if _is_beyond(ending.step, step) else step,
        "furthest_checkpoint": ending.checkpoint if _is_beyond(ending.checkpoint, checkpoint) else checkpoint,
    }


def _backoff(ending: Ending, record: Record, policy: Policy, now_s: float, *, quick: bool) -> dict[str, Any]:
    """When the entry may be claimed again: after a pause that doubles until an attempt gets further than the others.

    An attempt that reports neither checkpoints nor steps got further when it ran for long. `quick`: the first pause is
    a short one.
    """
    silent = ending.step is None and not _saves(ending, record)
    worth_it = _got_further(ending, record) or (silent and (ending.ran_s or 0.0) >= _USEFUL_S)
    level = 0 if worth_it else record.backoff
    if quick:
        pause_s = min(_QUICK_S, policy.backoff_s) if level == 0 else policy.backoff_s * 2.0 ** (level - 1)
    else:
        pause_s = policy.backoff_s * 2.0**level
    at = datetime.fromisoformat(now_text(now_s)) + timedelta(seconds=min(pause_s, _LONGEST_BACKOFF_S))
    return {
        "backoff": min(level + 1, _MOST_DOUBLINGS),
        **_furthest(ending, record),
        "retry_at": now_text(at.timestamp()) if pause_s > 0 else None,
    }
