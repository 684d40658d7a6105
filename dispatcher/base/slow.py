"""Long steps report progress to a person who waits: on the command line, not in a pod."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

_note: Final[ContextVar[Callable[[str], object] | None]] = ContextVar("note", default=None)


def tell_by(note: Callable[[str], object]) -> None:
    """From now on, say by `note` what this thread waits for."""
    _note.set(note)


def tell(text: str) -> None:
    """Say what is waited for, if `tell_by` was called."""
    note = _note.get()
    if note is not None:
        note(text)
