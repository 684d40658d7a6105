"""Proves at the start of a pod that this host sees what other hosts have written: journal lines and directories.

The file of each pod contains how far it has seen the journal go and which attempts it runs; a starting pod looks for
both. No pod waits for an answer of another, and nothing is written apart from one `mkdir` that must fail.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

from dispatcher.base.mounts import Mount, mount_of
from dispatcher.errors import StaleViewError
from dispatcher.run_state import liveness
from dispatcher.run_state.liveness import PodInfo
from dispatcher.run_state.store import Store
from dispatcher.workspace import Layout

# Longer than clients of working filesystems show old content.
_OLD_CONTENT_S: Final = 10.0
_LOOK_PAUSE_S: Final = 0.3


def prove_view(store: Store, own_pod: str) -> None:
    """Raise StaleViewError, before anything is claimed, when this host sees less than pods on other hosts have seen."""
    mount = mount_of(store.layout.run_state)
    if mount.is_network:
        others = [info for info in liveness.read_pods(store.layout) if info.pod != own_pod and not info.same_host()]
        prove_appends(store, others, mount)
        prove_directories(store.layout, others, mount)


def prove_appends(store: Store, others: list[PodInfo], mount: Mount, limit_s: float = _OLD_CONTENT_S) -> None:
    """The journal must be at least as long as each of `others` has seen it, with the same content up to there."""
    end_s = time.monotonic() + limit_s
    for info in others:
        if info.journal is None:
            continue
        with store.transaction():
            pass
        while not store.shows(*info.journal):
            if time.monotonic() > end_s:
                generation, length, _ = info.journal
                what = f"{store.layout.journal(generation)}: {_named(info)} has seen {length} bytes, this host has not"
                # The file of that pod may be all that is left of an earlier run state.
                backup = (
                    "If the run state was restored from a backup or removed in part: remove "
                    f"{store.layout.pod_file(info.pod)}, unless that pod runs"
                )
                raise _refusal(what, limit_s, mount, backup)
            time.sleep(_LOOK_PAUSE_S)
            with store.transaction():
                pass


def prove_directories(layout: Layout, others: list[PodInfo], mount: Mount, limit_s: float = _OLD_CONTENT_S) -> None:
    """Making the directory of an attempt of another host must fail here: it is the second fence of a claim."""
    for info in others:
        jobs = [job for slot in info.slots for job in slot.jobs]
        if info.phase == "ended" or not jobs or not liveness.is_held(layout.pod_lock(info.pod)):
            continue
        directory = layout.jobs_dir / jobs[0]
        end_s = time.monotonic() + limit_s
        while _can_make(directory) and _still_runs(layout, info.pod, jobs[0]):
            if time.monotonic() > end_s:
                raise _refusal(f"{directory}: exists for {_named(info)}, but not for this host", limit_s, mount)
            time.sleep(_LOOK_PAUSE_S)


def _can_make(directory: os.PathLike[str]) -> bool:
    try:
        os.mkdir(directory)
    except FileExistsError:
        return False
    except FileNotFoundError:
        # This host does not even see the directory of the job.
        return True
    with contextlib.suppress(OSError):
        os.rmdir(directory)
    return True


def _still_runs(layout: Layout, pod: str, job: str) -> bool:
    info = liveness.read_pod(layout, pod)
    return info is not None and any(job in slot.jobs for slot in info.slots)


def _named(info: PodInfo) -> str:
    return f"pod {info.pod} (host {info.host})"


def _refusal(what: str, limit_s: float, mount: Mount, hint: str = "") -> StaleViewError:
    return StaleViewError(
        f"{what} within {limit_s:g} s. This host is shown old data by {mount}; nothing was claimed. "
        f"Cure: {mount.cure}. "
        f"`dispatcher doctor` on both hosts at the same time shows more{hint and f'. {hint}'}"
    )
