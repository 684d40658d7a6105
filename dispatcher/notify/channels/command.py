"""A program of the user's: the notice on stdin, delivered when it exits with 0."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dispatcher.notify.channels import RefusedError
from dispatcher.notify.text import one_line
from dispatcher.notify_config import Command


def send(channel: Command, notice: Mapping[str, Any], begin: Callable[[], None], limit_s: float) -> str:
    """Run it. Its exit status is its word: another one than 0 says that the notice was not delivered."""
    text = notice["text"].encode() if channel.form == "text" else msgspec.json.encode(notice) + b"\n"
    begin()
    try:
        done = subprocess.run(
            channel.argv, input=text, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=limit_s, check=False
        )
    except FileNotFoundError:
        raise RefusedError(f"there is no command {one_line(channel.argv[0])}") from None
    except PermissionError:
        raise RefusedError(f"{one_line(channel.argv[0])} cannot be executed") from None
    if done.returncode:
        how = f"exit {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RefusedError(one_line(f"{how}: {said}" if said else how))
    return ""
