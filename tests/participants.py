"""What the participants of a pod are made of, as far as one test needs it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dispatcher.pod.options import PodOptions


def shared_of(*, log: Any = print, **given: Any) -> Any:
    """A `Shared` with options and no more than these parts."""
    return SimpleNamespace(**{"options": PodOptions(pod="pod"), "log": log, **given})


def backlog_of(**given: Any) -> Any:
    """A `Backlog` that answers these questions."""
    return SimpleNamespace(**given)
