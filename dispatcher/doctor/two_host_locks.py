"""Whether locks exclude between two hosts, how fast they change hands, and whether transactions lose nothing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dispatcher.config import LockKind
from dispatcher.doctor.findings import OK, WRONG, Finding, Findings, measured
from dispatcher.doctor.lock_checks import not_excluding
from dispatcher.doctor.lock_test import LOCK_NAMES, can_lock, held, reason
from dispatcher.doctor.meeting import PeerGoneError
from dispatcher.doctor.pair import Pair
from dispatcher.errors import DispatcherError
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_TRIES: Final = 20
_TRY_PAUSE_S: Final = 0.02
_ROUNDS: Final = 8
_WAIT_S: Final = 30.0
_WAIT_PAUSE_S: Final = 0.0005
_TRANSACTIONS: Final = 40


def exclusion(pair: Pair) -> Findings:
    """Each kind of lock: the leader holds it, and the other host tries to take it."""
    for kind, name in LOCK_NAMES.items():
        problem = _not_exclusive(pair, kind)
        if problem:
            what = f"{problem} on {pair.mount}"
            yield not_excluding(f"{name} between hosts", what, kind, pair.layout, pair.mount, pair.wanted)
        else:
            pair.excluding.append(kind)
            yield Finding(f"{name} between hosts", OK, "refused on one host while held on the other")


def _not_exclusive(pair: Pair, kind: str) -> str:
    path = pair.directory / kind
    problem = ""
    with contextlib.ExitStack() as stack:
        if pair.leads:
            problem = _lock_problem(pair, kind, lambda: stack.enter_context(held(kind, path)))
        problem = pair.agree(problem)
        if not problem and not pair.leads:
            problem = _lock_problem(pair, kind, lambda: _expect_refusal(kind, path))
        return pair.agree(problem)


class _GrantedError(Exception):
    """A lock was granted that should have been refused."""


def _expect_refusal(kind: str, path: Path) -> None:
    for _ in range(_TRIES):
        if can_lock(kind, path):
            raise _GrantedError(f"{LOCK_NAMES[kind]} is granted on both hosts at once")
        time.sleep(_TRY_PAUSE_S)


def _lock_problem(pair: Pair, kind: str, act: Callable[[], object]) -> str:
    try:
        act()
    except _GrantedError as error:
        return str(error)
    except (OSError, DispatcherError) as error:
        return f"{LOCK_NAMES[kind]} fails with {reason(error)} on {pair.here}"
    return ""


def hand_over(pair: Pair) -> Findings:
    """From a release to the grant on the other host: there by one lock and back by another, by one clock."""
    if LockKind.FLOCK not in pair.excluding:
        return
    times_s = []
    for number in range(_ROUNDS):
        there, back = pair.directory / f"there-{number}", pair.directory / f"back-{number}"
        lock = _lock_when_free(LockKind.FLOCK, there if pair.leads else back)
        pair.sync()
        start_s = time.perf_counter()
        if pair.leads:
            lock.close()
            _lock_when_free(LockKind.FLOCK, back).close()
            times_s.append((time.perf_counter() - start_s) / 2)
        else:
            taken = _lock_when_free(LockKind.FLOCK, there)
            lock.close()
            taken.close()
    yield measured("hand-over", pair.times_of_leader(times_s), "from a release to the lock on the other host")


def _lock_when_free(kind: str, path: Path) -> contextlib.ExitStack:
    """Take a lock as soon as it is free; closing the result releases it."""
    end_s = time.monotonic() + _WAIT_S
    stack = contextlib.ExitStack()
    while True:
        try:
            stack.enter_context(held(kind, path))
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise PeerGoneError(f"{path}: held by the other host for {_WAIT_S:g} s") from None
            time.sleep(_WAIT_PAUSE_S)
        else:
            return stack


def transactions(pair: Pair) -> Findings:
    """The real thing: both hosts change the run state of a new workspace in turn, as fast as they can."""
    kinds = [kind for kind in (pair.wanted, LockKind.FLOCK, LockKind.HARDLINK) if kind in pair.excluding]
    if not kinds or pair.mount.fstype == "fuse.sshfs":
        return
    layout = Layout(pair.directory / "workspace")
    os.makedirs(layout.root, exist_ok=True)
    store = Store(layout, by=pair.meeting.me.id, lock=kinds[0])
    pair.sync()
    took_s, problem = _change_alternately(store, pair.meeting.me.id)
    problem = pair.agree(problem)
    if not problem:
        with contextlib.suppress(DispatcherError):
            store.refresh(to_the_end=True)
        kept = min(len(store.records), int(pair.meeting.swap(kept=len(store.records))["kept"]))
        if kept != 2 * _TRANSACTIONS:
            problem = f"of {2 * _TRANSACTIONS} changes by two hosts only {kept} are seen by both on {pair.mount}"
    store.close()
    if problem:
        yield Finding("transactions", WRONG, problem, pair.mount.cure)
        return
    each_ms = 1000 * took_s / _TRANSACTIONS
    what = f"none of {2 * _TRANSACTIONS} changes was lost ({kinds[0]}); {each_ms:.1f} ms each while both hosts write"
    yield Finding("transactions", OK, what, "", each_ms, "ms")


def _change_alternately(store: Store, name: str) -> tuple[float, str]:
    """Seconds that it took, and what went wrong."""
    start_s = time.perf_counter()
    try:
        for number in range(_TRANSACTIONS):
            with store.transaction(timeout_s=_WAIT_S) as tx:
                tx.change(f"{name}-{number}", Event.QUEUED, Change(state=State.QUEUED))
    except DispatcherError as error:
        return 0.0, str(error)
    return time.perf_counter() - start_s, ""
