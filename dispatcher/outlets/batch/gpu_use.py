"""For how long attempts have left their GPUs idle, as node.sh tells where they run (templates/node_gpus.sh.j2)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import msgspec

from dispatcher.outlets.base import GpuUse, Key
from dispatcher.outlets.idle_times import GAP_INTERVALS, NODE_INTERVAL_S, SMI_LIMIT_S

# Far more than node.sh writes; the job may write its directory, so a huge file or a pipe may stand there.
_LONGEST: Final = 4096
_NEVER: Final = float("-inf")


class _Sample(msgspec.Struct, frozen=True):
    """The content of gpu-use.json; `samples` is the number of this one. A job may have written anything there."""

    samples: int
    gpus: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    idle_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ReportedGpuUse:
    """What attempts tell of their GPUs. It counts until the next sample is overdue, whatever the clocks there say.

    What was there before this dispatcher began to look proves nothing: its attempt may be gone. Times are seconds of a
    clock that counts while the host is suspended.
    """

    def __init__(self, poll_interval_s: float) -> None:
        self._longest_gap_s = GAP_INTERVALS * max(poll_interval_s, NODE_INTERVAL_S) + SMI_LIMIT_S
        # What was told last, and when it was new here.
        self._told: dict[Key, tuple[_Sample, float]] = {}

    def forget(self, key: Key) -> None:
        self._told.pop(key, None)

    def look(self, key: Key, path: Path, now_s: float) -> None:
        """Read what is there now."""
        sample = _read(path)
        if sample is None:
            return
        last = self._told.get(key)
        if last is None:
            self._told[key] = sample, _NEVER
        elif last[0].samples != sample.samples:
            self._told[key] = sample, now_s

    def of(self, key: Key, now_s: float) -> GpuUse | None:
        """None: unknown."""
        told = self._told.get(key)
        if told is None or now_s - told[1] > self._longest_gap_s:
            return None
        return GpuUse(told[0].idle_s, told[0].gpus)


def _read(path: Path) -> _Sample | None:
    """None where there is none, while it is being written, and where a job has written something else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return msgspec.json.decode(os.read(fd, _LONGEST), type=_Sample)
        finally:
            os.close(fd)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
