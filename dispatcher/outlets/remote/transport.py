"""Transports: how the agent is reached where a host's files are, on this machine or over ssh."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final, Protocol

from dispatcher import contract
from dispatcher.base.programs import Finished
from dispatcher.errors import OutletError
from dispatcher.outlets.remote import follow, ssh
from dispatcher.outlets.remote.exchange import (
    BEGUN,
    CUT_SHORT,
    GUARD,
    TAKEN_OVER,
    Exchange,
    Talk,
    agent_command,
    agent_words,
    nothing,
    talk_once,
)
from dispatcher.outlets.remote.operations import Operation
from dispatcher.outlets.remote.programs import Program

_CONTROL_LIMIT_S: Final = 10.0
# What interpreters say of a program on stdin: Python, Perl, Ruby, Node. Ours is given as an argument.
_TAKEN_BY: Final = re.compile(r'file "?<stdin>|\bat - line \d|^-:\d+:|^\[stdin\]:\d', re.IGNORECASE | re.M)
_START_FILE: Final = "a start file of the login (~/.bashrc, ~/.profile, ~/.ssh/rc ...)"
_ONLY: Final = "let it do that only in logins with a terminal, below a line `[[ $- == *i* ]] || return`"
_PYTHON_SAYS: Final = re.compile(r"^Traceback \(most recent call last\)|SyntaxError", re.M)


class LogTransport(Protocol):
    """The way to the logs of attempts, for those who follow one."""

    def reach(self, timeout_s: float) -> Talk:
        """What has to be done before the words of the next two methods can be run.

        Answers with a transport to each machine where an attempt has a log on each of several; else with nothing.
        """

    def follow_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        """The command that prints an attempt's log `name` from `offset` on, until the attempt has ended or stdin has.

        Its status is 0 when the attempt has ended. The last lines may be missing then: `rest_words`.
        """

    def rest_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        """The command that prints an attempt's log `name` from `offset` on, as far as it is now."""

    def close(self) -> None:
        """Nothing of it is under way any more."""


class Transport(LogTransport, Protocol):
    """The way to one host. `sent_bytes` is what calls have sent there by now."""

    @property
    def sent_bytes(self) -> int: ...

    def talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        """One call of the agent, which has this time altogether. Two calls may be under way at the same time."""

    def failed(self, *, another_runs: bool) -> None:
        """A call brought no answer: the next one may need another connection. Never waits."""


def transport_to(name: str, ssh_target: str | None) -> Transport:
    """The transport to a machine; `ssh_target` None: this one. Raises OutletError for a target that can be no host."""
    return LocalTransport(name) if ssh_target is None else SshTransport(name, ssh_target)


class LocalTransport:
    """This machine, where the agent runs as a child process. `name` is what messages call it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent_bytes = 0

    def talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        exchange = Exchange(operations, timeout_s)
        self.sent_bytes += exchange.size
        return talk_once(exchange, agent_words(sys.executable), timeout_s, self._explain)

    def failed(self, *, another_runs: bool) -> None:
        """There is nothing to be opened anew."""

    def reach(self, timeout_s: float) -> Talk:
        return nothing()

    def follow_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return follow.follow_command(directory, offset, name)

    def rest_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return follow.rest_command(directory, offset, name)

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _explain(self, finished: Finished) -> str:
        return explain_limit(self.name, finished) or ssh.explain(finished.exit_code, finished.errors, self.name)


class SshTransport:
    """Another machine over ssh; the calls share a connection. `python` is the interpreter there."""

    def __init__(self, name: str, target: str, python: str = "python3") -> None:
        """Raises OutletError for a target that can be no host."""
        self.name = name
        self.shared = ssh.SharedConnection(target)
        self.sent_bytes = 0
        self._python = python
        # Programs that close connections: not waited for.
        self._closing: list[Program] = []

    def talk(self, operations: Sequence[Operation], timeout_s: float) -> Talk:
        self._closing = [program for program in self._closing if program.poll() is None]
        exchange = Exchange(operations, timeout_s)
        self.sent_bytes += exchange.size
        return talk_once(exchange, self.shared.words(agent_command(self._python)), timeout_s, self._explain)

    def failed(self, *, another_runs: bool) -> None:
        """The connection may hang for longer than a new one takes, and a call over it that was given up goes on.

        A call that is under way keeps it until it has ended.
        """
        if self.shared.is_open():
            self._begin_to_close(self.shared.renew("stop" if another_runs else "exit"))

    def reach(self, timeout_s: float) -> Talk:
        return nothing()

    def follow_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return follow.over_ssh(self.shared.target, follow.follow_command(directory, offset, name))

    def rest_words(self, directory: str, offset: int, name: str = contract.LOG_FILE) -> list[str]:
        return follow.over_ssh(self.shared.target, follow.rest_command(directory, offset, name))

    def close(self) -> None:
        if self.shared.is_open():
            self._begin_to_close(self.shared.control_words("exit"))
        for program in self._closing:
            program.close(_CONTROL_LIMIT_S)
        self.shared.remove()

    def _begin_to_close(self, words: Sequence[str]) -> None:
        try:
            self._closing.append(Program(words, limit_s=_CONTROL_LIMIT_S))
        except OutletError:
            # Without its client it ends when it is idle, and the next call shows that there is no ssh.
            return

    def _explain(self, finished: Finished) -> str:
        target = self.shared.target
        return (
            _explain_login(target, finished)
            or explain_limit(target, finished)
            or ssh.explain(finished.exit_code, finished.errors, target)
        )


def _explain_login(target: str, finished: Finished) -> str:
    """What a start file of the login has done, so that the agent was not started, or not as it should; else empty."""
    # A program may print what is meant for the agent.
    is_echoed = GUARD.encode() in finished.out
    if finished.exit_code == TAKEN_OVER or is_echoed or _TAKEN_BY.search(finished.errors):
        return f"{target}: {_START_FILE} replaces the shell by another one, or by a program (`exec`): {_ONLY}"
    if finished.exit_code == CUT_SHORT:
        return f"{target}: {_START_FILE} reads from standard input, and so takes what is meant for the agent: {_ONLY}"
    if finished.killed_because and BEGUN.encode() not in finished.out:
        return (
            f"{explain_limit(target, finished)}. The agent has not begun: the host hangs, or {_START_FILE} waits for "
            f"something, or replaces the shell: {_ONLY}"
        )
    # A program that cannot be found, or a Python that fails, says so itself.
    if finished.exit_code in (126, 127, 255) or finished.exit_code < 0 or _PYTHON_SAYS.search(finished.errors):
        return ""
    says = ssh.shown(finished.errors)
    return (
        f"{target}: the login ended with status {finished.exit_code} and no answer: {_START_FILE} exits, ends the "
        f"shell by `set -e`, replaces it by a program, or sends its output elsewhere: {_ONLY}"
        + (f". It says: {says}" if says else "")
    )


def explain_limit(name: str, finished: Finished) -> str:
    """That a program was killed from here, and what it had to say until then; empty when it ended by itself."""
    if not finished.killed_because:
        return ""
    err = ssh.shown(finished.errors)
    return f"{name}: {finished.killed_because}" + (f": {err}" if err else "")
