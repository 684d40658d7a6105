"""The makers as a program, for a loop that must not wait for git: its words, and what its output means."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import msgspec

from dispatcher.config import CodeMode
from dispatcher.errors import CodeError
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.workspace import Layout


def snapshot_words(layout: Layout, mode: CodeMode, in_use: Iterable[str] = ()) -> list[str]:
    """The command that makes a snapshot and prints it; `mode` is SHIP or DIRTY.

    It removes old archives, but none whose digest begins with one of `in_use`.
    """
    words = [sys.executable, "-P", "-m", "dispatcher.outlets.code", os.fspath(layout.root), mode.value]
    return [*words, *in_use]


def copy_words(layout: Layout, label: str = "") -> list[str]:
    """The command that takes a copy of the code (copies.py), or extracts the copy `label`, and prints its snapshot."""
    words = [sys.executable, "-P", "-m", "dispatcher.outlets.code", os.fspath(layout.root)]
    return [*words, *(["extract", label] if label else ["keep"])]


def read_snapshot(exit_code: int | None, out: bytes, err: bytes = b"") -> CodeSnapshot:
    """The snapshot that the command has printed; raises CodeError with its message when it failed.

    `exit_code` None: it was killed because it took too long.
    """
    if exit_code == 0:
        try:
            return msgspec.json.decode(out, type=CodeSnapshot)
        except msgspec.DecodeError as error:
            raise CodeError(f"the program that archives the code printed no snapshot: {error}") from None
    message = err.decode("utf-8", "replace").strip()
    how = "took too long" if exit_code is None else f"ended with status {exit_code}"
    raise CodeError(message or f"the program that archives the code {how}")
