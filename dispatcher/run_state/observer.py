"""What one dispatcher can find out about the others: which of them live, and what a free lock proves.

Where locks can be trusted, a free one proves it. Where they cannot, as after a restart of the file server, the
heartbeat of a dispatcher must have been still for `lost_after`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dispatcher.base.mounts import SHOWN_LATE_S, Mount, mount_of
from dispatcher.config import LockKind
from dispatcher.run_state import liveness, nfs
from dispatcher.workspace import Layout


class Observer:
    """Watches the other dispatchers of a workspace.

    `locks_are_trusted` is called each time: the kind of lock may change while dispatchers run.
    """

    def __init__(
        self,
        layout: Layout,
        lost_after_s: float,
        locks_are_trusted: Callable[[], bool],
        watch: liveness.Watch | None = None,
        mount: Mount | None = None,
    ) -> None:
        self._layout = layout
        self._lost_after_s = lost_after_s
        self._locks_are_trusted = locks_are_trusted
        self._watch = watch or liveness.Watch()
        self._mount = mount or mount_of(layout.run_state)
        # The server as it was when this dispatcher first asked.
        self._first_server: nfs.Server | None = None

    @property
    def is_network(self) -> bool:
        """Whether the run state is on a network filesystem."""
        return self._mount.is_network

    @property
    def trusts_locks(self) -> bool:
        """Whether a held lock proves that its holder lives."""
        return self._locks_are_trusted()

    def start_over(self) -> None:
        """Restart all waiting: one that could not write or lock itself cannot blame the others for being still."""
        self._watch.start_over()

    def unchanged_s(self, name: str, value: Any) -> float:
        """For how many seconds `value`, observed under this name at every call, has been the same."""
        return self._watch.unchanged_s(name, value)

    def pod_is_alive(self, pod: str | None) -> bool:
        """Whether a dispatcher of that name lives (or may, as far as this host can know)."""
        info = liveness.read_pod(self._layout, pod) if pod else None
        if info is None:
            # Network filesystems show "missing" for files that are there.
            return bool(pod) and self.is_network and self.unchanged_s(f"pod:{pod}", None) < SHOWN_LATE_S
        return self.is_alive(info)

    def is_alive(self, info: liveness.PodInfo) -> bool:
        """As `pod_is_alive`, of a dispatcher whose file was read just now."""
        # The server is asked about last, so that a restart of it between the two is noticed.
        return self._lives(info) or (self.free_locks_prove_nothing() and self._lives(info, locks=False))

    def free_locks_prove_nothing(self) -> bool:
        """Whether the file server may have forgotten locks of processes that live, because it has restarted.

        A client that is still recovering, or was too late for the grace period, holds none. For `lost_after` from such
        a restart heartbeats alone decide; in the first lease of this dispatcher too, for the server may have
        restarted just before.
        """
        server = nfs.server_of(self._mount.point) if self.is_network else None
        if server is None:
            return False
        if self._first_server is None:
            self._first_server = server
        has_restarted = server.connections != self._first_server.connections
        doubt_s = self._lost_after_s if has_restarted else min(self._lost_after_s, server.lease_s)
        return self.unchanged_s("server", server.connections) < doubt_s

    def _lives(self, info: liveness.PodInfo, *, locks: bool = True) -> bool:
        if not (locks and self.trusts_locks):
            info = msgspec.structs.replace(info, lock=LockKind.HARDLINK)
        return liveness.pod_is_alive(self._layout, info, self._watch, self._lost_after_s, mount=self._mount)
