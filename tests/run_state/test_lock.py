"""The claims lock: one kind for all, fair, free when its holder dies, and as good as the data it guards."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.errors import LockError, LockTimeoutError
from dispatcher.run_state import journal
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.head import HEAD_SIZE, Head, decode_head, encode_head
from dispatcher.run_state.lock import KINDS, ClaimsLock
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout


def run_program(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


WORKER = """
    import sys
    from dispatcher.run_state.change import Change
    from dispatcher.run_state.events import Event
    from dispatcher.run_state.states import State
    from dispatcher.run_state.store import Store
    from dispatcher.workspace import Layout
    root, kind, name, count = sys.argv[1:]
    store = Store(Layout(root), by=name, lock=kind)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(count)):
        with store.transaction() as tx:
            # A number that is read and written: any lost update shows.
            record = tx.record("counter")
            before = record.priority if record and record.priority else 0
            tx.change("counter", Event.QUEUED, Change(state=State.QUEUED, priority=before + 1))
            tx.change(f"{name}-{number}", Event.QUEUED, Change(state=State.QUEUED))
"""

HOLDER = """
    import sys, time
    from dispatcher.run_state.change import Change
    from dispatcher.run_state.events import Event
    from dispatcher.run_state.states import State
    from dispatcher.run_state.store import Store
    from dispatcher.workspace import Layout
    store = Store(Layout(sys.argv[1]), by="holder", lock=sys.argv[2])
    with store.transaction() as tx:
        tx.change("half", Event.QUEUED, Change(state=State.QUEUED))
        print("held", flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_eight_processes_lose_nothing(layout: Layout, kind: str) -> None:
    each = 100
    workers = [run_program(WORKER, layout.root, kind, f"pod-{n}", each) for n in range(8)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.communicate("\n", timeout=240)
        assert worker.returncode == 0
    store = Store(layout, by="reader")
    store.refresh()
    assert store.records["counter"].priority == 8 * each
    assert len(store.records) == 8 * each + 1
    lines = list(journal.history(layout))
    assert [line.seq for line in lines] == list(range(1, 16 * each + 1))
    assert Counter(line.by for line in lines) == {f"pod-{n}": 2 * each for n in range(8)}


@contextlib.contextmanager
def holding(layout: Layout, kind: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock in the middle of a transaction."""
    with run_program(HOLDER, layout.root, kind) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_holder_blocks_nobody_and_changes_nothing(layout: Layout, kind: str) -> None:
    store = Store(layout, by="pod-0", lock=kind)
    with holding(layout, kind) as process:
        with pytest.raises(LockTimeoutError, match=r"claims\.(lock|hardlink): held by another process for 0.2 s"):
            change(store, timeout_s=0.2)
        process.kill()
        process.wait()
        change(store, timeout_s=20)
    assert set(store.records) == {"a"}


def change(store: Store, timeout_s: float) -> None:
    with store.transaction(timeout_s) as tx:
        tx.change("a", Event.QUEUED, Change(state=State.QUEUED))


def test_the_message_names_the_holder(layout: Layout) -> None:
    store = Store(layout, by="pod-0")
    with holding(layout, "flock") as process, pytest.raises(LockTimeoutError, match=f"pid {process.pid} of this host"):
        change(store, timeout_s=0.1)


def test_a_stopped_process_that_waits_holds_up_nobody(layout: Layout) -> None:
    """Whose turn it is next is a courtesy, no second lock."""
    store = Store(layout, by="pod-0")
    change(store, 1)
    waiter = """
        import sys
        from dispatcher.run_state.store import Store
        from dispatcher.workspace import Layout
        store = Store(Layout(sys.argv[1]), by="waiter")
        store.prepare()
        print("ready", flush=True)
        with store.transaction():
            pass
        print("done", flush=True)
    """
    with store.transaction():
        process = run_program(waiter, layout.root)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_for_turn(layout, process.pid)
        os.kill(process.pid, signal.SIGSTOP)
    try:
        with store.transaction(timeout_s=10) as tx:
            tx.change("b", Event.QUEUED, Change(state=State.QUEUED))
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert process.stdout.readline() == "done\n"
    process.communicate()


def wait_for_turn(layout: Layout, pid: int) -> None:
    """Until that process holds the byte behind the head."""
    inode = layout.lock_file.stat().st_ino
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if "OFDLCK" in fields and fields[-2] == str(HEAD_SIZE) and fields[-3].endswith(f":{inode}"):
                return
        assert Path(f"/proc/{pid}").exists(), "the waiting process has ended"
        time.sleep(0.005)
    raise AssertionError("the waiting process never got its turn")


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_is_refused_and_auto_follows(layout: Layout, kind: str) -> None:
    change(Store(layout, by="pod-0", lock=kind), 5)
    for other in KINDS:
        store = Store(layout, by="pod-1", lock=other)
        if other == kind:
            change(store, 5)
            continue
        with pytest.raises(LockError, match=rf"lock: {other}, but this workspace uses {kind}: .*`lock: {kind}`"):
            change(store, 5)
    auto = Store(layout, by="pod-2")
    change(auto, 5)
    assert auto.lock_kind == kind


def test_an_unknown_kind_names_the_known_ones(layout: Layout) -> None:
    with pytest.raises(LockError, match=r"'flok' is no kind of lock \(did you mean 'flock'\?\)"):
        Store(layout, by="pod-0", lock="flok").prepare()


def test_two_first_starts_with_different_settings(layout: Layout) -> None:
    """Both have chosen before either has written the journal."""
    one, other = Store(layout, by="one", lock="flock"), Store(layout, by="other", lock="lockf")
    one.prepare()
    other.prepare()
    change(one, 5)
    with pytest.raises(LockError, match="this workspace uses flock"):
        change(other, 5)
    with one.transaction() as tx:
        tx.change("b", Event.QUEUED, Change(state=State.QUEUED))


def test_everybody_follows_to_the_hard_link_lock(layout: Layout) -> None:
    elder, finder = Store(layout, by="elder"), Store(layout, by="finder")
    insisting = Store(layout, by="insisting", lock="flock")
    for store in (elder, finder, insisting):
        change(store, 5)
    finder.use_hardlink_lock()
    with finder.transaction(), pytest.raises(LockTimeoutError):
        change(elder, timeout_s=0.3)
    change(elder, 5)
    assert elder.lock_kind == finder.lock_kind == Store(layout, by="new").lock_kind == "hardlink"
    with pytest.raises(LockError, match="lock: flock, but this workspace uses hardlink"):
        change(insisting, 5)


def test_a_transaction_within_a_transaction_is_a_mistake(layout: Layout) -> None:
    store = Store(layout, by="pod-0")
    with store.transaction() as tx, pytest.raises(RuntimeError, match="within a transaction"):
        change(store, 1)
    change(store, 1)
    assert tx.lines == []


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_looking_at_the_head_does_not_open_the_lock(layout: Layout, kind: str) -> None:
    """A process's byte-range locks end when it closes any descriptor of the file."""
    store, other = Store(layout, by="pod-0", lock=kind), Store(layout, by="other", lock=kind)
    change(store, 5)
    with store.transaction():
        store.pending_edits()
        reader = Store(layout, by="reader")
        reader.refresh()
        reader.close()
        with pytest.raises(LockTimeoutError):
            change(other, timeout_s=0.1)


def test_the_head_survives_long_names_and_shows_damage() -> None:
    head = Head(generation=3, length=10**12, seq=10**10, projection=(2**60, 10**9, 2**62), projected=7, by="ü" * 400)
    data = encode_head(head)
    assert len(data) == HEAD_SIZE
    found = decode_head(data)
    assert found is not None
    assert (found.generation, found.length, found.projection) == (3, 10**12, head.projection)
    for position in (0, 7, 9, 40):
        assert decode_head(data[:position] + b"~" + data[position + 1 :]) is None
    assert decode_head(data[:100]) is None
    assert decode_head(b"") is None


def test_a_lock_whose_closing_fails_is_not_used_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another file's by then: the head would be written into that."""
    layout.run_state.mkdir(parents=True)
    lock = ClaimsLock(layout.lock_file, "flock", "pod-0")
    lock.acquire(1.0)
    close = os.close

    def close_and_fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as late, contextlib.suppress(OSError):
        late.setattr(os, "close", close_and_fail)
        lock.close()
    other = os.open(layout.run_state / "other", os.O_RDWR | os.O_CREAT)
    lock.acquire(1.0)
    lock.write_head(Head(generation=1, length=0, seq=0))
    lock.close()
    assert os.fstat(other).st_size == 0
    os.close(other)
