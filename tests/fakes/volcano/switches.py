"""What a test has switched off: read from a file, which the test replaces by rename."""

from __future__ import annotations

import json
from pathlib import Path

COMPONENTS = ("controller", "scheduler")


class Switches:
    """`paused` are components that do nothing for now; `webhook` is "serve" or "hang"; `preempts`: see `Scheduler`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def paused(self) -> frozenset[str]:
        return frozenset(self._read().get("paused", ()))

    @property
    def webhook(self) -> str:
        return str(self._read().get("webhook", "serve"))

    @property
    def preempts(self) -> bool:
        return bool(self._read().get("preempts"))

    def _read(self) -> dict[str, object]:
        try:
            return json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
