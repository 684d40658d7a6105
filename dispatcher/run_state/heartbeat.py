"""Whether the heartbeat of another dispatcher rises, and how late this host may see it."""

from __future__ import annotations

import time

from dispatcher.base.mounts import Mount, mount_of
from dispatcher.run_state import liveness
from dispatcher.workspace import Layout

# For how long a network filesystem may show old file content (sshfs: 20 s).
_NETWORK_DELAY_S = 25.0
_NFS_DELAY_S = 4.0


def heartbeat_delay_s(mount: Mount) -> float:
    """How late this host may see a heartbeat of another host on this mount."""
    if not mount.is_network:
        return 0.0
    return _NFS_DELAY_S if mount.fstype.startswith("nfs") else _NETWORK_DELAY_S


def heartbeat_rises(layout: Layout, info: liveness.PodInfo, longest_s: float) -> bool:
    """Wait, at most `longest_s`, for a heartbeat of that pod; whether one was seen."""
    watch = liveness.Watch()
    delay_s = heartbeat_delay_s(mount_of(layout.pods_dir))
    end_s = time.monotonic() + min(longest_s, liveness.MISSED_HEARTBEATS * info.heartbeat_s + delay_s)
    while time.monotonic() < end_s:
        now = liveness.read_pod(layout, info.pod)
        if now is not None and watch.observe("pod", (now.pid, now.heartbeat)).rose:
            return True
        time.sleep(info.heartbeat_s / 4)
    return False
