"""Child processes: with limits, read without waiting, and ended as a whole.

A loop adds `wait_fds` and `due_in_s` to what it waits for, and calls `poll`; what has nothing else to do calls `wait`.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, ClassVar, Final, Protocol

import msgspec

from dispatcher.base import host

_CHUNK: Final = 1 << 18
_MOST_CHUNKS: Final = 64
_MOST_ERROR_BYTES: Final = 32 << 10
# How often a program is looked at whose end no descriptor tells (Linux before 5.3).
_LOOK_AGAIN_S: Final = 0.05
# At the end of a dispatcher: from TERM to KILL. An agent ends what it has started, which takes time on a busy machine.
_CLOSING_S: Final = 5.0
# After KILL.
_KILLING_S: Final = 1.0

# The pids of programs in sessions of their own that have not ended, or whose exit status was not collected.
_in_sessions: set[int] = set()


def in_sessions() -> Collection[int]:
    """The children of this process that are programs in sessions of their own, which `Program` collects."""
    return _in_sessions


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. `exit_code` -N: signal N. `killed_because` says why it was killed from here."""

    exit_code: int
    out: bytes
    err: bytes
    killed_because: str = ""

    @property
    def errors(self) -> str:
        """What it has printed to stderr, as text."""
        return self.err.decode(errors="replace")


class Waitable(Protocol):
    """What `wait_for_any` can wait for."""

    def wait_fds(self) -> list[int]: ...

    def due_in_s(self) -> float | None: ...


def wait_for_any(calls: Iterable[Waitable], longest_s: float | None = None) -> bool:
    """Wait until one of them may have something to do; False when only time has passed."""
    poll, dues_s = select.poll(), [] if longest_s is None else [longest_s]
    for call in calls:
        for fd in call.wait_fds():
            poll.register(fd, select.POLLIN)
        if (due_s := call.due_in_s()) is not None:
            dues_s.append(due_s)
    return bool(poll.poll(min(dues_s) * 1000 if dues_s else None))


