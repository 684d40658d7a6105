"""Live pods that show no sign of life: their processes hang, or their hosts no longer reach the workspace.

Only for people: nothing is taken away from such a pod before locks or `lost_after` prove that it is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatcher.base.messages import counted
from dispatcher.base.mounts import SHOWN_LATE_S
from dispatcher.base.times import duration_text
from dispatcher.query.snapshot import PodStatus
from dispatcher.run_state.liveness import PodInfo, Watch

# A dispatcher may be busy with one step for so many heartbeats.
_BEATS: Final = 10


def silent_for_s(info: PodInfo, beat_at_s: float | None, watch: Watch, now_s: float) -> float | None:
    """For how many seconds a live pod has shown no heartbeat; None where that is no longer than it may be.

    A reader that has seen the heartbeat rise goes by its own monotonic clock. One that has just begun can only compare
    its clock with the time of the file.
    """
    seen = watch.observe(f"sign:{info.pod}", (info.pid, info.heartbeat))
    still_s = seen.unchanged_s
    if not seen.rose and beat_at_s is not None:
        still_s = max(still_s, now_s - beat_at_s)
    return still_s if still_s > max(SHOWN_LATE_S, _BEATS * info.heartbeat_s) else None


def silence_texts(pods: Sequence[PodStatus]) -> list[str]:
    """For each pod that shows no sign of life, what to do."""
    return [
        f"pod {pod.info.pod} shows no sign of life for {duration_text(pod.silent_s)}, and its lock is still held: "
        f"see whether its process {pod.info.pid} on {pod.info.host} hangs, or that host has lost the workspace. "
        f"If it is killed and started again, its jobs go on ({_slots(pod)})"
        for pod in pods
        if pod.state == "silent" and pod.silent_s is not None
    ]


def _slots(pod: PodStatus) -> str:
    return f"{counted(sum(slot.room for slot in pod.info.slots), 'slot')} not counted"
