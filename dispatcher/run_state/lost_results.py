"""Done jobs whose results were on the disk when that was recorded, and are lost: emptied, or no longer there."""

from __future__ import annotations

import os

from dispatcher.base import files
from dispatcher.run_state.states import BY_HAND, Record, State
from dispatcher.workspace import Layout


def lost_result(layout: Layout, job: str, record: Record) -> str:
    """What has become of a result, in words; empty where nothing shows that one is lost."""
    if record.state is not State.DONE or not record.has_result or record.reason == BY_HAND:
        return ""
    path = layout.result_file(job, record.attempt)
    try:
        return "" if os.stat(path).st_size else f"{path} is empty"
    except OSError:
        return f"{path} is no longer there" if files.is_missing(path) else ""
