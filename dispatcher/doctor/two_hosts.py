"""What only two hosts together can prove: that locks exclude, and that each sees what the other has written.

Both doctors run the same steps at the same time and tell each other what came out, so that both report the same.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.doctor.checks import OK, UNKNOWN, WARNING, WRONG, Finding, lock_cure, severity
from dispatcher.doctor.lock_test import LOCK_NAMES, can_lock, held, reason
from dispatcher.doctor.meeting import Meeting, PeerGoneError
from dispatcher.errors import DispatcherError, LockError
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_TRIES: Final = 20
_TRY_PAUSE_S: Final = 0.02
_SPIN_S: Final = 30.0
_ROUNDS: Final = 8
_RACES: Final = 100
_TRANSACTIONS: Final = 40
_OLD_STAT_S: Final = 10.0
_SETTLE_S: Final = 0.5
_PAUSE_S: Final = 0.03
_MUCH_SKEW_S: Final = 2.0


def prove_together(meeting: Meeting, layout: Layout, wanted: str) -> list[Finding]:
    """All proofs and measurements with the doctor of another host."""
    proof = _Proof(meeting, layout, wanted)
    found = [Finding("other host", OK, f"{meeting.peer.host} answers")]
    try:
        with meeting.here():
            for finding in proof.run():
                found.append(finding)
            meeting.end()
    except PeerGoneError as error:
        meeting.remove()
        found.append(Finding("other host", UNKNOWN, str(error), "run `dispatcher doctor` on both hosts again"))
    return found


def not_proved(layout: Layout, wait_s: float) -> list[Finding]:
    """What one doctor alone has to leave open."""
    mount = mount_of(layout.root)
    if not mount.is_network:
        return [Finding("other hosts", OK, f"none can see {mount.point} ({mount.fstype}): nothing to prove")]
    what = f"no doctor of another host came within {wait_s:g} s: that locks exclude and both see the same is not proved"
    return [Finding("other hosts", UNKNOWN, what, "run `dispatcher doctor` on two hosts at the same time")]


class _Proof:
    def __init__(self, meeting: Meeting, layout: Layout, wanted: str) -> None:
        self._meeting = meeting
        self._directory = meeting.directory
        self._mount = mount_of(meeting.directory)
        self._lying = severity(layout, self._mount, wanted)
        self._wanted = wanted

    def run(self) -> Iterator[Finding]:
        yield self._clock_skew()
        excluding = []
        for kind, name in LOCK_NAMES.items():
            why = self._why_not_exclusive(kind)
            if why is None:
                excluding.append(kind)
                yield Finding(f"{name} between hosts", OK, "refused on one host while held on the other")
            else:
                used = kind in ("flock", self._wanted)
                verdict, cure = (self._lying, lock_cure(self._mount, self._lying)) if used else (WARNING, "")
                yield Finding(f"{name} between hosts", verdict, f"{why} on {self._mount}", cure)
        if "flock" in excluding:
            yield self._measured("hand-over", self._hand_over("flock"), "from a release to the lock on the other host")
        yield self._mkdir_race()
        yield from self._views()
        kinds = [kind for kind in (self._wanted, "flock", "hardlink") if kind in excluding]
        if kinds and self._mount.fstype != "fuse.sshfs":
            yield self._transactions(kinds[0])

    # Locks.

    def _why_not_exclusive(self, kind: str) -> str | None:
        """Why a lock that one host holds does not keep the other away; None when it does. Both get the same answer."""
        path = self._directory / kind
        problem = ""
        with contextlib.ExitStack() as stack:
            if self._meeting.leads:
                problem = self._problem(lambda: stack.enter_context(held(kind, path)), kind)
            problem = self._swap(problem) or problem
            if not problem and not self._meeting.leads:
                problem = self._problem(lambda: self._try(kind, path), kind)
            problem = self._swap(problem) or problem
        return problem or None

    def _try(self, kind: str, path: Path) -> None:
        for _ in range(_TRIES):
            if can_lock(kind, path):
                raise _GrantedError(f"{LOCK_NAMES[kind]} is granted on both hosts at once")
            time.sleep(_TRY_PAUSE_S)

    def _problem(self, act: Callable[[], object], kind: str) -> str:
        try:
            act()
        except _GrantedError as error:
            return str(error)
        except (OSError, LockError) as error:
            return f"{LOCK_NAMES[kind]} fails with {reason(error)} on {self._meeting.me.host}"
        return ""

    def _swap(self, problem: str) -> str:
        return str(self._meeting.swap(problem=problem)["problem"])

    def _hand_over(self, kind: str) -> list[float]:
        """Seconds from a release to the grant on the other host: there by one lock, back by another, by one clock."""
        times = []
        for number in range(_ROUNDS):
            there, back = self._directory / f"there-{number}", self._directory / f"back-{number}"
            lock = _spin(kind, there if self._meeting.leads else back)
            self._meeting.swap()
            begun = time.perf_counter()
            if self._meeting.leads:
                lock.__exit__(None, None, None)
                _spin(kind, back).__exit__(None, None, None)
                times.append((time.perf_counter() - begun) / 2)
            else:
                taken = _spin(kind, there)
                lock.__exit__(None, None, None)
                taken.__exit__(None, None, None)
        return self._of_the_leader(times)

    # What each sees of the other.

    def _mkdir_race(self) -> Finding:
        base = self._directory / "race"
        os.makedirs(base, exist_ok=True)
        self._meeting.swap()
        won = []
        for number in range(_RACES):
            with contextlib.suppress(FileExistsError):
                os.mkdir(base / str(number))
                won.append(number)
        theirs = self._meeting.swap(won=won)["won"]
        both = set(won) & set(theirs)
        if both:
            what = f"{len(both)} of {_RACES} directories were made by both hosts on {self._mount}"
            return Finding("mkdir race", WRONG, what, "do not use this filesystem from several hosts")
        if len(won) + len(theirs) < _RACES:
            return Finding("mkdir race", WRONG, f"some of {_RACES} directories were made by nobody on {self._mount}")
        mine, others = sorted((len(won), len(theirs)))
        return Finding("mkdir race", OK, f"exactly one host made each of {_RACES} directories ({mine} and {others})")

    def _views(self) -> Iterator[Finding]:
        renamed = self._ping_pong("renamed", lambda path, n: files.replace_file(path, b"x" * n, durable=False))
        yield self._measured("rename seen", renamed, "until the other host sees a new file under an old name")
        appended = self._ping_pong("appended", lambda path, _: _append(path))
        yield self._measured("append seen", appended, "until the other host sees a line that was appended and synced")
        seconds = self._old_stat()
        shown = f"at least {_OLD_STAT_S:g} s" if seconds is None else f"{seconds:.1f} s"
        what = f"stat() without opening the directory shows the old file for {shown}; dispatchers do not rely on it"
        yield Finding("attribute cache", OK, what, "", _OLD_STAT_S if seconds is None else seconds, "s")

    def _ping_pong(self, name: str, change: Callable[[Path, int], None]) -> list[float]:
        """Seconds until a change is seen, from there and back again, by one clock.

        Each host has a directory of its own and stamps it after a change: on NFSv3 a host may never see the second of
        two changes of a directory within a tick of the server's clock. That takes less time than the pause before.
        """
        mine, theirs = (self._directory / f"{who.id}-changes" / name for who in (self._meeting.me, self._meeting.peer))
        os.makedirs(mine.parent, exist_ok=True)
        self._meeting.swap()
        times = []
        for number in range(1, _ROUNDS + 1):
            time.sleep(_PAUSE_S)
            begun = time.perf_counter()
            if self._meeting.leads:
                change(mine, number)
                files.stamp(mine.parent)
            self._await_size(theirs, number)
            if not self._meeting.leads:
                time.sleep(_PAUSE_S)
                change(mine, number)
                files.stamp(mine.parent)
            times.append((time.perf_counter() - begun - _PAUSE_S) / 2)
        return self._of_the_leader(times)

    def _await_size(self, path: Path, size: int) -> None:
        end_s = time.monotonic() + _SPIN_S
        while len(files.read_fresh(path) or b"") < size:
            if time.monotonic() > end_s:
                raise PeerGoneError(f"{path}: a change by {self._meeting.peer.host} was not seen for {_SPIN_S:g} s")
            time.sleep(0.001)

    def _old_stat(self) -> float | None:
        """Seconds for which a plain stat() goes on showing a file that was replaced; None when longer than we wait."""
        path = self._directory / "cached"
        if self._meeting.leads:
            files.replace_file(path, b"old", durable=False)
        self._meeting.swap()
        old = os.stat(path).st_ino
        self._meeting.swap()
        if self._meeting.leads:
            # The other host must have stopped looking into the directory, which makes it see everything.
            time.sleep(_SETTLE_S)
            files.replace_file(path, b"new", durable=False)
            self._meeting.send()
            seconds = self._meeting.receive()["seconds"]
            return None if seconds is None else max(0.0, float(seconds) - _SETTLE_S)
        # Not by `receive`, which opens the directory: that would end what is measured.
        begun = time.perf_counter()
        seen: float | None = None
        while seen is None and time.perf_counter() - begun < _OLD_STAT_S:
            time.sleep(0.01)
            with contextlib.suppress(OSError):
                seen = None if os.stat(path).st_ino == old else time.perf_counter() - begun
        self._meeting.receive()
        self._meeting.send(seconds=seen)
        return None if seen is None else max(0.0, seen - _SETTLE_S)

    def _transactions(self, kind: str) -> Finding:
        """The real thing: both hosts change one run state of their own in turn, as fast as they can."""
        layout = Layout(self._directory / "workspace")
        os.makedirs(layout.root, exist_ok=True)
        store = Store(layout, by=self._meeting.me.id, lock=kind)
        problem, took_s = "", 0.0
        self._meeting.swap()
        try:
            begun = time.perf_counter()
            for number in range(_TRANSACTIONS):
                with store.transaction(timeout_s=_SPIN_S) as tx:
                    tx.change(f"{self._meeting.me.id}-{number}", Event.QUEUED, Change(state=State.QUEUED))
            took_s = time.perf_counter() - begun
        except DispatcherError as error:
            problem = str(error)
        problem = self._swap(problem) or problem
        if not problem:
            with contextlib.suppress(DispatcherError):
                store.refresh(to_the_end=True)
            kept = min(len(store.records), int(self._meeting.swap(kept=len(store.records))["kept"]))
            if kept != 2 * _TRANSACTIONS:
                problem = f"of {2 * _TRANSACTIONS} changes by two hosts only {kept} are seen by both on {self._mount}"
        store.close()
        if problem:
            return Finding("transactions", WRONG, problem, self._mount.cure)
        milliseconds = 1000 * took_s / _TRANSACTIONS
        what = (
            f"none of {2 * _TRANSACTIONS} changes was lost ({kind}); {milliseconds:.1f} ms each with both hosts at it"
        )
        return Finding("transactions", OK, what, "", milliseconds, "ms")

    # Clocks.

    def _clock_skew(self) -> Finding:
        best_s, skew_s = float("inf"), 0.0
        for _ in range(_ROUNDS):
            if self._meeting.leads:
                sent = time.time()
                self._meeting.send()
                answer = self._meeting.receive()["at"]
                back = time.time()
                if back - sent < best_s:
                    best_s, skew_s = back - sent, answer - (sent + back) / 2
            else:
                self._meeting.receive()
                self._meeting.send(at=time.time())
        theirs = self._meeting.swap(skew_s=skew_s, best_s=best_s if self._meeting.leads else 0.0)
        if not self._meeting.leads:
            best_s, skew_s = theirs["best_s"], -theirs["skew_s"]
        ahead = "ahead" if skew_s > 0 else "behind"
        what = (
            f"the clock of {self._meeting.peer.host} is {abs(skew_s):.2f} s {ahead} (give or take {best_s / 2:.2f} s)"
        )
        if abs(skew_s) - best_s / 2 > _MUCH_SKEW_S:
            cure = "switch on NTP: nothing else depends on clocks, but times in tables are wrong"
            return Finding("clock skew", WARNING, what, cure, skew_s, "s")
        return Finding("clock skew", OK, what, "", skew_s, "s")

    # Helpers.

    def _of_the_leader(self, times: list[float]) -> list[float]:
        theirs = self._meeting.swap(times=times)["times"]
        return times if self._meeting.leads else list(theirs)

    def _measured(self, check: str, times: list[float], what: str) -> Finding:
        median = 1000 * statistics.median(times)
        return Finding(
            check, OK, f"{median:.1f} ms {what} (worst of {len(times)}: {1000 * max(times):.0f} ms)", "", median, "ms"
        )


class _GrantedError(Exception):
    """A lock that should have been refused."""


def _spin(kind: str, path: Path) -> AbstractContextManager[Any]:
    """Take a lock as soon as it is free."""
    end_s = time.monotonic() + _SPIN_S
    while True:
        lock = held(kind, path)
        try:
            lock.__enter__()
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise PeerGoneError(f"{path}: held by the other host for {_SPIN_S:g} s") from None
            time.sleep(0.0005)
        else:
            return lock


def _append(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, b"x")
        os.fsync(fd)
    finally:
        os.close(fd)
