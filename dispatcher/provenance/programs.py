"""Running programs beside the loop: with one deadline for all of them, and nothing left behind when it is over."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

_BLOCK: Final = 1 << 16
# Of what a program prints to stderr.
_MOST_ERRORS: Final = 4096
# How long a killed program may need to be gone; one that hangs in the kernel is left alone.
_GONE_S: Final = 1.0


class ProgramError(Exception):
    """A program could not be run, or has failed; the text is for people."""


class TooSlowError(ProgramError):
    """The deadline was over."""


class Deadline:
    """`seconds` from now, for everything that is given this object."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._end_s - time.monotonic())

    def check(self, what: str) -> None:
        """Raise TooSlowError when it is over."""
        if not self.left_s:
            raise TooSlowError(f"{what}: no answer within {self.seconds:g} s")


def run(
    words: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    deadline: Deadline,
    take: Callable[[bytes], object],
    given: bytes = b"",
    good: Sequence[int] = (0,),
) -> None:
    """Run a program with `given` as its input; `take` is given what it prints, piece by piece.

    Raises TooSlowError when the deadline is over, and ProgramError when it cannot be run or ends with another status
    than the `good` ones. It and its children are killed in both cases.
    """
    name = os.path.basename(words[0])
    deadline.check(name)
    try:
        with tempfile.TemporaryFile() if given else open(os.devnull, "rb") as stdin:
            if given:
                stdin.write(given)
                stdin.seek(0)
            # A group of its own, to be killed as a whole; the pod's session, by which the pod knows its own programs.
            process = subprocess.Popen(
                list(words),
                cwd=cwd,
                env=dict(environment),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                bufsize=0,
            )
    except (OSError, ValueError) as error:
        text = "not installed" if isinstance(error, FileNotFoundError) else str(error)
        raise ProgramError(f"{name}: {text}") from None
    errors = bytearray()
    try:
        assert process.stdout is not None and process.stderr is not None
        _pump({process.stdout: take, process.stderr: lambda data: _append(errors, data)}, deadline, name)
        try:
            status = process.wait(deadline.left_s)
        except subprocess.TimeoutExpired:
            deadline.check(name)
            raise TooSlowError(f"{name}: no answer within {deadline.seconds:g} s") from None
    finally:
        _end(process)
    if status not in good:
        raise ProgramError(f"{name}: {errors.decode('utf-8', 'replace').strip() or f'exit status {status}'}")


def output(
    words: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    deadline: Deadline,
    most_bytes: int,
    given: bytes = b"",
    good: Sequence[int] = (0,),
) -> bytes:
    """What a program prints; ProgramError also when that is more than `most_bytes`."""
    found = bytearray()

    def take(data: bytes) -> None:
        found.extend(data)
        if len(found) > most_bytes:
            raise ProgramError(f"{os.path.basename(words[0])}: printed more than {most_bytes} bytes")

    run(words, cwd=cwd, environment=environment, deadline=deadline, take=take, given=given, good=good)
    return bytes(found)


def _pump(takers: Mapping[IO[bytes], Callable[[bytes], object]], deadline: Deadline, name: str) -> None:
    with selectors.DefaultSelector() as selector:
        for stream, take in takers.items():
            selector.register(stream, selectors.EVENT_READ, take)
        while selector.get_map():
            ready = selector.select(deadline.left_s)
            deadline.check(name)
            for key, _ in ready:
                data = os.read(key.fd, _BLOCK)
                if data:
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)


def _append(errors: bytearray, data: bytes) -> None:
    errors.extend(data[: max(0, _MOST_ERRORS - len(errors))])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the program and its children, and collect them."""
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GONE_S)
    # The pod inherits the orphans of its children, and whoever collects those of its attempts leaves its own programs.
    end_s = time.monotonic() + _GONE_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end_s:
            pid, _ = os.waitpid(-process.pid, os.WNOHANG)
            if not pid:
                time.sleep(0.01)
