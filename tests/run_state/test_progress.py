from __future__ import annotations

import math

import pytest

from dispatcher.run_state.progress import (
    Progress,
    elapsed_s,
    parse_progress,
    progress_text,
    remaining_s,
)
from dispatcher.run_state.states import Record, State


def record(started_at, finished_at=None):
    return Record(state=State.RUNNING, started_at=started_at, finished_at=finished_at)


def test_elapsed():
    assert elapsed_s(record("1970-01-01T00:01:00Z"), 100.0) == 40.0
    assert elapsed_s(record("1970-01-01T00:01:00Z", "1970-01-01T00:01:05Z"), 100.0) == 5.0
    assert elapsed_s(record("1970-01-01T00:05:00Z"), 100.0) == 0.0
    assert elapsed_s(record("1970-01-01T00:01:00Z", "1970-01-01T26:01:05Z"), 100.0) is None
    assert elapsed_s(record(None), 100.0) is None


@pytest.mark.parametrize(
    ("elapsed", "progress", "remaining"),
    [
        (30.0, Progress(step=10, of=40), 90.0),
        (30.0, Progress(step=40, of=40), 0.0),
        (30.0, Progress(step=50, of=40), 0.0),
        (30.0, Progress(step=0, of=40), None),
        (30.0, Progress(step=10, of=0), None),
        (30.0, Progress(step=math.inf, of=math.inf), None),
        (None, Progress(step=10, of=40), None),
        (30.0, None, None),
    ],
)
def test_remaining(elapsed, progress, remaining):
    assert remaining_s(elapsed, progress) == remaining


def test_progress_that_jobs_write():
    found = parse_progress(b'{"step": 120, "of": 1000, "metrics": {"loss": 2.31}, "more": 1}')
    assert found is not None
    assert (progress_text(found), found.metrics) == ("12% 120/1000", {"loss": 2.31})
    assert progress_text(parse_progress(b'{"step": 1}')) == "step 1"
    assert parse_progress(b"") is None
    assert parse_progress(None) is None
