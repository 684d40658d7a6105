"""Keeps the board up to date while a page is open, and lets requests ask it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from dispatcher.errors import DispatcherError
from dispatcher.web.answers import MOST_BYTES, LoadingError, RefusedError, encode, fitted, join
from dispatcher.web.board import Board
from dispatcher.web.worker import Worker

T = TypeVar("T")

INTERVAL_S: Final = 2.0
# With an age, a position and names of parts beside it.
_ANSWER_BYTES: Final = MOST_BYTES - 2_000
# So many times as long as a look took nothing is done.
_REST: Final = 10
# How long a request waits while the files are read for the first time.
_FIRST_S: Final = 0.5


class Follower:
    """Looks every `interval_s` at what has changed, for as long as requests come.

    No page is open any more when no request has come for `watched_s`. After a look that failed, the next request looks
    again, but not more often than every `again_s`. A request waits `patience_s` for the files; while they are read for
    the first time, it is answered that they are.
    """

    def __init__(
        self,
        make_board: Callable[[], Board],
        interval_s: float = INTERVAL_S,
        *,
        watched_s: float = 15.0,
        again_s: float = 1.0,
        patience_s: float = 20.0,
    ) -> None:
        self._make_board = make_board
        self._interval_s = interval_s
        self._watched_s = watched_s
        self._again_s = again_s
        self._patience_s = patience_s
        self._worker = Worker("reader")
        self._board: Board | None = None
        self._problem: str | None = None
        self._asked_s = self._looked_s = -1e9
        self._began_s = 0.0
        self._cost_s = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._followers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._followers = [asyncio.create_task(self._follow()), asyncio.create_task(self._read_results())]

    def stop(self) -> None:
        for task in self._followers:
            task.cancel()

    @property
    def is_watched(self) -> bool:
        return time.monotonic() - self._asked_s < self._watched_s

    @property
    def is_live(self) -> bool:
        """Whether a pod was seen to write in the workspace."""
        return self._board is not None and self._board.age.is_live

    async def watched(self) -> None:
        """Wait until a page is open."""
        while not self.is_watched:
            self._woken.clear()
            await self._woken.wait()

    @property
    def seq(self) -> int | None:
        """How far the journal was read; None before the first time and while it cannot be read."""
        return None if self._board is None or self._problem is not None else self._board.seq

    async def put(self, name: str, value: Any) -> None:
        """Set a part of the first screen."""
        if self._board is not None:
            await self._worker.run(self._board.put, name, value)

    async def ask(self, function: Callable[..., T], *args: Any) -> T:
        """What `function(board, ...)` returns, after the files were looked at. RefusedError 503 when they cannot be."""
        board = await self._current()
        try:
            return await self._worker.run(function, board, *args, timeout_s=self._patience_s)
        except TimeoutError:
            raise self._too_slow() from None

    async def answer(self, function: Callable[..., Any], *args: Any) -> bytes:
        """As `ask`, as an answer with its age."""
        parts = await self.ask(lambda board: _encoded(board, function, args))
        return join(parts)

    async def changes(self, since: str, function: Callable[[Board], dict[str, bytes] | None]) -> bytes:
        """The parts that have changed; no thread is asked when nothing has."""
        board = await self._current()
        if since == board.position:
            return join({**_envelope(board), "unchanged": b"true"})
        return await self.answer(function)

    def facts(self) -> dict[str, object]:
        """The age of what is known, for answers that say that it cannot be read."""
        return {} if self._board is None else self._board.age.facts()

    def look_soon(self) -> None:
        """Something was changed here: the next request looks at the files first."""
        self._looked_s = -1e9

    async def _current(self) -> Board:
        """The board, not older than a few looks."""
        self._asked_s = time.monotonic()
        self._woken.set()
        late_s = self._again_s if self._problem is not None else self._pause_s() + self._interval_s
        if self._board is None or self._asked_s - self._looked_s > late_s:
            is_first = self._board is None or self._board.seq is None
            try:
                await asyncio.wait_for(asyncio.shield(self._look()), _FIRST_S if is_first else self._patience_s)
            except TimeoutError:
                raise (LoadingError(time.monotonic() - self._began_s) if is_first else self._too_slow()) from None
        if self._problem is not None:
            raise RefusedError(503, self._problem)
        assert self._board is not None
        return self._board

    def _too_slow(self) -> RefusedError:
        return RefusedError(
            503, f"the files of the workspace do not answer for {self._patience_s:.0f} s: is the file server there?"
        )

    def _look(self) -> asyncio.Task[None]:
        """Look at the files now, once for all who ask."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_now())
        return self._looking

    async def _look_now(self) -> None:
        began_s = self._began_s = time.monotonic()
        try:
            await self._worker.run(self._look_there)
            self._problem = None
        except (DispatcherError, OSError) as error:
            self._problem = f"cannot be read: {error}"
        finally:
            self._looked_s = time.monotonic()
            self._cost_s = self._looked_s - began_s

    def _look_there(self) -> None:
        if self._board is None:
            self._board = self._make_board()
        self._board.look()

    def _pause_s(self) -> float:
        return max(self._interval_s, _REST * min(self._cost_s, 3.0))

    async def _follow(self) -> None:
        while True:
            await self.watched()
            await self._look()
            await asyncio.sleep(self._pause_s())

    async def _read_results(self) -> None:
        """What jobs have written, a little at a time."""
        while True:
            await asyncio.sleep(self._interval_s / 4)
            await self.watched()
            pending = 1
            while pending and self._board is not None and self._problem is None and self.is_watched:
                pending = await self._worker.run(self._board.read_results)
                # Others are asked in between.
                await asyncio.sleep(0.01)


def _encoded(board: Board, function: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, bytes]:
    # The position first: making an answer may raise it, and what is new then is not in this answer.
    position = encode(board.position)
    found = function(board, *args)
    if found is None:
        found = {"unchanged": b"true"}
    made = {name: value for name, value in found.items() if isinstance(value, bytes)}
    others = fitted({name: value for name, value in found.items() if name not in made}, _ANSWER_BYTES)
    return {**_envelope(board), "position": position, **made, **others}


def _envelope(board: Board) -> dict[str, bytes]:
    return {**{name: encode(value) for name, value in board.age.facts().items()}, "position": encode(board.position)}