class Program:
    """One run of a program in a process group of its own, which a terminal's Ctrl-C does not reach.

    It has `limit_s` seconds, may print `most_bytes`, and must print something every `silent_s` seconds (None: no
    limit); then its process group is killed. Of its errors the first and the last are kept, _MOST_ERROR_BYTES each.
    """

    # Whether it also has a session of its own.
    session: ClassVar[bool] = False

    def __init__(
        self,
        words: Sequence[str],
        *,
        limit_s: float | None,
        stdin: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        take: Callable[[bytes], object] | None = None,
        silent_s: float | None = None,
        most_bytes: int = 64 << 20,
    ) -> None:
        """`stdin` is an open file, not a pipe that has to be filled. It starts in `directory`.

        `take` is given what it prints, piece by piece, by `poll` and `wait`, which raise what it raises; nothing is
        kept then. Raises OSError when the program cannot start.
        """
        self._child = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            cwd=directory,
            start_new_session=self.session,
            process_group=None if self.session else 0,
        )
        self.pid = self._child.pid
        if self.session:
            _in_sessions.add(self.pid)
        assert self._child.stdout is not None and self._child.stderr is not None
        self._pidfd = host.open_pidfd(self.pid)
        self._out = _Output(self._child.stdout, most_bytes, take)
        self._err = _Output(self._child.stderr, _MOST_ERROR_BYTES, keeps_end=True)
        self._name = words[0]
        self._limit_s = limit_s
        self._ends_at_s = math.inf if limit_s is None else time.monotonic() + limit_s
        self._silent_s = math.inf if silent_s is None else silent_s
        self._heard_s = time.monotonic()
        self._killed_because = ""
        self._finished: Finished | None = None

    def wait_fds(self) -> list[int]:
        """Descriptors that become readable when `poll` has something to do."""
        if self._finished is not None:
            return []
        fds = [output.fd for output in (self._out, self._err) if output.is_open]
        return fds if self._pidfd < 0 else [*fds, self._pidfd]

    def due_in_s(self) -> float | None:
        """Seconds until `poll` has something to do although no descriptor is readable."""
        if self._finished is not None:
            return None
        if self._pidfd < 0 and not self._out.is_open:
            return _LOOK_AGAIN_S
        end_s = min(self._ends_at_s, self._heard_s + self._silent_s)
        return None if math.isinf(end_s) else max(0.0, end_s - time.monotonic())

    def poll(self) -> Finished | None:
        """How it has ended; None while it runs."""
        if self._finished is not None:
            return self._finished
        status = self._child.poll()
        # After its end: what it had printed is in the pipes by then. Another process may keep them open for longer.
        if self._out.read():
            self._heard_s = time.monotonic()
        self._err.read()
        if status is not None:
            self._finish(status)
        elif self._killed_because:
            if time.monotonic() >= self._ends_at_s:
                # It hangs in the kernel.
                self._finish(-signal.SIGKILL)
        elif self._out.is_over:
            self._kill(f"{self._name} printed more than {self._out.most_bytes >> 20} MiB")
        elif time.monotonic() >= self._ends_at_s:
            self._kill(f"no answer within {self._limit_s:g} s")
        elif time.monotonic() >= self._heard_s + self._silent_s:
            self._kill(f"printed nothing for {self._silent_s:g} s")
        return self._finished

    def wait(self) -> Finished:
        """How it has ended, when it has."""
        while (finished := self.poll()) is None:
            wait_for_any([self])
        return finished

    def kill(self) -> None:
        """Kill at once what is left of it and of its process group. What it prints meanwhile is lost."""
        self._signal(signal.SIGKILL)
        if self._finished is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(_KILLING_S)
            self._finish(-signal.SIGKILL)

    def close(self, within_s: float = 0.0) -> None:
        """Give it so many seconds to end, then end it. What runs on without being waited for is not killed."""
        end_s = time.monotonic() + within_s
        while self.poll() is None and time.monotonic() < end_s:
            time.sleep(_LOOK_AGAIN_S / 5)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.poll() is None:
                self._signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(_CLOSING_S)
        if self.poll() is None:
            # It hangs in the kernel.
            self._finish(-signal.SIGKILL)

    def _kill(self, why: str) -> None:
        self._killed_because = why
        self._signal(signal.SIGKILL)
        # It may take its time to end.
        self._ends_at_s, self._silent_s = time.monotonic() + _KILLING_S, math.inf

    def _signal(self, number: signal.Signals) -> None:
        # The group that it leads: its number is not another's while it, or one of its children, is in it.
        host.send_group(self.pid, number)

    def _finish(self, status: int) -> None:
        _in_sessions.discard(self.pid)
        self._out.close()
        self._err.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._finished = Finished(
            exit_code=status, out=self._out.content(), err=self._err.content(), killed_because=self._killed_because
        )


class _Output:
    """One pipe, read without waiting. `keeps_end`: of what is too much, the last bytes are kept as well."""

    def __init__(
        self,
        pipe: IO[bytes],
        most_bytes: int,
        take: Callable[[bytes], object] | None = None,
        *,
        keeps_end: bool = False,
    ) -> None:
        self._pipe = pipe
        self.fd = pipe.fileno()
        os.set_blocking(self.fd, False)
        self.most_bytes = most_bytes
        self.is_open = True
        self._begin = bytearray()
        self._end = bytearray()
        self._keeps_end = keeps_end
        self._add = take or self._keep
        self._dropped = False

    @property
    def is_over(self) -> bool:
        return not self._keeps_end and len(self._begin) > self.most_bytes

    def read(self) -> bool:
        """Read what is there, but not for ever from one that prints as fast; whether there was anything."""
        for chunk in range(_MOST_CHUNKS):
            if not self.is_open or self.is_over:
                return chunk > 0
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return chunk > 0
            if not data:
                self.close()
                return chunk > 0
            self._add(data)
        return True

    def content(self) -> bytes:
        dropped = b"\n[...]\n" if self._dropped else b""
        return bytes(self._begin) + dropped + bytes(self._end)

    def close(self) -> None:
        self.is_open = False
        self._pipe.close()

    def _keep(self, data: bytes) -> None:
        if not self._keeps_end:
            self._begin += data
            return
        room = max(0, self.most_bytes - len(self._begin))
        self._begin += data[:room]
        self._end += data[room:]
        if len(self._end) > self.most_bytes:
            self._dropped = True
            del self._end[: -self.most_bytes]
