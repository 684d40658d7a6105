"""How many processes the kernel of this host has killed for lack of memory."""

from __future__ import annotations

import time
from pathlib import Path


class OomCounter:
    """Tells whether a SIGKILL that is noticed now may have been the kernel's."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._kills = _oom_kills()
        self._next_s = time.monotonic() + interval_s

    def has_risen(self) -> bool:
        """Whether the kernel has killed a process since the last `note`, up to an interval ago."""
        return _oom_kills() > self._kills

    def note(self, kills: int | None) -> None:
        """Count from `kills` on, as `due` had it; None changes nothing."""
        if kills is not None:
            self._kills = kills
            self._next_s = time.monotonic() + self._interval_s

    def due(self) -> int | None:
        """The count to `note` after all ends have been judged; None while the last one is recent.

        It is read before them: a kill in between belongs to an end that was not noticed yet.
        """
        return _oom_kills() if time.monotonic() >= self._next_s else None


def _oom_kills() -> int:
    """How many processes this host's kernel has killed for lack of memory since it started; 0 if unknown."""
    try:
        for line in Path("/proc/vmstat").read_bytes().splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    except OSError:
        return 0
    return 0
