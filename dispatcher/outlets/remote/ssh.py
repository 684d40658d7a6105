"""The ssh client: which words start it, where its shared connections have their sockets, and what its failures mean.

The client does not ask questions, and it refuses hosts whose key it does not know: connect once by hand to a new host,
`ssh HOST`. Everything else (user, port, key, a jump host) is read from the user's configuration of ssh, or from the
file that DISPATCHER_SSH_CONFIG names.

Where a login needs a one-time password, a person opens a connection by hand, `ssh -M -S PATH HOST`, and
DISPATCHER_SSH_SOCKET=PATH lets dispatchers use it; the path may have ssh's %h, %p and %r for several hosts.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from dispatcher.base import temporary
from dispatcher.errors import OutletError

CONFIG_VARIABLE: Final = "DISPATCHER_SSH_CONFIG"
SOCKET_VARIABLE: Final = "DISPATCHER_SSH_SOCKET"
# For how long an unused connection stays open; after a dispatcher that was killed, too.
_PERSIST_S: Final = 120
_CONNECT_S: Final = 15
# A connection on which nothing is heard for 45 s is closed.
_ALIVE_INTERVAL_S: Final = 15
_ALIVE_COUNT: Final = 3
# The name of a socket has at most 107 bytes, of which ssh needs 17 for a temporary name.
_LONGEST_SOCKET: Final = 85
# Of what a program has printed, so much is shown.
_MOST_LINES: Final = 4
_LONGEST_WORDS: Final = 300
# What of ssh's warning about a changed host key people need.
_KEYS: Final = (
    ("now", re.compile(r"(SHA256:[\w+/=]+)")),
    ("known from", re.compile(r"Offending \S+ key in (\S+)")),
)
_DIRECTORY_PREFIX: Final = "dispatcher-ssh"
_OPTIONS: Final = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": str(_CONNECT_S),
    "ServerAliveInterval": str(_ALIVE_INTERVAL_S),
    "ServerAliveCountMax": str(_ALIVE_COUNT),
    # What a user's own configuration may have for logins by hand.
    "ClearAllForwardings": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "PermitLocalCommand": "no",
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "EscapeChar": "none",
    "LogLevel": "ERROR",
}


def checked_target(word: str) -> str:
    """`word` if it can be the name of a host for ssh; raises OutletError."""
    if not word or word.startswith("-") or not re.fullmatch(r"[^\s\x00-\x1f\x7f]+", word):
        raise OutletError(f"ssh: {word!r} is not the name of a host: user@host, or an alias of ~/.ssh/config")
    return word


def client_words(*options: str) -> list[str]:
    """`ssh` with the options of every call; further ones are `Name=value`."""
    words = ["ssh", *_config_words()]
    for option in (*(f"{name}={value}" for name, value in _OPTIONS.items()), *options):
        words += ["-o", option]
    return words


def opened_by_hand() -> list[str]:
    """The options that use a connection that was opened by hand; none without DISPATCHER_SSH_SOCKET."""
    path = os.environ.get(SOCKET_VARIABLE)
    return ["ControlMaster=no", f"ControlPath={path}"] if path else []


def _config_words() -> list[str]:
    config = os.environ.get(CONFIG_VARIABLE)
    return ["-F", config] if config else []


class SharedConnection:
    """The socket by which the calls of one host share a connection (ControlMaster), in a directory of its own."""

    def __init__(self, target: str) -> None:
        self.target = checked_target(target)
        # Fails while a socket is in it: its connection has not ended yet.
        temporary.remove_leftovers(_parent_directory(), f"{_DIRECTORY_PREFIX}-", Path.rmdir)
        self._directory = _new_directory()
        self._number = 0

    @property
    def socket(self) -> Path:
        return self._directory / str(self._number)

    def words(self, command: str) -> list[str]:
        """The words that run a shell command on the host over the shared connection, which the first one opens."""
        if not self._directory.is_dir():
            # A program that cleans /tmp has removed it.
            self._directory = _new_directory()
        return [*client_words(*self._sharing()), "--", self.target, command]

    def control_words(self, request: str) -> list[str]:
        """The words that ask the process that keeps the connection: `exit`, or `stop` when it is idle.

        Without the user's configuration, whose forwardings would be asked for as well; but it may be needed to find a
        connection that was opened by hand.
        """
        config = _config_words() if os.environ.get(SOCKET_VARIABLE) else ["-F", "none"]
        path = f"ControlPath={self._control_path()}"
        return ["ssh", *config, "-o", path, "-O", request, "--", self.target]

    def renew(self, request: str) -> list[str]:
        """Let the next call open another connection; the words that close this one (see control_words)."""
        words = self.control_words(request)
        self._number += 1
        return words

    def _sharing(self) -> list[str]:
        own = ["ControlMaster=auto", f"ControlPath={self.socket}", f"ControlPersist={_PERSIST_S}"]
        return opened_by_hand() or own

    def _control_path(self) -> str:
        return os.environ.get(SOCKET_VARIABLE) or os.fspath(self.socket)

    def is_open(self) -> bool:
        """Whether there is a connection that was opened from here, as far as its socket tells."""
        return self.socket.exists()

    def remove(self) -> None:
        """Remove the directory of the sockets; those who keep connections end when they are idle."""
        shutil.rmtree(self._directory, ignore_errors=True)


def _new_directory() -> Path:
    """A directory for sockets that others cannot enter."""
    return Path(tempfile.mkdtemp(prefix=f"{_DIRECTORY_PREFIX}-{os.getpid()}-", dir=_parent_directory()))


def _parent_directory() -> str:
    """Not XDG_RUNTIME_DIR, which is removed when a user logs out, while a dispatcher in tmux goes on."""
    directory = tempfile.gettempdir()
    # Room for the directory's own name, and the socket's.
    return directory if len(os.fsencode(directory)) + 45 < _LONGEST_SOCKET else "/tmp"


def explain(exit_code: int, err: str, host: str) -> str:
    """Why a call of the agent has brought no answer, for people, in one line."""
    says = shown(err)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in err:
        found = [f"{what} {match[1]}" for what, pattern in _KEYS if (match := pattern.search(err))]
        return (
            f"the host key of {host} has changed; nothing was sent there. Find out why; then `ssh-keygen -R` and "
            f"connect by hand, `ssh {host}`" + (f" ({', '.join(found)})" if found else "")
        )
    if "Host key verification failed" in err:
        return f"the host key of {host} is not known: connect once by hand, `ssh {host}`. ssh says: {says}"
    if exit_code == 255:
        return f"ssh {host}: {says or 'the connection broke off (status 255)'}"
    if exit_code in (126, 127) and "python" in err:
        return f"{host} has no python3 on PATH of a login without a terminal; Python 3.6 or newer is needed: {says}"
    if "SyntaxError" in err:
        return f"python3 of {host} is older than 3.6: {says}"
    how = f"signal {-exit_code}" if exit_code < 0 else f"status {exit_code}"
    return f"{host} gave no answer ({how}): {says or 'and no error message'}"


def shown(err: str) -> str:
    """The end of what a program has printed, in one short line: what it died of is there, behind banners."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    text = " | ".join(lines[-_MOST_LINES:])
    return text if len(text) <= _LONGEST_WORDS else f"...{text[-_LONGEST_WORDS:]}"
