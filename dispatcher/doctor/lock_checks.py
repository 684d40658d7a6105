"""What one host can find out about the locks of a filesystem, and how bad it is when they do not exclude."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dispatcher.base.mounts import Mount, mount_of
from dispatcher.config import LockKind
from dispatcher.doctor.findings import OK, WARNING, WRONG, Finding, measured
from dispatcher.doctor.lock_test import LOCK_NAMES, LockTest
from dispatcher.run_state.lock_choice import hardlink_is_in_force
from dispatcher.workspace import Layout

_TIMED: Final = 30


def check_locks(layout: Layout, directory: Path, wanted: str) -> list[Finding]:
    """Tries every kind of lock on files in `directory`; `wanted` is the one that dispatcher.yaml names."""
    mount = mount_of(directory)
    test = LockTest(directory)
    found = []
    for kind, name in LOCK_NAMES.items():
        failure = test.failure(kind)
        if failure is None:
            found.append(Finding(f"{name} here", OK, "a second one is refused while the first is held"))
        else:
            found.append(not_excluding(f"{name} here", f"{failure} on {mount}", kind, layout, mount, wanted))
    if test.failure(LockKind.FLOCK) is None:
        found.append(_measure("lock latency", test.lock_and_unlock, "to lock and unlock"))
    found.append(_measure("sync latency", test.append_and_sync, "to append a line and sync it"))
    return found


def not_excluding(check: str, what: str, kind: str, layout: Layout, mount: Mount, wanted: str) -> Finding:
    """The finding about a kind of lock that does not exclude: only a warning for one that dispatchers do not use."""
    # They use flock unless they are told otherwise.
    if kind not in (LockKind.FLOCK, wanted):
        return Finding(check, WARNING, what)
    verdict = severity(layout, mount, wanted)
    return Finding(check, verdict, what, lock_cure(mount, verdict))


def severity(layout: Layout, mount: Mount, wanted: str) -> str:
    """How bad it is that kernel locks do not exclude: only a warning where the hard-link lock is used instead."""
    uses_hardlink = wanted == LockKind.HARDLINK or hardlink_is_in_force(layout)
    return WARNING if uses_hardlink and mount.fstype != "fuse.sshfs" else WRONG


def lock_cure(mount: Mount, verdict: str) -> str:
    if verdict == WARNING:
        return f"dispatchers use the hard-link lock here; faster: {mount.cure}"
    return mount.cure


def _measure(check: str, act: Callable[[], None], what: str) -> Finding:
    times_s = []
    try:
        for _ in range(_TIMED):
            start_s = time.perf_counter()
            act()
            times_s.append(time.perf_counter() - start_s)
    except OSError as error:
        return Finding(check, WRONG, f"{error.strerror} while measuring it")
    return measured(check, times_s, what)
