"""dispatcher: a matrix of training runs over the GPUs of a few hosts that share one directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.errors import DispatcherError

__all__ = ["DispatcherError", "Workspace"]

# Imported when used: code inside a job imports dispatcher.contract and must not pay for the rest.
_PUBLIC = {"Workspace": "dispatcher.api", "DispatcherError": "dispatcher.errors"}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
