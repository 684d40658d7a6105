"""A program of the user's: the notice on stdin, delivered when it exits with 0."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

import msgspec

from dispatcher.notify.channels import RefusedError
from dispatcher.notify.text import one_line
from dispatcher.notify_config import Command

_MOST_READ: Final = 4096


def send(channel: Command, notice: Mapping[str, Any], begin: Callable[[], None], limit_s: float) -> str:
    """Run it. Its exit status is its word: another one than 0 says that the notice was not delivered."""
    text = notice["text"].encode() if channel.form == "text" else msgspec.json.encode(notice) + b"\n"
    # No pipe: what it has left in the background would keep that open, and its exit would not count.
    with tempfile.TemporaryFile() as complaints:
        begin()
        try:
            done = subprocess.run(
                channel.argv, input=text, stdout=subprocess.DEVNULL, stderr=complaints, timeout=limit_s, check=False
            )
        except (FileNotFoundError, PermissionError):
            program = channel.argv[0]
            # Neither error tells which it is: a directory of PATH may be closed, an interpreter may be missing.
            if shutil.which(program, mode=os.F_OK) is None:
                raise RefusedError(f"there is no command {one_line(program)}") from None
            raise RefusedError(f"{one_line(program)} cannot be executed") from None
        if done.returncode:
            how = f"exit {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
            said = _last_line(complaints)
            raise RefusedError(one_line(f"{how}: {said}" if said else how))
    return ""


def _last_line(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_READ))
    return file.read().decode(errors="replace").strip().rpartition("\n")[2]
