"""What the wrapper of an attempt keeps and reports, wherever it runs: its limits, and the exit status of its job."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.times import parse_time
from dispatcher.config import Config
from dispatcher.outlets.base import CANNOT_START, Ended, Unknown
from dispatcher.workspace import AttemptPaths

# How often a wrapper checks whether its attempt was superseded.
_WATCH_S: Final = 30.0
_LIMIT: Final = re.compile(rb"^(time_limit_s|grace_s)=([0-9]{1,12})$", re.M)
# As base/devices.py: visible gives them.
_GPUS: Final = re.compile(rb"^export .*'CUDA_VISIBLE_DEVICES=([0-9]+(?:,[0-9]+)*)'", re.M)
# With which a wrapper ends that has no exit status of its job to pass on: it could not begin the job; it does not know
# how the job ended, or has run none (a twin).
DID_NOT_BEGIN: Final = 208
DOES_NOT_KNOW: Final = 209
# What an end tells of: what else is in an attempt's directory is of no use once it has ended, or the job's own affair.
# They are put on the disk in this order, because an exit status that outlives a power cut vouches for the rest.
_END_FILES: Final = (
    contract.ENTRY_FILE,
    contract.LOG_FILE,
    contract.METRICS_FILE,
    contract.CHECKPOINT_FILE,
    contract.RUN_FILE,
    contract.RESULT_FILE,
    contract.EXIT_FILE,
)
# Far more than a wrapper writes.
_LONGEST_EXIT: Final = 65536


def watch_interval_s(config: Config) -> float:
    """How often wrappers look for `superseded` and `stop`; more often where attempts count as lost sooner."""
    return max(1.0, min(_WATCH_S, config.lost_after_s / 4))


class Limits(msgspec.Struct, frozen=True):
    """`time_limit_s` 0: none. `grace_s` is from TERM to KILL."""

    time_limit_s: float = 0.0
    grace_s: float = 0.0


def read_limits(paths: AttemptPaths, default: Limits) -> Limits:
    """The limits in an attempt's wrapper, never those of today's manifest; `default` where it has none."""
    try:
        found = {name.decode(): float(number) for name, number in _LIMIT.findall(files.read_at_once(paths.wrapper))}
    except OSError:
        return default
    return Limits(found.get("time_limit_s", default.time_limit_s), found.get("grace_s", default.grace_s))


def read_gpus(paths: AttemptPaths) -> tuple[int, ...]:
    """The GPUs of its host that an attempt's wrapper gives it; none where it gives none, or cannot be read."""
    try:
        found = _GPUS.search(files.read_at_once(paths.wrapper))
    except OSError:
        return ()
    return () if found is None else tuple(map(int, found[1].split(b",")))


def read_exit(directory: Path) -> Ended | Unknown:
    """How an attempt ended by its own account; call it only when nothing of the attempt is left.

    Without an exit status there may be the signal with which a scheduler stopped it, before it was killed.

    Most scripts that are told to stop save and leave with 0. So after that 0 says only that the job has left in good
    order; that it is complete, it proves by the result that it has reported, or by EXIT_COMPLETE. Then nothing else is
    told of its end. A file that its method names as its result proves nothing: scripts write it also when they stop.
    """
    path = directory / contract.EXIT_FILE
    try:
        # Without O_NONBLOCK, opening a named pipe in its place would block.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            # Written on another host, it may be missing here until the names are fetched.
            files.refresh_names(directory)
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                # It stays so, however often one looks.
                return Ended(None, f"{path} is no file: the job has put something else in its place")
            text = os.read(fd, _LONGEST_EXIT).decode(errors="replace")
        finally:
            os.close(fd)
    except FileNotFoundError:
        return Ended(None, told_by_signal=_read_told(directory))
    except OSError as error:
        return Unknown(f"{path}: {error.strerror}")
    try:
        # Without the end of the line, the wrapper was killed while it wrote.
        ended = _ended(json.loads(text)) if text.endswith("\n") else Ended(None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Ended(None, "unreadable exit status")
    was_told = ended.exit_reason or ended.told_by_signal
    try:
        is_complete = ended.exit_code == contract.EXIT_COMPLETE or (
            ended.exit_code == contract.EXIT_DONE and bool(was_told) and has_result(directory)
        )
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")
    return msgspec.structs.replace(ended, exit_reason="", told_by_signal="") if is_complete else ended


def _read_told(directory: Path) -> str:
    try:
        word = files.read_at_once(directory / contract.TOLD_FILE).decode(errors="replace").strip()
    except OSError:
        return ""
    return word if word in ("TERM", "INT") else ""


def _ended(status: dict[str, Any]) -> Ended:
    """What the content of exit.json says; raises for what no wrapper writes."""
    reason, told_by = str(status.get("reason", "")), str(status.get("signal", ""))
    worker = int(status.get("worker", 0))
    if status["exit_code"] is None and reason == CANNOT_START:
        return msgspec.structs.replace(did_not_begin(str(status.get("error", ""))), worker=worker)
    code = int(status["exit_code"])
    ended_at = str(status["ended_at"])
    begun_s = _begun_s(ended_at, status.get("ran_s"))
    return Ended(code, reason, ended_at, told_by_signal=told_by, worker=worker, begun_s=begun_s)


def has_result(directory: Path) -> bool:
    """Whether an attempt has left a `result.json` that is not empty. Raises OSError where that cannot be told now."""
    try:
        found = os.stat(directory / contract.RESULT_FILE)
    except OSError as error:
        if files.is_passing(error):
            raise
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size > 0


def sync_end(directory: Path, own: Sequence[str]) -> None:
    """Put what the end of an attempt tells of on the disk, the script's own files first. Raises OSError."""
    for path in (directory / name for name in own):
        try:
            files.sync_files(path.parent, [path.name])
        except OSError as error:
            # What cannot be read for good holds nothing back: collect_result has said so.
            if files.is_passing(error):
                raise
    files.sync_files(directory, _END_FILES)


def did_not_begin(why: str) -> Ended:
    """The end of an attempt whose wrapper could not begin the job; where it cannot say why, it could not write that."""
    is_passing = not why or any(os.strerror(number) in why for number in files.PASSING)
    error = why or "its wrapper could not begin the job"
    return Ended(None, CANNOT_START, error=error, blames_host=not is_passing, is_passing=is_passing)


def _begun_s(ended_at: str, ran_s: object) -> float | None:
    """When it began by the clock of its end, in seconds since 1970; None where an older wrapper does not tell."""
    ended_s = parse_time(ended_at)
    if ended_s is None or not isinstance(ran_s, (int, float)) or not 0 <= ran_s <= ended_s:
        return None
    return ended_s - ran_s
