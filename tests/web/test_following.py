"""One reader for all viewers, and none when nobody looks."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dispatcher.errors import StateError
from dispatcher.web.age import Age
from dispatcher.web.answers import LoadingError, RefusedError
from dispatcher.web.follower import Follower


class FakeBoard:
    """Counts the looks; `fails` and `takes_s` make the next ones fail or take long, `is_free` hang until it is set."""

    def __init__(self):
        self.is_free = threading.Event()
        self.is_free.set()
        self.seq = None
        self.looks, self.asked, self.fails, self.takes_s, self.age, self.position = 0, 0, "", 0.0, Age(), "x.1"

    def look(self):
        self.looks += 1
        self.is_free.wait(60)
        time.sleep(self.takes_s)
        if self.fails:
            raise StateError(self.fails)
        self.seq = 1

    def read_results(self):
        return 0

    def overview(self):
        self.asked += 1
        return {"counts": b"{}"}


def run(scenario, interval_s=0.02, **limits):
    board = FakeBoard()

    async def main():
        follower = Follower(lambda: board, interval_s, **{"watched_s": 0.3, **limits})
        follower.start()
        try:
            await scenario(follower, board)
        finally:
            follower.stop()

    asyncio.run(main())


def test_nobody_looks_and_nothing_is_read():
    async def scenario(follower, board):
        await asyncio.sleep(0.2)
        assert board.looks == 0
        end_s = time.monotonic() + 60
        while board.looks <= 2:
            assert time.monotonic() < end_s, "nobody looks for a viewer"
            await follower.answer(FakeBoard.overview)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        looks = board.looks
        await asyncio.sleep(0.5)
        assert board.looks == looks
        # Who comes back gets what is there now.
        await follower.answer(FakeBoard.overview)
        assert board.looks > looks

    run(scenario)


def test_many_viewers_cost_one_reader():
    async def scenario(follower, board):
        await asyncio.gather(*(follower.answer(FakeBoard.overview) for _ in range(50)))
        assert (board.looks, board.asked) == (1, 50)
        for _ in range(50):
            answer = await follower.changes("x.1", FakeBoard.overview)
            assert b'"unchanged":true' in answer
        # Not even the thread was asked.
        assert board.asked == 50 and board.looks <= 3

    run(scenario, interval_s=5.0, watched_s=60.0)


def test_what_cannot_be_read_is_told_and_is_back_when_it_can():
    async def scenario(follower, board):
        await follower.answer(FakeBoard.overview)
        board.fails = "the journal is gone"
        follower.look_soon()
        for request in (follower.answer(FakeBoard.overview), follower.changes("x.1", FakeBoard.overview)):
            with pytest.raises(RefusedError, match="the journal is gone") as error:
                await request
            assert error.value.status == 503
        board.fails = ""
        await asyncio.sleep(0.2)
        await follower.answer(FakeBoard.overview)

    run(scenario, again_s=0.05)


def test_files_that_hang_are_told_and_not_shown_as_they_were():
    async def scenario(follower, board):
        await follower.answer(FakeBoard.overview)
        board.age.read_s, board.is_free = 1.0, threading.Event()
        follower.look_soon()
        with pytest.raises(RefusedError, match="do not answer") as error:
            await follower.changes("x.1", FakeBoard.overview)
        assert error.value.status == 503
        board.is_free.set()

    run(scenario, patience_s=0.1)


def test_while_the_files_are_read_for_the_first_time_that_is_told_at_once():
    async def scenario(follower, board):
        board.is_free = threading.Event()
        with pytest.raises(LoadingError, match="is being read") as error:
            await follower.answer(FakeBoard.overview)
        assert error.value.status == 503
        board.is_free.set()
        while board.seq is None:
            await asyncio.sleep(0.01)
        await follower.answer(FakeBoard.overview)
        assert board.looks >= 1

    run(scenario)


def test_a_look_that_takes_long_is_taken_less_often():
    async def scenario(follower, board):
        board.takes_s = 0.05
        end_s = time.monotonic() + 1.5
        while time.monotonic() < end_s:
            await follower.answer(FakeBoard.overview)
            await asyncio.sleep(0.02)
        assert board.looks <= 5

    run(scenario)
