"""A directory copied to another place or host by rsync, for code that is in no repository.

The copy is made beside the target and takes its place by a rename, so that a transfer that breaks off is never taken
for the directory. Files that the target has already are not sent again.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dispatcher.base.host import host_name
from dispatcher.errors import CodeError

# What is made from code, or by jobs; as patterns of rsync.
EXCLUDED: Final = (
    ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", "*.pyc", ".ipynb_checkpoints",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox", ".nox", "*.egg-info", ".DS_Store", "/run_state",
)  # fmt: skip
# A file of the source that was deleted meanwhile: the copy is what the source is now.
_VANISHED: Final = 24
_PREPARE: Final = 'mkdir -p -- "$1" && find "$1" -maxdepth 1 -name "$2" -mtime +0 -exec rm -rf -- {} +'
_FINISH: Final = """
if [ -e "$1" ] || [ -L "$1" ]; then mv -T -- "$1" "$2.old" || exit; fi
mv -T -- "$2" "$1" || exit
rm -rf -- "$2.old"
"""
_REMOVE: Final = 'rm -rf -- "$1"'


def sync(source: Path, target: str, *, ssh: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
    """Make the directory `target`, an absolute path, a copy of `source`, without EXCLUDED and `exclude`.

    `ssh` are the words of an ssh command up to and including the host; none: the target is on this machine. Blocks
    until the copy is complete. What is in the target and not in the source is removed. Raises CodeError: the target is
    then as it was, or missing if the last step broke off.
    """
    if not source.is_dir():
        raise CodeError(f"{source}: there is no such directory to copy")
    parent, name = os.path.split(os.path.normpath(target))
    if not name or not os.path.isabs(target):
        raise CodeError(f"{target!r}: expected an absolute path to copy {source} to")
    token = os.urandom(6).hex()
    partial = os.path.join(parent, f".{name}.{token}.partial")
    there = _Target(ssh)
    # Those of transfers that broke off long ago; a name is no pattern here.
    there.run(_PREPARE, parent, "." + "".join(f"[{letter}]" for letter in name if letter not in "]^!") + ".*.partial")
    try:
        there.copy(source, target, partial, exclude)
    except CodeError:
        there.run(_REMOVE, partial, must_work=False)
        raise
    there.run(_FINISH, target, partial)


class _Target:
    """Where the copy goes: this machine, or a host behind ssh."""

    def __init__(self, ssh: Sequence[str]) -> None:
        self._ssh = list(ssh)
        self._name = ssh[-1] if ssh else host_name()

    def run(self, script: str, *words: str, must_work: bool = True) -> None:
        """Run a shell script there with arguments; raises CodeError if it fails and must not."""
        command = ["sh", "-c", script, "sh", *words]
        self._call([*self._ssh, shlex.join(command)] if self._ssh else command, (0,), must_work=must_work)

    def copy(self, source: Path, target: str, partial: str, exclude: Sequence[str]) -> None:
        """Fill `partial` there; what `target` has of it is copied there, not sent."""
        words = ["rsync", "-rlpt", "--omit-dir-times", "--protect-args", "--delete", f"--copy-dest={target}"]
        words += [f"--exclude={pattern}" for pattern in (*EXCLUDED, *exclude)]
        if self._ssh:
            words += ["--compress", f"--rsh={' '.join(map(_rsync_quoted, self._ssh[:-1]))}"]
            partial = f"{self._name}:{partial}"
        self._call([*words, "--", f"{source}/", f"{partial}/"], (0, _VANISHED))

    def _call(self, words: Sequence[str], good: Sequence[int], *, must_work: bool = True) -> None:
        try:
            ran = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except FileNotFoundError:
            raise CodeError(f"{words[0]} is not installed on {host_name()}: it copies directories") from None
        if must_work and ran.returncode not in good:
            message = ran.stderr.decode("utf-8", "replace").strip() or f"{words[0]} ended with status {ran.returncode}"
            raise CodeError(f"copying to {self._name}: {message}")


def _rsync_quoted(word: str) -> str:
    """A word of --rsh, which rsync splits by rules of its own."""
    doubled = word.replace("'", "''")
    return f"'{doubled}'"
