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
from dispatcher.run_state.turn import Turn

WAIT_S = 30.0


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[list[Turn]]:
    """Four processes' turns: to the kernel, each open file is an owner of its own."""
    path = tmp_path / "claims.lock"
    path.touch()
    found = [Turn(path) for _ in range(4)]
    yield found
    for turn in found:
        turn.close()


def test_one_at_a_time(turns: list[Turn]) -> None:
    first, second = turns[:2]
    assert first.take()
    assert not second.take()
    assert not second.wait(0.05)
    first.end()
    assert second.wait(WAIT_S)
    assert not first.take()
    second.end()
    assert first.take()


def test_the_turn_goes_round_in_the_order_of_asking(turns: list[Turn]) -> None:
    holder, *others = turns
    assert holder.take()
    for turn in others:
        # After this time it is in the kernel's queue.
        assert not turn.wait(0.1)
    holder.end()
    order = []
    for _ in others:
        wait_until(lambda: any(turn.is_ours for turn in others), "somebody has the turn", WAIT_S)
        [mine] = [number for number, turn in enumerate(others) if turn.is_ours]
        order.append(mine)
        others[mine].end()
    assert order == [0, 1, 2]


def test_who_gave_up_waiting_passes_it_on(turns: list[Turn]) -> None:
    holder, gone, other = turns[:3]
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


def test_closing_while_waiting_leaves_neither_turn_nor_thread(turns: list[Turn], tmp_path: Path) -> None:
    before = threading.active_count()
    holder, other = turns[:2]
    waiting = Turn(tmp_path / "claims.lock")
    assert holder.take()
    assert not waiting.wait(0.1)
    waiting.close()
    assert not waiting.is_ours
    holder.end()
    wait_until(other.take, "the turn is free", WAIT_S)
    other.end()
    wait_until(lambda: threading.active_count() <= before, "its thread has ended", WAIT_S)


def test_a_file_that_cannot_be_locked_keeps_nobody_waiting(turns: list[Turn], monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatcher.run_state import turn

    def fails(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(turn, "wait_for_range", fails)
    limit_s, begun_s = 10 * WAIT_S, time.monotonic()
    assert not turns[0].wait(limit_s)
    assert time.monotonic() - begun_s < limit_s


def test_the_turn_is_one_byte_behind_the_head(turns: list[Turn], tmp_path: Path) -> None:
    """The head's own bytes are what `lock: lockf` locks."""
    assert turns[0].take()
    with open(tmp_path / "claims.lock", "r+b") as file:
        assert try_range(file.fileno(), 0, HEAD_SIZE)
        release_range(file.fileno(), 0, HEAD_SIZE)
        assert not try_range(file.fileno(), HEAD_SIZE, 1)
