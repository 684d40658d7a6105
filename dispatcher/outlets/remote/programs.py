"""Child processes that are never waited for: their pipes join the loop's wait."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final

import msgspec

from dispatcher.errors import OutletError
from dispatcher.outlets.local import processes, reaping
from dispatcher.outlets.remote.operations import Ran

_CHUNK: Final = 1 << 18
_MOST_CHUNKS: Final = 64
# How often a program is looked at whose end no descriptor tells (Linux before 5.3).
_LOOK_AGAIN_S: Final = 0.05
# At the end of a dispatcher: from TERM to KILL.
_CLOSING_S: Final = 1.0


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

    def ran(self) -> Ran:
        """The same as the answer of an agent that has run the program."""
        exit_code = None if self.killed_because else self.exit_code
        return Ran(exit_code=exit_code, out=self.out.decode(errors="replace"), err=self.errors)


class Program:
    """One run of a program in a session of its own, so that what interrupts the dispatcher does not interrupt it.

    It has `limit_s` seconds (None: no limit) and may print `most_bytes`; then its process group is killed. Of its
    errors the first and the last are kept, `most_error_bytes` each.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        limit_s: float | None,
        stdin: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        most_bytes: int = 64 << 20,
        most_error_bytes: int = 32 << 10,
    ) -> None:
        """`stdin` is an open file, not a pipe that someone has to fill. It starts in `directory`.

        Raises OutletError when it cannot start.
        """
        try:
            self._child = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if environment is None else dict(environment),
                cwd=directory,
                start_new_session=True,
            )
        except OSError as error:
            raise OutletError(f"{words[0]} cannot be started: {error.strerror or error}") from error
        reaping.keep(self._child.pid)
        assert self._child.stdout is not None and self._child.stderr is not None
        self._pidfd = processes.open_pidfd(self._child.pid)
        self._out = _Output(self._child.stdout, most_bytes)
        self._err = _Output(self._child.stderr, most_error_bytes, keeps_end=True)
        self._name = words[0]
        self._limit_s = limit_s
        self._ends_at_s = math.inf if limit_s is None else time.monotonic() + limit_s
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
        return None if math.isinf(self._ends_at_s) else max(0.0, self._ends_at_s - time.monotonic())

    def poll(self) -> Finished | None:
        """How it has ended; None while it runs."""
        if self._finished is not None:
            return self._finished
        status = self._child.poll()
        # After its end: what it had printed is in the pipes by then. Another process may keep them open for longer.
        self._out.take()
        self._err.take()
        if status is not None:
            self._finish(status)
        elif self._out.is_over:
            self._kill(f"{self._name} printed more than {self._out.most_bytes >> 20} MiB")
        elif time.monotonic() >= self._ends_at_s:
            self._kill(f"no answer within {self._limit_s:g} s")
        return self._finished

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
        if not self._killed_because:
            self._killed_because = why
            self._signal(signal.SIGKILL)
        # It may take its time to end, or hang in the kernel.
        self._ends_at_s = time.monotonic() + _CLOSING_S

    def _signal(self, number: signal.Signals) -> None:
        # It leads its group, and it is not waited for yet: the number is not another's.
        processes.send_group(self._child.pid, number)

    def _finish(self, status: int) -> None:
        reaping.release(self._child.pid)
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

    def __init__(self, pipe: IO[bytes], most_bytes: int, *, keeps_end: bool = False) -> None:
        self._pipe = pipe
        self.fd = pipe.fileno()
        os.set_blocking(self.fd, False)
        self.most_bytes = most_bytes
        self.is_open = True
        self._begin = bytearray()
        self._end = bytearray()
        self._keeps_end = keeps_end
        self._dropped = False

    @property
    def is_over(self) -> bool:
        return not self._keeps_end and len(self._begin) > self.most_bytes

    def take(self) -> None:
        """Read what is there, but not for ever from one that prints as fast."""
        for _ in range(_MOST_CHUNKS):
            if not self.is_open or self.is_over:
                return
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return
            if not data:
                self.close()
            self._add(data)

    def content(self) -> bytes:
        dropped = b"\n[...]\n" if self._dropped else b""
        return bytes(self._begin) + dropped + bytes(self._end)

    def close(self) -> None:
        self.is_open = False
        self._pipe.close()

    def _add(self, data: bytes) -> None:
        if not self._keeps_end:
            self._begin += data
            return
        room = max(0, self.most_bytes - len(self._begin))
        self._begin += data[:room]
        self._end += data[room:]
        if len(self._end) > self.most_bytes:
            self._dropped = True
            del self._end[: -self.most_bytes]


def given(content: bytes) -> IO[bytes]:
    """An open file with this content, at its beginning, for `Program(stdin=...)`."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller's child keeps it open
    file.write(content)
    file.seek(0)
    return file
