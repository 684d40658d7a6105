"""Running git in a directory: without prompts, without the caller's GIT_* variables, and with errors that help.

A git that prints nothing for a minute hangs, and is ended with its children.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from dispatcher.base import slow
from dispatcher.base.host import host_name
from dispatcher.base.programs import Finished, Program, wait_for_any
from dispatcher.errors import CodeError

# What a hook or a user's shell may have set for another repository.
_SCRUBBED: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX", "GIT_NAMESPACE")
# The result depends on the repository alone, not on the settings of the user who archives it.
_SETTINGS: Final = ("core.autocrlf=false", "core.attributesFile=/dev/null")
# The identity is not used for anything; git refuses to make a commit without one.
_IDENTITY: Final = {
    "GIT_AUTHOR_NAME": "dispatcher",
    "GIT_AUTHOR_EMAIL": "dispatcher@localhost",
    "GIT_COMMITTER_NAME": "dispatcher",
    "GIT_COMMITTER_EMAIL": "dispatcher@localhost",
}
_BLOCK: Final = 1 << 16
# After this time without output, a person who waits is told, and git is ended.
TELL_AFTER_S: Final = 5.0
LIMIT_S: Final = 60.0
OTHERWISE: Final = "or set `code: none` in dispatcher.yaml if the hosts have the code already"


class Git:
    """git in `directory`, with further variables in its environment.

    `otherwise`: what helps where there is no git or no repository, but to make one.
    """

    def __init__(
        self, directory: Path, environment: Mapping[str, str] | None = None, *, otherwise: str = OTHERWISE
    ) -> None:
        self.directory = directory
        self._otherwise = otherwise
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in _SCRUBBED},
            **_IDENTITY,
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            **(environment or {}),
        }

    def output(self, *words: str) -> bytes:
        """What git prints; raises CodeError with its message when it fails."""
        with self.stream(*words) as out:
            return out.read()

    def text(self, *words: str) -> str:
        """The line that git prints; bytes that are no UTF-8 are kept as surrogates."""
        return self.output(*words).decode("utf-8", "surrogateescape").rstrip("\n")

    def succeeds(self, *words: str) -> bool:
        """Whether git exits with status 0."""
        with self._running(words) as out:
            return out.wait().exit_code == 0

    @contextlib.contextmanager
    def stream(self, *words: str) -> Iterator[IO[bytes]]:
        """The output of git while it runs; CodeError at the end of the block when it has failed."""
        with self._running(words) as out:
            reader = io.BufferedReader(out)
            try:
                yield reader
            except (tarfile.TarError, EOFError) as error:
                # An archive that ends too early is git's failure, if it has failed.
                self._refuse_failure(out.wait(), words)
                raise CodeError(f"{self.directory}: the archive that git made cannot be read: {error}") from error
            self._refuse_failure(out.wait(), words)

    @contextlib.contextmanager
    def _running(self, words: Sequence[str]) -> Iterator[_Output]:
        """The output of git, which is ended with the block."""
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        try:
            out = _Output(["git", *settings, *words], self.directory, self._environment, f"`git {words[0]}`")
        except FileNotFoundError:
            if not self.directory.is_dir():
                raise CodeError(f"{self.directory}: there is no such directory") from None
            raise CodeError(f"git is not installed on {host_name()}: install it, {self._otherwise}") from None
        except OSError as error:
            raise CodeError(f"{self.directory}: git cannot be run: {error.strerror}") from None
        try:
            yield out
        finally:
            out.program.close()

    def _refuse_failure(self, finished: Finished, words: Sequence[str]) -> None:
        if finished.exit_code == 0:
            return
        message = finished.errors.strip()
        if finished.exit_code < 0 and not message:
            message = f"ended by signal {-finished.exit_code}"
        if "not a git repository" in message:
            cure = f"`git init` and commit the code, {self._otherwise}"
            raise CodeError(f"{self.directory}: not in a git repository: {cure}")
        raise CodeError(f"{self.directory}: `git {words[0]}` failed: {message or f'status {finished.exit_code}'}")


class _Output(io.RawIOBase):
    """What git prints, while it runs; CodeError when that is nothing for too long."""

    def __init__(self, words: Sequence[str], directory: Path, environment: Mapping[str, str], name: str) -> None:
        self._what = f"{name} in {directory}"
        self._unread = bytearray()
        self.program = Program(
            words,
            limit_s=None,
            environment=environment,
            directory=directory,
            take=self._unread.extend,
            silent_s=LIMIT_S,
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._unread:
            self._fill()
        size = min(len(buffer), len(self._unread))
        buffer[:size] = self._unread[:size]
        del self._unread[:size]
        return size

    def wait(self) -> Finished:
        """How git has ended. What it has printed and was not read is dropped."""
        dropped = bytearray(_BLOCK)
        while self.readinto(dropped):
            pass
        return self.program.wait()

    def _fill(self) -> None:
        """Wait until there is something to read, or git has ended."""
        while (finished := self.program.poll()) is None and not self._unread:
            if not wait_for_any([self.program], TELL_AFTER_S):
                slow.tell(f"waiting for {self._what}, which prints nothing")
                wait_for_any([self.program])
        if finished is not None and finished.killed_because:
            raise _silent(self._what)


def _silent(what: str) -> CodeError:
    return CodeError(
        f"{what} has printed nothing for {LIMIT_S:g} s, and was ended: find out what holds it up, such as a filter or "
        "a file server that does not answer, and try again"
    )
