"""`dispatcher usage --disk`: what takes up the space."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.base.messages import bytes_text, counted, readable
from dispatcher.cli.printing import note, print_rows

if TYPE_CHECKING:
    from dispatcher.api import Workspace

_TELL_S: Final = 0.5


def show_disk(workspace: Workspace, by: tuple[str, ...], style: str) -> None:
    """Print the bytes of the workspace, or those of its attempts by these keys, in this format."""
    from dispatcher.cleaning.disk import OF_ATTEMPTS, Disk, rows
    from dispatcher.query.selection import check_keys

    snapshot = workspace.snapshot()
    check_keys(snapshot, by)
    progress = Progress()
    disk = Disk(workspace.layout, progress.tell)
    found = rows(snapshot, disk, by)
    progress.clear()
    total = sum(row["bytes"] for row in found)
    if style == "plain":
        sizes = {"bytes", *(OF_ATTEMPTS if by else ())}
        print_rows([_shown(row, sizes) for row in found], style, numbers=[*sizes, "size", "files"])
        click.echo(f"{bytes_text(total)} in {counted(sum(row['files'] for row in found), 'file')}")
    else:
        print_rows(found, style)
    for line in disk.unreadable:
        note(f"not counted: {readable(line)}")


def _shown(row: dict[str, Any], sizes: set[str]) -> dict[str, Any]:
    named = {"size" if key == "bytes" else key: key for key in row}
    return {name: bytes_text(row[key]) if key in sizes else row[key] for name, key in named.items()}


class Progress:
    """Tells a person at a terminal how many jobs were looked at."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _TELL_S
        self._told = False

    def tell(self, jobs: int) -> None:
        if time.monotonic() >= self._next_s and sys.stderr.isatty():
            self._next_s, self._told = time.monotonic() + _TELL_S, True
            click.echo(f"\r{counted(jobs, 'job')} ...", err=True, nl=False)

    def clear(self) -> None:
        if self._told:
            click.echo("\r" + " " * 30 + "\r", err=True, nl=False)
