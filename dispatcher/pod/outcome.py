"""How an attempt ended, and what becomes of its entry. Pure, but for reading the end of its log."""

from __future__ import annotations

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
_LONGEST_BACKOFF_S: Final = 3600.0
_LOG_END: Final = 64 * 1024
_ERROR_WIDTH: Final = 300
# What CUDA, XLA and PyTorch print when the device's memory is used up, and what the kernel or an allocator says of
# the host's: `RESOURCE_EXHAUSTED` (XLA), `CUDA out of memory` (PyTorch), `CUDA_ERROR_OUT_OF_MEMORY` (driver).
_OOM_TEXT: Final = re.compile(
    r"RESOURCE_EXHAUSTED|CUDA_ERROR_OUT_OF_MEMORY|out of memory|OutOfMemoryError|std::bad_alloc|\bMemoryError\b", re.I
)
_OOM_LINES: Final = 40


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """When an entry is tried again by itself."""

    retries: int = 0
    retry_on: tuple[str, ...] = ()
    backoff_s: float = 30.0
    max_returns: int = 20


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt ended: `done`, or a failure with its reason and last error line."""

    exit_code: int | None
    reason: str | None = None
    error: str | None = None
    ended_at: str | None = None


def classify(ended: Ended, log_end: str, *, oom_killed: bool = False) -> Ending:
    """The reason of an end, from the exit status, what the wrapper says and the end of the log.

    `oom_killed`: the host's kernel has killed a process for want of memory while the attempt ran.
    """
    code = ended.exit_code
    if code == contract.EXIT_DONE:
        return Ending(exit_code=0, ended_at=ended.ended_at)
    if ended.reason == PREEMPTED or (code == contract.EXIT_PREEMPTED and ended.reason not in (TIME_LIMIT, SETUP)):
        return Ending(exit_code=code, reason=PREEMPTED, ended_at=ended.ended_at)
    if code is None or ended.reason == "superseded":
        return Ending(exit_code=code, reason=LOST, error=ended.reason or None, ended_at=ended.ended_at)
    lines = [line.strip() for line in log_end.splitlines() if line.strip()]
    # A wrapper adds 128 to the signal's number, as shells do.
    number = code - 128 if 128 < code < 128 + signal.NSIG else None
    if ended.reason:
        reason = ended.reason
    elif (number == signal.SIGKILL and oom_killed) or any(_OOM_TEXT.search(line) for line in lines[-_OOM_LINES:]):
        reason = OUT_OF_MEMORY
    else:
        reason = f"exit {code}" if number is None else f"signal {number}"
    return Ending(exit_code=code, reason=reason, error=last_error_line(lines), ended_at=ended.ended_at)


def last_error_line(lines: Sequence[str]) -> str | None:
    """The line that says what went wrong: the last that looks like an error, else the last of all."""
    if not lines:
        return None
    for line in reversed(lines[-50:]):
        if re.match(r"(?:\S*(?:Error|Exception|Interrupt)\b.*|.*\b(?:error|fatal|panic)\b.*)", line, re.I):
            return line[:_ERROR_WIDTH]
    return lines[-1][:_ERROR_WIDTH]


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
        "want": None,
    }
    if record.want is not None and not (ending.exit_code == 0 and record.want is not State.QUEUED):
        if record.want is State.QUEUED:
            return "stopped", {"state": State.QUEUED, **FRESH_START}
        return "stopped", {**finished, "state": record.want, "reason": STOPPED, "error": None}
    if ending.exit_code == 0 and ending.reason is None:
        return "done", {**finished, "state": State.DONE, "retries": None, "returns": None, "retry_at": None}
    reason = ending.reason or "unknown"
    if reason in (PREEMPTED, LOST) and record.returns < policy.max_returns:
        fields = {**FRESH_START, "state": State.QUEUED, "reason": reason, "retries": record.retries or None}
        return "returned", {**fields, "returns": record.returns + 1}
    if is_retried(reason, policy, record.retries):
        pause_s = min(policy.backoff_s * 2**record.retries, _LONGEST_BACKOFF_S)
        at = datetime.fromisoformat(now_text(now_s)) + timedelta(seconds=pause_s)
        fields = {**finished, "state": State.QUEUED, "retries": record.retries + 1, "pid": None, "gpu": None}
        return "retried", {**fields, "retry_at": now_text(at.timestamp()) if pause_s > 0 else None}
    if reason in (PREEMPTED, LOST):
        reason = f"{reason} {record.returns + 1} times"
    return "failed", {**finished, "state": State.FAILED, "reason": reason}
