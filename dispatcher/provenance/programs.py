"""Running programs beside the loop: with one deadline for all of them, and nothing left behind when it is over."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from dispatcher.base.programs import Program

# Of what a program prints to stderr.
_LONGEST_ERROR: Final = 4096
# How long the children of a killed program may need to be gone; one that hangs in the kernel is left alone.
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
            # In the pod's session, by which the pod knows its own programs.
            program = Program(
                words, limit_s=deadline.left_s, stdin=stdin, environment=environment, directory=cwd, take=take
            )
    except (OSError, ValueError) as error:
        text = "not installed" if isinstance(error, FileNotFoundError) else str(error)
        raise ProgramError(f"{name}: {text}") from None
    try:
        finished = program.wait()
    finally:
        program.kill()
        _collect(program.pid)
    if finished.killed_because:
        raise TooSlowError(f"{name}: no answer within {deadline.seconds:g} s")
    if finished.exit_code not in good:
        raise ProgramError(f"{name}: {finished.errors.strip()[:_LONGEST_ERROR] or f'exit status {finished.exit_code}'}")


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


def _collect(group: int) -> None:
    """Collect the orphans of a killed program, which the pod inherits; it leaves its own programs to themselves."""
    end_s = time.monotonic() + _GONE_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end_s:
            pid, _ = os.waitpid(-group, os.WNOHANG)
            if not pid:
                time.sleep(0.01)
