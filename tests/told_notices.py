"""Targets of notices that tests can read, and the notices that arrived there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fleet import Fleet

# Appends what it gets in one write, so that notices of several pods do not mix.
_KEEP = "import os, sys; os.write(os.open(sys.argv[1], os.O_RDWR | os.O_APPEND | os.O_CREAT), sys.stdin.buffer.read())"


def keeping(path: Path) -> list[str]:
    """A command that keeps every notice, one line each."""
    return [sys.executable, "-c", _KEEP, str(path)]


def told(path: Path) -> list[dict[str, Any]]:
    """The notices that arrived at such a command."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def events(notices: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """What they tell, and how often."""
    return [(one["event"], one["count"]) for notice in notices for one in notice["events"]]


def configure(fleet: Fleet, targets: dict[str, Any], rest: str = "", **settings: Any) -> None:
    """Write dispatcher.yaml: JSON is YAML."""
    notify = {"after": "0.2s", "timeout": "20s", **settings, "targets": targets}
    fleet.write_config(f"{rest}\nnotify: {json.dumps(notify)}\n")


def lines(fleet: Fleet, event: str) -> list[dict[str, Any]]:
    """The data of the journal's lines of this event."""
    return [line.data or {} for line in fleet.history() if line.event == event]
