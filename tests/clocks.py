"""Clocks whose time passes only when a test says so: for code that is given one, and for scripts."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from dispatcher import templates
from dispatcher.workspace import Layout


class Clock:
    """Its time passes only when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class UptimeClock:
    """The file that scripts of a workspace read in place of /proc/uptime.

    A limit in them is over when the test wants it to be, however long a job took to begin.
    """

    def __init__(self, layout: Layout, template: str = "wrapper.sh.j2", now_s: float = 1000.0) -> None:
        """Scripts that are rendered from this template from now on read this clock."""
        self._file = layout.root / "uptime"
        self._now_cs = round(100 * now_s)
        self.passes(0)
        text = (Path(templates.__file__).parent / template).read_text()
        assert "/proc/uptime" in text
        layout.templates_dir.mkdir(exist_ok=True)
        (layout.templates_dir / template).write_text(text.replace("/proc/uptime", shlex.quote(os.fspath(self._file))))

    def passes(self, seconds: float) -> None:
        """Let so much time pass. A wrapper looks every two seconds in the beginning, later less often."""
        self._now_cs += round(100 * seconds)
        new = self._file.with_name(f"{self._file.name}.new")
        new.write_text(f"{self._now_cs // 100}.{self._now_cs % 100:02d} 0.00\n")
        new.replace(self._file)
