"""Results of jobs: what is in a `result.json`, and those that were there when `done` was recorded, and are lost."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec

from dispatcher.base import files
from dispatcher.base.outputs import json_object
from dispatcher.base.values import NOT_FINITE
from dispatcher.run_state.states import BY_HAND, Record, State
from dispatcher.workspace import Layout


def parse_result(data: bytes) -> dict[str, Any] | None:
    """The object in a `result.json`; None when it is anything else.

    NaN and infinity are numbers there, whether they are text or, as Python's json writes them, no JSON.
    """
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = json_object(data)
    if not isinstance(value, dict):
        return None
    return {name: NOT_FINITE.get(one, one) if isinstance(one, str) else one for name, one in value.items()}


def lost_result(layout: Layout, job: str, record: Record) -> str:
    """What has become of a result, in words; empty where nothing shows that one is lost."""
    if record.state is not State.DONE or not record.has_result or record.reason == BY_HAND:
        return ""
    path = layout.result_file(job, record.attempt)
    try:
        data = files.read_at_once(path)
    except OSError:
        # Written on another host, it may be missing here until the names are fetched.
        with contextlib.suppress(OSError):
            files.refresh_names(os.path.dirname(path))
        return f"{path} is no longer there" if files.is_missing(path) else ""
    if not data:
        return f"{path} is empty"
    return "" if parse_result(data) is not None else f"{path} is not a JSON object"
