"""How old the data are. A copy of a workspace does not change any more, and must not look like one that is quiet."""

from __future__ import annotations

import time
from typing import Final

from dispatcher.base.mounts import mount_of
from dispatcher.base.times import parse_time
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state import journal
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import longest_beat_s
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

_TAIL: Final = 64 * 1024


class Age:
    """What the times in the data say. `read_at`: when the files were read last; None before the first time."""

    def __init__(self) -> None:
        self.read_s: float | None = None
        self.is_live = False
        # The newest time that the data themselves have.
        self.sign_s: float | None = None
        self._beats: dict[str, tuple[int, float]] = {}
        self._journal: tuple[int | None, int] | None = None
        self._line_s: float | None = None

    def note(self, layout: Layout, store: Store, snapshot: Snapshot) -> None:
        """The files were read."""
        self.read_s = now_s = snapshot.now_s
        if self._journal != (store.generation, store.seq):
            self._journal = (store.generation, store.seq)
            self._line_s = _last_line_s(layout, store)
        signs = [self._line_s]
        self.is_live = False
        mount = mount_of(layout.pods_dir)
        for pod in snapshot.pods:
            info = pod.info
            written_s = parse_time(info.heartbeat_at or info.started_at)
            signs.append(written_s)
            known = self._beats.get(info.pod)
            if known is None or known[0] != info.heartbeat:
                # A heartbeat that has just been seen to rise is new, whatever the clocks of the hosts say.
                seen_s = now_s if known is not None else written_s or 0.0
                known = self._beats[info.pod] = info.heartbeat, seen_s
            is_new = abs(now_s - known[1]) <= longest_beat_s(info, mount)
            self.is_live = self.is_live or (pod.is_alive and is_new)
        # A clock that is ahead does not make data of tomorrow.
        self.sign_s = max((min(sign, now_s) for sign in signs if sign is not None), default=None)

    def facts(self) -> dict[str, object]:
        """For each answer; times in UTC."""
        data_s = self.read_s if self.is_live else self.sign_s
        return {
            "at": now_text(time.time()),
            "data_at": _text(data_s),
            "read_at": _text(self.read_s),
            "live": self.is_live,
        }


def _text(moment_s: float | None) -> str | None:
    return None if moment_s is None else now_text(moment_s)


def _last_line_s(layout: Layout, store: Store) -> float | None:
    """When the last line of the journal was written, by its writer's clock."""
    if store.generation is None:
        return None
    try:
        with open(layout.journal(store.generation), "rb") as file:
            file.seek(max(0, store.offset - _TAIL))
            data = file.read(min(_TAIL, store.offset))
    except OSError:
        return None
    lines = journal.readable_lines(data if store.offset <= _TAIL else data.partition(b"\n")[2])
    return parse_time(lines[-1].at) if lines else None
