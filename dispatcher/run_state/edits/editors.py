"""Editors that have the status file open, known by the files that they leave beside it.

An editor that finds that the file has changed since it was read asks, and vim refuses when that happens while it saves.
So the projection leaves the file alone while an editor has it open, up to a limit: other tools read an old file
meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dispatcher.base.file_identity import Identity, identity_of
from dispatcher.base.host import is_gone
from dispatcher.base.mounts import mount_of

# How long to wait for an editor in which nothing is typed (vim and nano write what was typed after a few seconds), and
# for one in all.
IDLE_S: Final = 180.0
TOTAL_S: Final = 600.0
# A swap file of vim or nano begins with `b0`; pid and host name of its editor are at these bytes.
_SWAP_HEADER: Final = struct.Struct("<24xI40x40s")


def editor_files(path: Path) -> list[str]:
    """The names of the files that show that an editor has `path` open.

    vim and nano (`set locking`): `.NAME.swp`, `.swo` and so on. Emacs: `.#NAME`, a link to nowhere, once the text was
    changed, and `#NAME#` with what was typed.
    """
    name = re.escape(path.name)
    pattern = re.compile(rf"\.{name}\.s[a-w][a-z]|\.#{name}|#{name}#")
    with contextlib.suppress(OSError):
        return sorted(found for found in os.listdir(path.parent) if pattern.fullmatch(found))
    return []


class Editors:
    """The editors that have the status file open, remembered from one call to the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_network = mount_of(path.parent).is_network
        self._seen: dict[str, tuple[Identity, float]] = {}
        self._since_s: float | None = None

    def to_wait_for(self) -> str:
        """The file of an editor to wait for; empty when the status file may be written."""
        now_s = time.monotonic()
        self._seen = dict(self._scan(now_s))
        active = [name for name, (_, changed_s) in self._seen.items() if now_s - changed_s < IDLE_S]
        if not active:
            self._since_s = None
            return ""
        if self._since_s is None:
            self._since_s = now_s
        return active[0] if now_s - self._since_s < TOTAL_S else ""

    def was_written(self) -> None:
        """The status file was written: an editor may be waited for again."""
        self._since_s = None

    def _scan(self, now_s: float) -> Iterator[tuple[str, tuple[Identity, float]]]:
        """Every editor's file, with the time of its last change by this process's monotonic clock."""
        for name in editor_files(self._path):
            path = self._path.parent / name
            try:
                found = os.lstat(path)
                if _is_of_a_dead_editor(path):
                    continue
            except OSError:
                continue
            version = identity_of(found)
            known = self._seen.get(name)
            if known is not None and known[0] == version:
                yield name, known
                continue
            # The clock of a file server may be wrong: there the time counts from when this host sees the change.
            age_s = 0.0 if self._is_network else max(0.0, time.time() - found.st_mtime)
            yield name, (version, now_s - age_s)


def _is_of_a_dead_editor(path: Path) -> bool:
    """Whether the editor ran on this host and is gone (it crashed, or its terminal was closed)."""
    if path.is_symlink():
        # Emacs: user@host.pid:boot
        match = re.fullmatch(r"[^@]*@(.*)\.(\d+)(?::\d+)?", os.readlink(path))
        host, pid = (match[1], int(match[2])) if match else ("", 0)
    else:
        try:
            with open(path, "rb") as file:
                data = file.read(_SWAP_HEADER.size)
        except PermissionError:
            return False
        if len(data) < _SWAP_HEADER.size or not data.startswith(b"b0"):
            return False
        pid, name = _SWAP_HEADER.unpack(data)
        host = name.rstrip(b"\0").decode(errors="replace")
    return pid > 0 and host == os.uname().nodename and is_gone(pid)


def waiting_note(path: Path, editor: str) -> str:
    """The notice for people while `editor`, a file beside `path`, keeps it from being written."""
    return (
        f"{path} is open in an editor ({editor}): it is not updated until the editor has closed it, nothing was typed "
        f"for {IDLE_S / 60:.0f} minutes, or {TOTAL_S / 60:.0f} minutes are over. What is saved there counts; the "
        "commands of dispatcher read the journal and are current"
    )
