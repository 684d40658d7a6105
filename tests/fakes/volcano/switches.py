"""What a test has switched off: read from a file, which the test replaces by rename.

At the beginning of a turn the file is copied to `switches.seen`: from then on all that is done obeys it.
"""

from __future__ import annotations

import json
from pathlib import Path

COMPONENTS = ("controller", "scheduler")


class Switches:
    """`paused` are components that do nothing for now; `webhook` is "serve" or "hang"; `preempts`: see `Scheduler`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = ""

    def paused_in_this_turn(self) -> frozenset[str]:
        text = self._text()
        if text != self._seen:
            self._path.with_suffix(".seen").write_text(text)
            self._seen = text
        return frozenset(json.loads(text).get("paused", ()))

    @property
    def webhook(self) -> str:
        return str(self._read().get("webhook", "serve"))

    @property
    def preempts(self) -> bool:
        return bool(self._read().get("preempts"))

    def _read(self) -> dict[str, object]:
        return json.loads(self._text())

    def _text(self) -> str:
        try:
            return self._path.read_text()
        except FileNotFoundError:
            return "{}"
