"""What each of two hosts sees of the files and directories of the other, and how late."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.doctor.findings import OK, WRONG, Finding, Findings, measured
from dispatcher.doctor.meeting import PeerGoneError
from dispatcher.doctor.pair import Pair

_RACES: Final = 100
_ROUNDS: Final = 8
_PAUSE_S: Final = 0.03
_WAIT_S: Final = 30.0
_LOOK_S: Final = 0.001
_OLD_STAT_S: Final = 10.0
_OLD_STAT_LOOK_S: Final = 0.01
_SETTLE_S: Final = 0.5


def mkdir_race(pair: Pair) -> Findings:
    """Both make the same directories. At most one may win each, because mkdir is the second fence of a claim.

    On GlusterFS now and then neither does: both are told that the directory exists, and it does, or is not there when
    one looks again (seen with 10.3: two of 1,000 that were made within the same millisecond). A claim without a winner
    is made again; nothing runs twice.
    """
    base = pair.directory / "race"
    os.makedirs(base, exist_ok=True)
    pair.sync()
    won = []
    for number in range(_RACES):
        with contextlib.suppress(FileExistsError):
            os.mkdir(base / str(number))
            won.append(number)
    theirs = pair.meeting.swap(won=won)["won"]
    both, made = set(won) & set(theirs), set(won) | set(theirs)
    # By name, a list of names may be older; and as long as this filesystem may show what was before.
    until_s = time.monotonic() + pair.mount.old_content_s
    while (missing := sum(not (base / str(number)).is_dir() for number in made)) and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)
    if both:
        what = f"{len(both)} of {_RACES} directories were made by both hosts on {pair.mount}"
        yield Finding("mkdir race", WRONG, what, "do not use this filesystem from several hosts")
    elif missing:
        what = f"{missing} of {len(made)} directories that one of two hosts has made are missing on {pair.mount}"
        yield Finding("mkdir race", WRONG, what, "do not use this filesystem from several hosts")
    else:
        fewer, more = sorted((len(won), len(theirs)))
        neither = _RACES - len(made)
        what = f"never did both hosts make one of {_RACES} directories ({fewer} and {more})"
        yield Finding("mkdir race", OK, f"{what}; {neither} appeared to both as made by the other" if neither else what)


def renames_and_appends(pair: Pair) -> Findings:
    renamed = _ping_pong(pair, "renamed", lambda path, size: files.replace_file(path, b"x" * size, durable=False))
    yield measured("rename seen", renamed, "until the other host sees a new file under an old name")
    appended = _ping_pong(pair, "appended", lambda path, _: _append(path))
    yield measured("append seen", appended, "until the other host sees a line that was appended and synced")


def _ping_pong(pair: Pair, name: str, change: Callable[[Path, int], None]) -> list[float]:
    """Seconds until a change is seen, from there and back again, by one clock.

    Each host has a directory of its own and stamps it after a change: on NFSv3 a host may never see the second of two
    changes of a directory within a tick of the server's clock. A tick is shorter than the pause before each change.
    """
    mine, theirs = (pair.directory / f"{who.id}-changes" / name for who in (pair.meeting.me, pair.meeting.peer))
    os.makedirs(mine.parent, exist_ok=True)
    pair.sync()
    times_s = []
    for number in range(1, _ROUNDS + 1):
        time.sleep(_PAUSE_S)
        start_s = time.perf_counter()
        if pair.leads:
            change(mine, number)
            files.stamp(mine.parent)
        _await_size(pair, theirs, number)
        if not pair.leads:
            time.sleep(_PAUSE_S)
            change(mine, number)
            files.stamp(mine.parent)
        times_s.append((time.perf_counter() - start_s - _PAUSE_S) / 2)
    return pair.times_of_leader(times_s)


def _await_size(pair: Pair, path: Path, size: int) -> None:
    end_s = time.monotonic() + _WAIT_S
    while len(files.read_fresh(path) or b"") < size:
        if time.monotonic() > end_s:
            raise PeerGoneError(f"{path}: a change by {pair.there} was not seen for {_WAIT_S:g} s")
        time.sleep(_LOOK_S)


def _append(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, b"x")
        os.fsync(fd)
    finally:
        os.close(fd)


def attribute_cache(pair: Pair) -> Findings:
    """For how long a plain stat() shows a file that the other host has replaced."""
    seconds = _old_stat_s(pair)
    shown = f"at least {_OLD_STAT_S:g} s" if seconds is None else f"{seconds:.1f} s"
    what = f"stat() without opening the directory shows the old file for {shown}; dispatchers do not rely on it"
    yield Finding("attribute cache", OK, what, "", _OLD_STAT_S if seconds is None else seconds, "s")


def _old_stat_s(pair: Pair) -> float | None:
    """None when longer than _OLD_STAT_S."""
    path = pair.directory / "cached"
    if pair.leads:
        files.replace_file(path, b"old", durable=False)
    pair.sync()
    old_inode = os.stat(path).st_ino
    pair.sync()
    if pair.leads:
        # The other host must have stopped looking into the directory, which would show it everything.
        time.sleep(_SETTLE_S)
        files.replace_file(path, b"new", durable=False)
        pair.meeting.send()
        seconds = pair.meeting.receive()["seconds"]
        return None if seconds is None else max(0.0, float(seconds) - _SETTLE_S)
    # Not by `receive`, which opens the directory and would end what is measured.
    start_s = time.perf_counter()
    seen_s: float | None = None
    while seen_s is None and time.perf_counter() - start_s < _OLD_STAT_S:
        time.sleep(_OLD_STAT_LOOK_S)
        with contextlib.suppress(OSError):
            seen_s = None if os.stat(path).st_ino == old_inode else time.perf_counter() - start_s
    pair.meeting.receive()
    pair.meeting.send(seconds=seen_s)
    return None if seen_s is None else max(0.0, seen_s - _SETTLE_S)
