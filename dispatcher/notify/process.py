"""Sends a notice in a process of its own, with a deadline. The process that asks for it never waits.

The child gets everything on stdin, so `ps` shows nothing. It says `begun` when it begins what may deliver the notice,
and how it ended as one line of JSON. From `begun` on, whoever kills it, or finds it gone, does not know.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any, Final

import msgspec

from dispatcher.notify_config import Channel, Target
from dispatcher.run_state.facets.notices import DOUBTFUL, FAILED, SENT

BEGUN: Final = b"begun"
_MOST_READ: Final = 8192
# The package as this process has found it; nothing of it in the environment, which programs of users inherit.
_MAIN: Final = "import sys; sys.path.insert(0, sys.argv[1]); from dispatcher.notify.child import main; main()"
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LONGEST_WHY: Final = 300


class Order(msgspec.Struct, frozen=True):
    """What the child is to do."""

    channel: Channel
    notice: dict[str, Any]
    limit_s: float


class Outcome(msgspec.Struct, frozen=True):
    """`sent`, `failed` or `doubtful`, and why."""

    state: str
    why: str = ""


_decode = msgspec.json.Decoder(Outcome).decode


class Sending:
    """One child that sends a notice. `fd` is readable when it has said something."""

    def __init__(self, target: Target, notice: dict[str, Any]) -> None:
        order = Order(target.channel, notice, target.limit_s)
        stdin = os.memfd_create("notice", os.MFD_CLOEXEC)
        try:
            os.write(stdin, msgspec.json.encode(order))
            os.lseek(stdin, 0, os.SEEK_SET)
            # A process group of its own, to be killed as a whole; in the session of the pod, so that it ends with that.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN, _PACKAGE], stdin=stdin, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, process_group=0,
            )  # fmt: skip
        finally:
            os.close(stdin)
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()
        os.set_blocking(self.fd, False)
        self._limit_s = target.limit_s
        self._deadline_s = time.monotonic() + target.limit_s
        self._said = b""

    def due_in_s(self) -> float:
        """Until when it must have ended."""
        return max(0.0, self._deadline_s - time.monotonic())

    def outcome(self) -> Outcome | None:
        """How it ended; None while it goes on. Past its deadline it is killed."""
        is_over = self._read()
        if not is_over and time.monotonic() < self._deadline_s:
            return None
        if is_over:
            # It has nothing left to do but to exit. What a program of the user's has left in the background stays.
            self._process.kill()
            self._end()
            return self._told() or self._silent()
        self.kill()
        return self._told() or self._unfinished()

    def kill(self) -> None:
        """End the child and everything that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._end()

    def _end(self) -> None:
        self._process.wait()
        self._read()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> bool:
        """Take in what it has said; whether it has ended."""
        if self._process.stdout is None or self._process.stdout.closed:
            return True
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, _MOST_READ):
                self._said = (self._said + data)[:_MOST_READ]
            return True
        return False

    def _told(self) -> Outcome | None:
        lines = self._said.splitlines()
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, IndexError):
            told = _decode(lines[-1])
            if told.state in (SENT, FAILED, DOUBTFUL):
                return Outcome(told.state, told.why[:_LONGEST_WHY])
        return None

    def _unfinished(self) -> Outcome:
        if self._said.startswith(BEGUN):
            return Outcome(DOUBTFUL, f"no answer within {self._limit_s:g} s")
        return Outcome(FAILED, f"not reached within {self._limit_s:g} s")

    def _silent(self) -> Outcome:
        state = DOUBTFUL if self._said.startswith(BEGUN) else FAILED
        return Outcome(state, f"the process that sent it ended with {self._process.returncode} and said nothing")
