"""What an attempt tells of its GPUs: it counts while it is new, and what else its job has written there does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.outlets.base import GpuUse, Key
from dispatcher.outlets.batch.gpu_use import ReportedGpuUse
from dispatcher.outlets.idle_times import NODE_INTERVAL_S

KEY = Key("a", 1)
SAMPLE = '{"samples": %d, "gpus": 2, "idle_s": %s}\n'


def test_a_sample_counts_until_the_next_one_is_overdue(tmp_path: Path) -> None:
    told, path = ReportedGpuUse(1.0), tmp_path / "gpu-use.json"
    path.write_text(SAMPLE % (7, 30))
    told.look(KEY, path, 100.0)
    assert told.of(KEY, 100.0) is None, "it may be hours old"
    path.write_text(SAMPLE % (8, 60))
    told.look(KEY, path, 130.0)
    assert told.of(KEY, 130.0 + NODE_INTERVAL_S) == GpuUse(60.0, 2)
    told.look(KEY, path, 130.0 + 10 * NODE_INTERVAL_S)
    assert told.of(KEY, 130.0 + 10 * NODE_INTERVAL_S) is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", SAMPLE % (2, "1e300"), SAMPLE % (2, -1), (SAMPLE % (2, 5)).replace("2, ", "-2, ")]
)
def test_what_is_no_sample_says_nothing(tmp_path: Path, content: str) -> None:
    told, path = ReportedGpuUse(1.0), tmp_path / "gpu-use.json"
    path.write_text(SAMPLE % (1, 0))
    told.look(KEY, path, 100.0)
    path.write_text(content)
    told.look(KEY, path, 101.0)
    assert told.of(KEY, 101.0) is None
