"""Puts the files of attempts that have ended on the disk before their ends are recorded, in a thread beside the loop.

The journal is synced with every transaction. What a job has written is not: after a power cut `done` would stand for a
result that is empty. The result of an attempt that is done, where its script leaves that in a file of its own, is
copied into `result.json` first.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from dispatcher.base import files, outputs
from dispatcher.base.messages import counted
from dispatcher.errors import StorageError
from dispatcher.outlets.base import Ended, Key
from dispatcher.outlets.wrapper import has_result, sync_end
from dispatcher.pod.recover import Found
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.workspace import Layout

# After a file that could not be written to the disk.
_TRY_AGAIN_S: Final = 2.0


class _Kept(NamedTuple):
    """What is on the disk of an attempt: whether it has a result, and what that lacks."""

    has_result: bool
    lacking: str


class EndsOnDisk:
    """Holds ends back until what they tell of is on the disk. An end without an exit status tells of nothing.

    What has failed is tried again after `try_again_s`.
    """

    def __init__(self, layout: Layout, log: Callable[[str], None], try_again_s: float = _TRY_AGAIN_S) -> None:
        self._layout = layout
        self._try_again_s = try_again_s
        self._log = log
        # By attempt: when it is tried, infinity while it is under way; what is on the disk.
        self._due_s: dict[Key, float] = {}
        self._there: dict[Key, _Kept] = {}
        self._problems: dict[Key, str] = {}
        self._found: dict[Key, Found] = {}
        # With whether the attempt is done.
        self._asked: queue.SimpleQueue[tuple[Key, bool] | None] = queue.SimpleQueue()
        # Why it could not be put there, or what is on the disk.
        self._answers: queue.SimpleQueue[tuple[Key, str | _Kept]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._wake_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def own(self, ended: Iterable[RunningAttempt]) -> list[RunningAttempt]:
        """Those of the pod's own attempts whose ends can be recorded; never waits."""
        self._take_in()
        ready = [one for one in ended if self._is_ready(one)]
        for one in ready:
            one.ended = self._told(one.key, one.ended)
        return ready

    def found(self, found: Iterable[Found] = ()) -> list[Found]:
        """Of what is news of other pods' attempts, also of earlier calls: what can be recorded; never waits."""
        self._take_in()
        self._found |= {one.key: one for one in found}
        ready = [one for one in self._found.values() if self._is_ready(one)]
        return [msgspec.structs.replace(one, ended=self._told(one.key, one.ended)) for one in ready]

    def commit(self, keys: Iterable[Key]) -> None:
        """The ends of these attempts have been recorded."""
        for key in keys:
            self._there.pop(key, None)
            self._found.pop(key, None)

    @property
    def is_busy(self) -> bool:
        """Whether ends wait for their files."""
        return bool(self._due_s)

    @property
    def has_news(self) -> bool:
        """Whether ends can be recorded that could not be before."""
        return bool(self._there)

    def holds(self, key: Key) -> bool:
        """Whether the end of this attempt waits for its files."""
        return key in self._due_s

    def notes(self) -> list[str]:
        """Which ends cannot be recorded yet, and why."""
        if not self._problems:
            return []
        key, problem = next(iter(self._problems.items()))
        return [f"{counted(len(self._problems), 'end')} not recorded yet: {key}: {problem}"]

    def wait_fds(self) -> list[int]:
        """Becomes readable when files are on the disk, or could not be put there."""
        return [self._wake_fd] if self._due_s else []

    def due_in_s(self) -> float | None:
        """Seconds until files are tried again; None while that is not needed."""
        due_s = min(self._due_s.values(), default=float("inf"))
        return None if due_s == float("inf") else max(0.0, due_s - time.monotonic())

    def close(self) -> None:
        """Do not wait: what hangs may never answer."""
        self._asked.put(None)
        if self._thread is None or not self._thread.is_alive():
            os.close(self._wake_fd)
            os.close(self._write_fd)

    def _is_ready(self, one: RunningAttempt | Found) -> bool:
        if one.ended is None or one.ended.exit_code is None:
            return True
        key = one.key
        if key in self._there:
            return True
        if self._due_s.setdefault(key, 0.0) <= time.monotonic():
            self._due_s[key] = float("inf")
            self._ask(key, one.ended.is_done)
            self._take_in()
        return key in self._there

    def _told(self, key: Key, ended: Ended | None) -> Ended | None:
        """The end, with what has become of its result."""
        kept = self._there.get(key)
        if ended is None or kept is None or not ended.is_done:
            return ended
        error = f"result: {kept.lacking}" if kept.lacking else ended.error
        return msgspec.structs.replace(ended, has_result=kept.has_result, error=error)

    def _ask(self, key: Key, is_done: bool) -> None:
        if self._thread is None:
            # It does not keep the pod from ending.
            thread = threading.Thread(target=self._run, name="putting ends on the disk", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # This user may have no more processes: the pod goes on without a thread.
                self._answers.put((key, self._sync(key, is_done)))
                return
            self._thread = thread
        self._asked.put((key, is_done))

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            self._answers.put((asked[0], self._sync(*asked)))
            os.write(self._write_fd, b"\n")

    def _sync(self, key: Key, is_done: bool) -> str | _Kept:
        """Why the files of an attempt could not be put on the disk, or what of them is there."""
        directory = self._layout.attempt(key.job_id, key.number).directory
        lacking = ""
        try:
            with files.storing("syncing the files in", directory):
                left = outputs.read_outputs(directory)
                # A job that removes its own directory is done all the same.
                if is_done and directory.is_dir():
                    lacking = outputs.collect_result(directory, left)
                sync_end(directory, left.names)
                return _Kept(has_result(directory), lacking)
        except StorageError as error:
            return str(error)

    def _take_in(self) -> None:
        if not self._due_s:
            return
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_fd, 65536)
        while not self._answers.empty():
            key, answer = self._answers.get()
            if isinstance(answer, _Kept):
                del self._due_s[key]
                self._problems.pop(key, None)
                self._there[key] = answer
                continue
            self._due_s[key] = time.monotonic() + self._try_again_s
            if not self._problems:
                self._log(f"warning: {key}: its end is not recorded yet: {answer}; trying again")
            self._problems[key] = answer
