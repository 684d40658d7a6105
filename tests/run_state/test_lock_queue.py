"""The turn goes to those who wait in the order in which they asked, and never stays with one who gave up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import wait_until

from dispatcher.base.kernel_locks import release_range, try_range
from dispatcher.run_state.head import HEAD_SIZE
from dispatcher.run_state.lock_queue import LockQueue

WAIT_S = 30.0


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[list[LockQueue]]:
    """Four processes' turns: to the kernel, each open file is an owner of its own."""
    path = tmp_path / "claims.lock"
    path.touch()
    found = [LockQueue(path) for _ in range(4)]
    yield found
    for queue in found:
        queue.close()


def test_one_at_a_time(queues: list[LockQueue]) -> None:
    first, second = queues[:2]
    assert first.take()
    assert not second.take()
    assert not second.wait(0.05)
    first.end()
    assert second.wait(WAIT_S)
    assert not first.take()
    second.end()
    assert first.take()


def test_the_turn_goes_round_in_the_order_of_asking(queues: list[LockQueue]) -> None:
    holder, *others = queues
    assert holder.take()
    for queue in others:
        # After this time it is in the kernel's queue.
        assert not queue.wait(0.1)
    holder.end()
    order = []
    for _ in others:
        wait_until(lambda: any(queue.is_ours for queue in others), "one process is first", WAIT_S)
        [mine] = [number for number, queue in enumerate(others) if queue.is_ours]
        order.append(mine)
        others[mine].end()
    assert order == [0, 1, 2]


def test_who_gave_up_waiting_passes_it_on(queues: list[LockQueue]) -> None:
    holder, gone, other = queues[:3]
    assert holder.take()
    assert not gone.wait(0.1)
    gone.end()
    assert not other.take()
    assert not other.wait(0.1)
    holder.end()
    assert other.wait(WAIT_S)
    assert not gone.is_ours
    # Who asks again while its old call is still in the queue waits for that one.
    assert not gone.take()
    assert not gone.wait(0.05)
    other.end()
    assert gone.wait(WAIT_S)


def test_closing_while_waiting_leaves_neither_turn_nor_thread(queues: list[LockQueue], tmp_path: Path) -> None:
    before = threading.active_count()
    holder, other = queues[:2]
    waiting = LockQueue(tmp_path / "claims.lock")
    assert holder.take()
    assert not waiting.wait(0.1)
    waiting.close()
    assert not waiting.is_ours
    holder.end()
    wait_until(other.take, "the lock is free to try", WAIT_S)
    other.end()
    wait_until(lambda: threading.active_count() <= before, "its thread has ended", WAIT_S)


def test_a_file_that_cannot_be_locked_lets_no_process_wait(
    queues: list[LockQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dispatcher.run_state import lock_queue

    def fails(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(lock_queue, "wait_for_range", fails)
    limit_s, begun_s = 10 * WAIT_S, time.monotonic()
    assert not queues[0].wait(limit_s)
    assert time.monotonic() - begun_s < limit_s


def test_the_turn_is_one_byte_behind_the_head(queues: list[LockQueue], tmp_path: Path) -> None:
    """The head's own bytes are what `lock: lockf` locks."""
    assert queues[0].take()
    with open(tmp_path / "claims.lock", "r+b") as file:
        assert try_range(file.fileno(), 0, HEAD_SIZE)
        release_range(file.fileno(), 0, HEAD_SIZE)
        assert not try_range(file.fileno(), HEAD_SIZE, 1)
