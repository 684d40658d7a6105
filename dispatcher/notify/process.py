"""Sends a notice in a process of its own, with a deadline. The process that asks for it never waits.

The child gets everything on stdin, so `ps` shows nothing. It says `begun` when it begins what may deliver the notice,
and how it ended as one line of JSON. If it is killed or gone after `begun`, the outcome is unknown.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Final

import msgspec

from dispatcher.base.libraries import PACKAGES
from dispatcher.base.programs import Program
from dispatcher.notify_config import Channel, Target
from dispatcher.run_state.facets.notices import DOUBTFUL, FAILED, SENT

BEGUN: Final = b"begun"
# The package as this process has found it; nothing of it in the environment, which programs of users inherit.
_MAIN: Final = "import sys; sys.path.insert(0, sys.argv[1]); from dispatcher.notify.child import main; main()"
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


class SendingProcess:
    """One child that sends a notice, as something to wait for."""

    def __init__(self, target: Target, notice: dict[str, Any]) -> None:
        order = Order(target.channel, notice, target.limit_s)
        with open(os.memfd_create("notice", os.MFD_CLOEXEC), "w+b", buffering=0) as stdin:
            stdin.write(msgspec.json.encode(order))
            stdin.seek(0)
            self._program = Program([sys.executable, "-P", "-c", _MAIN, PACKAGES], limit_s=target.limit_s, stdin=stdin)
        self._limit_s = target.limit_s
        self.wait_fds = self._program.wait_fds
        self.due_in_s = self._program.due_in_s
        self.kill = self._program.kill

    def outcome(self) -> Outcome | None:
        """How it ended; None while it goes on. Past its deadline it is killed.

        What a program of the user's has left in the background stays.
        """
        finished = self._program.poll()
        if finished is None:
            return None
        has_begun = finished.out.startswith(BEGUN)
        if (told := _told(finished.out)) is not None:
            return told
        if finished.killed_because and has_begun:
            return Outcome(DOUBTFUL, f"no answer within {self._limit_s:g} s")
        if finished.killed_because:
            return Outcome(FAILED, f"not reached within {self._limit_s:g} s")
        why = f"the process that sent it ended with {finished.exit_code} without a report"
        return Outcome(DOUBTFUL if has_begun else FAILED, why)


def _told(out: bytes) -> Outcome | None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, IndexError):
        told = _decode(out.splitlines()[-1])
        if told.state in (SENT, FAILED, DOUBTFUL):
            return Outcome(told.state, told.why[:_LONGEST_WHY])
    return None
