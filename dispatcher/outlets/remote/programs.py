"""Child processes of outlets, as `base/programs.py` has them, in sessions of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from dispatcher.base import programs
from dispatcher.base.programs import Finished
from dispatcher.errors import OutletError
from dispatcher.outlets.remote.operations import Ran


class Program(programs.Program):
    """A program in a session of its own: what interrupts the dispatcher does not interrupt it."""

    session = True

    def __init__(
        self,
        words: Sequence[str],
        *,
        limit_s: float | None,
        stdin: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
    ) -> None:
        """Raises OutletError when it cannot start."""
        try:
            super().__init__(words, limit_s=limit_s, stdin=stdin, environment=environment, directory=directory)
        except OSError as error:
            raise OutletError(f"{words[0]} cannot be started: {error.strerror or error}") from error


def ran(finished: Finished) -> Ran:
    """The same as the answer of an agent that has run the program."""
    exit_code = None if finished.killed_because else finished.exit_code
    return Ran(exit_code=exit_code, out=finished.out.decode(errors="replace"), err=finished.errors)


def given(content: bytes) -> IO[bytes]:
    """An open file with this content, at its beginning, for `Program(stdin=...)`."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller's child keeps it open
    file.write(content)
    file.seek(0)
    return file
