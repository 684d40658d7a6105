"""Following a log on the host where the attempt runs, for `logs -f`."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from dispatcher import contract
from dispatcher.cli.log_lines import Sink
from dispatcher.cli.printing import note
from dispatcher.config import Config
from dispatcher.errors import OutletError
from dispatcher.outlets.batch.identity import read_submission
from dispatcher.outlets.kinds import located, make_transport
from dispatcher.outlets.remote.asking import carry_out
from dispatcher.outlets.remote.transport import LogTransport
from dispatcher.workspace import AttemptPaths, log_name

_BLOCK: Final = 1 << 16
_CHECK_S: Final = 1.0
_REACH_S: Final = 120.0
_MOST_TRIES: Final = 5
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class RemoteLog(msgspec.Struct, frozen=True):
    """Where an attempt's own log is: the file `name` of a directory that `transport` reaches.

    `follow_elsewhere` closes the transport. Of an attempt with a log on each of several machines it is that of the
    first one, until `several_logs` tells all.
    """

    host: str
    transport: LogTransport
    directory: str
    name: str = contract.LOG_FILE


def log_elsewhere(config: Config, paths: AttemptPaths, rank: int = 0) -> RemoteLog | None:
    """Where the process `rank` of the attempt writes its log.

    None when that is a file in the workspace, or the host is unknown here.
    """
    submission = read_submission(paths)
    if submission is None or submission.directory in ("", os.fspath(paths.directory)):
        return None
    host = config.hosts.hosts.get(submission.outlet)
    if host is None:
        note(f"{submission.outlet} is no configured host: only what was copied from there before is shown")
        return None
    transport = make_transport(located(host, config, submission.location), config, _owner())
    return RemoteLog(host.name, transport, submission.directory, log_name(rank))


def several_logs(where: RemoteLog) -> dict[int, RemoteLog]:
    """Where the logs are of an attempt that has one on each of several machines, by index; none when there is one."""
    try:
        transports = carry_out(where.transport.reach(_REACH_S))
    except OutletError as error:
        note(f"{where.host}: {error}")
        return {}
    return {
        index: RemoteLog(f"{where.host}, worker {index}", transport, where.directory)
        for index, transport in enumerate(transports)
    }


def _owner() -> str:
    """This command alone: another `logs -f` must not lose its way there when this one ends."""
    return f"logs {socket.gethostname()} {os.getpid()}"


def follow_elsewhere(where: RemoteLog, out: Sink, offset: int, has_ended: Callable[[], bool]) -> None:
    """Copy the log from `offset` on until the attempt has ended there, or as far as the workspace knows.

    A connection that breaks off is made again, and nothing is printed twice or left out.
    """
    with contextlib.closing(where.transport):
        _follow(where, out, offset, has_ended)


def copy_what_is_there(where: RemoteLog, out: Sink) -> int:
    """Copy the log as far as it is now; the bytes."""
    return _copy(where, where.transport.rest_words, 0, out, lambda: False)[0]


class _Backoff:
    """Pauses between failures, which double while nothing is copied; what is new of them is printed."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._pause_s = _FIRST_PAUSE_S
        self._told = ""

    def pause(self, copied: int, code: int, error: str) -> None:
        problem = error or f"the connection has ended (status {code})"
        if problem != self._told:
            self._told = problem
            note(f"{self._host}: {problem}; trying again")
        self._pause_s = _FIRST_PAUSE_S if copied else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        time.sleep(self._pause_s)


def _follow(where: RemoteLog, out: Sink, offset: int, has_ended: Callable[[], bool]) -> None:
    patience = _Backoff(where.host)
    while True:
        copied, code, error = _copy(where, where.transport.follow_words, offset, out, has_ended)
        offset += copied
        if code == 0 or has_ended():
            break
        patience.pause(copied, code, error)
    for _ in range(_MOST_TRIES):
        copied, code, error = _copy(where, where.transport.rest_words, offset, out, lambda: False)
        offset += copied
        if code == 0:
            return
        patience.pause(copied, code, error)
    note(f"{where.host}: the end of the log may be missing here")


def _copy(
    where: RemoteLog, words: Callable[[str, int, str], list[str]], offset: int, out: Sink, is_over: Callable[[], bool]
) -> tuple[int, int, str]:
    """Copy the log from `offset` on, with the words of the transport; see `_run`."""
    try:
        carry_out(where.transport.reach(_REACH_S))
        command = words(where.directory, offset, where.name)
    except OutletError as error:
        return 0, 1, str(error)
    return _run(command, out, is_over)


def _run(words: Sequence[str], out: Sink, is_over: Callable[[], bool]) -> tuple[int, int, str]:
    """Copy what a command prints until it ends or `is_over`; the bytes, its status, and the end of its errors."""
    copied = 0
    with _started(words) as process:
        assert process.stdout is not None and process.stderr is not None
        while True:
            ready, _, _ = select.select([process.stdout], [], [], _CHECK_S)
            if ready:
                block = os.read(process.stdout.fileno(), _BLOCK)
                if not block:
                    break
                out.write(block)
                out.flush()
                copied += len(block)
            elif is_over():
                break
        # The program on the host notices that its output is not read any more.
        process.stdin.close()  # type: ignore[union-attr]
        process.stdout.close()
        if is_over():
            process.terminate()
        error = process.stderr.read(_BLOCK).decode(errors="replace").strip()
        return copied, process.wait(), error.rpartition("\n")[2]


@contextlib.contextmanager
def _started(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
    except OSError as error:
        raise OutletError(f"{words[0]} cannot be started: {error.strerror}") from None
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
