"""Pods that end at once, as those of `submit` and `poll`: their names, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from dispatcher.base.host import host_name
from dispatcher.run_state import liveness
from dispatcher.run_state.states import IN_FLIGHT, Record
from dispatcher.workspace import Layout


def unique_name(verb: str) -> str:
    """A name that no other pod has or will have: the attempts that it claims are never taken for another's."""
    return f"{verb}-{host_name()}-{os.getpid()}-{os.urandom(4).hex()}"


def remove_ended(layout: Layout, records: Iterable[Record]) -> None:
    """Remove the files of such pods that have ended and are named by no attempt in flight.

    While one is, its file shows at once that its dispatcher is gone; on a network filesystem a missing one does not.
    """
    named = {record.pod for record in records if record.state in IN_FLIGHT}
    for info in liveness.read_pods(layout):
        if info.is_short_lived and info.pod not in named and (info.phase == "ended" or info.process_is_gone()):
            for path in (layout.pod_file(info.pod), layout.pod_lock(info.pod)):
                # Another pod removes them too, or they are another user's, whose pods will remove them.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    path.unlink()
