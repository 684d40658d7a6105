"""What the wrapper of an attempt keeps and reports, wherever it runs: its limits, and the exit status of its job."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Final

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.base.times import parse_time
from dispatcher.config import Config
from dispatcher.outlets.base import Ended, Unknown
from dispatcher.workspace import AttemptPaths

# How often a wrapper checks whether its attempt was superseded.
WATCH_S: Final = 30.0
_LIMIT: Final = re.compile(rb"^(time_limit_s|grace_s)=([0-9]{1,12})$", re.M)
# Far more than a wrapper writes.
_LONGEST_EXIT: Final = 65536


def watch_interval_s(config: Config) -> float:
    """How often wrappers look for `superseded`; more often where attempts count as lost sooner."""
    return max(1.0, min(WATCH_S, config.lost_after_s / 4))


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


def read_exit(directory: Path) -> Ended | Unknown:
    """How an attempt ended by its own account; call it only when nothing of the attempt is left."""
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
        return Ended(None)
    except OSError as error:
        return Unknown(f"{path}: {error.strerror}")
    if not text.endswith("\n"):
        # The wrapper was killed while it wrote.
        return Ended(None)
    try:
        status = json.loads(text)
        reason, told_by = str(status.get("reason", "")), str(status.get("signal", ""))
        code, worker = int(status["exit_code"]), int(status.get("worker", 0))
        ended_at = str(status["ended_at"])
        begun_s = _begun_s(ended_at, status.get("ran_s"))
        return Ended(code, reason, ended_at, told_by_signal=told_by, worker=worker, begun_s=begun_s)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Ended(None, "unreadable exit status")


def _begun_s(ended_at: str, ran_s: object) -> float | None:
    """When it began by the clock of its end, in seconds since 1970; None where an older wrapper does not tell."""
    ended_s = parse_time(ended_at)
    if ended_s is None or not isinstance(ran_s, (int, float)) or not 0 <= ran_s <= ended_s:
        return None
    return ended_s - ran_s
