"""The hard-link lock: a holder that is gone is cleared, and one that is merely slow does no harm."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest

from dispatcher.errors import LockLostError, LockTimeoutError, StorageError
from dispatcher.run_state import hardlink_lock, journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def store(layout: Layout, by: str, lost_after_s: float = 600) -> Store:
    return Store(layout, by=by, lock="hardlink", lost_after_s=lost_after_s)


@pytest.fixture
def another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell whether the owner of a claim lives."""
    monkeypatch.setattr(hardlink_lock, "owner_is_gone", lambda *_: False)


class RecordLostError(Exception):
    """As filelock's own for a record that another process took for a leftover."""

    __module__ = "filelock._strict"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ESTALE, "Stale file handle"),
        ExceptionGroup("cleanup failed", [RecordLostError(), OSError(errno.ESTALE, "Stale file handle")]),
    ],
)
def test_a_race_for_a_name_is_tried_again(layout: Layout, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    fail_once(monkeypatch, error)
    with store(layout, "pod").transaction(timeout_s=10) as tx:
        tx.change("job", Event.QUEUED, Change(state=State.QUEUED))


def test_a_disk_that_is_full_is_said_also_from_within_a_group(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    fail_once(monkeypatch, ExceptionGroup("cleanup failed", [RecordLostError(), full]))
    with pytest.raises(StorageError, match=r"taking the hard-link lock .*No space left"):
        store(layout, "pod").transaction(timeout_s=10).__enter__()


def fail_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    take = filelock.StrictSoftFileLock.acquire
    errors = [error]

    def acquire(*words: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return take(*words, **options)

    monkeypatch.setattr(filelock.StrictSoftFileLock, "acquire", acquire)


def test_a_live_holder_is_waited_for(layout: Layout) -> None:
    quick = store(layout, "quick").transaction(timeout_s=0.2)
    with (
        store(layout, "slow").transaction(),
        pytest.raises(LockTimeoutError, match=r"by another process .* \(pid"),
        quick,
    ):
        pass


def test_waiting_goes_on_with_other_things(layout: Layout) -> None:
    quick, slow = store(layout, "quick"), contextlib.ExitStack()
    beats = itertools.count(1)
    # The lock is free only when it has gone on three times.
    quick.while_waiting = lambda: slow.close() if next(beats) == 3 else None
    slow.enter_context(store(layout, "slow").transaction())
    with quick.transaction(timeout_s=60):
        assert next(beats) > 3


def test_a_holder_of_this_host_that_was_killed_holds_nobody_up(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may remove its claim at the same moment."""
    code = "with hold.store(hold.Layout(sys.argv[1]), 'doomed').transaction(): print(1, flush=True), input()"
    here = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys, test_hard_link_lock as hold\n{code}", layout.root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=here,
    ) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == b"1\n"
        doomed.kill()
    remove = filelock.StrictSoftFileLock.force_break
    monkeypatch.setattr(filelock.StrictSoftFileLock, "force_break", lambda *words: (remove(*words), remove(*words)))
    with store(layout, "next").transaction(timeout_s=10) as tx:
        tx.change("next", Event.QUEUED, Change(state=State.QUEUED))


def test_a_holder_that_nobody_knows_loses_the_lock_and_can_write_no_more(layout: Layout, another_host: None) -> None:
    slow, quick = store(layout, "slow", 1.0), store(layout, "quick", 1.0)
    with slow.transaction() as tx:
        tx.change("before", Event.QUEUED, Change(state=State.QUEUED))

    def be_late() -> None:
        with slow.transaction() as tx:
            tx.change("late", Event.QUEUED, Change(state=State.QUEUED))
            with quick.transaction(timeout_s=30) as other:
                other.change("quick", Event.QUEUED, Change(state=State.QUEUED))

    with pytest.raises(LockLostError, match="others may have taken it since"):
        be_late()
    assert journal.generations_in_force(layout) == [1, 2], "what it may still write goes to a file that nobody reads"
    for one in (slow, quick):
        with one.transaction():
            assert list(one.records) == ["before", "quick"]
    assert [line.seq for line in journal.history(layout)] == [1, 2]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[filelock.StrictSoftFileLock, subprocess.Popen[str]]]:
    """A process that holds a hard-link lock, and the lock as another process sees it."""
    path = tmp_path / "lock"
    code = "import sys, filelock; lock = filelock.StrictSoftFileLock(sys.argv[1]); lock.acquire(); print(1, flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code + "; input()", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield filelock.StrictSoftFileLock(path), process
        process.kill()


def test_the_owner_of_a_claim_is_gone_only_when_that_is_certain(
    holder: tuple[filelock.StrictSoftFileLock, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, process = holder
    claim = lock.claims[0]
    assert claim.start is not None
    gone = hardlink_lock.owner_is_gone
    assert not gone(claim.hostname, claim.pid, claim.start)
    assert gone(claim.hostname, os.getpid(), claim.start), "the pid has been used again"
    process.kill()
    process.wait()
    assert gone(claim.hostname, claim.pid, claim.start)
    assert not gone(claim.hostname + "x", claim.pid, claim.start), "another host, or another namespace of this one"
    another_boot = claim.start + (1 << 64)
    assert not gone(claim.hostname, claim.pid, another_boot), "a host of the same name, for all we know"
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    assert not gone(claim.hostname, claim.pid, claim.start)
