"""The log of an attempt on a host that does not see the workspace, as it grows: a `tail -F` there."""

from __future__ import annotations

import shlex
from typing import Final

from dispatcher import contract
from dispatcher.outlets.remote import ssh

# Ends when the attempt has left its exit status, and when its reader is gone: then stdin comes to its end.
_FOLLOW: Final = """
exec 3<&0
tail -c "+$2" -F -- "$1/$3" 2>/dev/null & tail=$!
(cat <&3 >/dev/null; kill "$tail") 2>/dev/null & reader=$!
while [ ! -e "$1/$4" ]; do
    kill -0 "$tail" 2>/dev/null || exit 1
    sleep 1
done
kill "$tail" "$reader" 2>/dev/null
exit 0
"""
_REST: Final = '[ ! -e "$1/$3" ] || tail -c "+$2" -- "$1/$3"'


def follow_command(directory: str, offset: int, name: str) -> list[str]:
    """The command that prints the log of this name from `offset` on, until the attempt in `directory` or stdin ends.

    Its status is 0 when the attempt has ended. The last lines may be missing then: `rest_command`.
    """
    return ["sh", "-c", _FOLLOW, "sh", directory, str(offset + 1), name, contract.EXIT_FILE]


def rest_command(directory: str, offset: int, name: str) -> list[str]:
    """The command that prints the log of this name from `offset` on, as far as it is now."""
    return ["sh", "-c", _REST, "sh", directory, str(offset + 1), name]


def over_ssh(target: str, command: list[str]) -> list[str]:
    """The words that run a command on another machine; raises OutletError for a target that can be no host."""
    return [*ssh.client_words(*ssh.opened_by_hand()), "--", ssh.checked_target(target), shlex.join(command)]
