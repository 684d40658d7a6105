"""Running git in a directory: without prompts, without the caller's GIT_* variables, and with errors that help.

A git that prints nothing for a minute hangs, and is ended with its children.
"""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from dispatcher.base import slow
from dispatcher.base.host import host_name
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
# After this time without output, somebody who waits is told, and git is ended.
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
        with tempfile.TemporaryFile() as errors, self._running(words, errors) as (process, out):
            self._wait(process, out, words)
            return process.returncode == 0

    @contextlib.contextmanager
    def stream(self, *words: str) -> Iterator[IO[bytes]]:
        """The output of git while it runs; CodeError at the end of the block when it has failed."""
        with tempfile.TemporaryFile() as errors, self._running(words, errors) as (process, out):
            try:
                yield out
            except (tarfile.TarError, EOFError) as error:
                # An archive that ends too early is git's failure, if it has failed.
                self._finish(process, out, errors, words)
                raise CodeError(f"{self.directory}: the archive that git made cannot be read: {error}") from error
            self._finish(process, out, errors, words)

    @contextlib.contextmanager
    def _running(
        self, words: Sequence[str], errors: IO[bytes]
    ) -> Iterator[tuple[subprocess.Popen[bytes], io.BufferedReader]]:
        """git and its output; both are ended with the block."""
        with self._started(words, errors) as process, contextlib.ExitStack() as stack:
            stack.callback(_kill, process)
            assert isinstance(process.stdout, io.FileIO)
            yield process, io.BufferedReader(_Patient(process.stdout, f"`git {words[0]}` in {self.directory}"))

    def _started(self, words: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        try:
            return subprocess.Popen(
                ["git", *settings, *words],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                # To be killed as a whole.
                process_group=0,
            )
        except FileNotFoundError:
            if not self.directory.is_dir():
                raise CodeError(f"{self.directory}: there is no such directory") from None
            raise CodeError(f"git is not installed on {host_name()}: install it, {self._otherwise}") from None
        except OSError as error:
            raise CodeError(f"{self.directory}: git cannot be run: {error.strerror}") from None

    def _wait(self, process: subprocess.Popen[bytes], out: io.BufferedReader, words: Sequence[str]) -> None:
        """Wait for its end."""
        while out.read(_BLOCK):
            pass
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise _silent(f"`git {words[0]}` in {self.directory}") from None

    def _finish(
        self, process: subprocess.Popen[bytes], out: io.BufferedReader, errors: IO[bytes], words: Sequence[str]
    ) -> None:
        self._wait(process, out, words)
        if process.returncode == 0:
            return
        errors.seek(0)
        message = errors.read().decode("utf-8", "replace").strip()
        if process.returncode < 0 and not message:
            message = f"ended by signal {-process.returncode}"
        if "not a git repository" in message:
            cure = f"`git init` and commit the code, {self._otherwise}"
            raise CodeError(f"{self.directory}: not in a git repository: {cure}")
        raise CodeError(f"{self.directory}: `git {words[0]}` failed: {message or f'status {process.returncode}'}")


class _Patient(io.RawIOBase):
    """What a program prints; CodeError when that is nothing for too long."""

    def __init__(self, pipe: io.FileIO, what: str) -> None:
        self._pipe = pipe
        self._what = what

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            if not selector.select(TELL_AFTER_S):
                slow.tell(f"waiting for {self._what}, which prints nothing")
                if not selector.select(LIMIT_S - TELL_AFTER_S):
                    raise _silent(self._what)
        return self._pipe.readinto(buffer)


def _silent(what: str) -> CodeError:
    return CodeError(
        f"{what} has printed nothing for {LIMIT_S:g} s, and was ended: find out what holds it up, such as a filter or "
        "a file server that does not answer, and try again"
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End git, if it has not ended, with its children."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
