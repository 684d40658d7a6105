"""Which jobs a pod's manifest had: for the slots that a waiting job could have had."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dispatcher.config import load_config
from dispatcher.matrix.submitted import SubmittedJobs
from dispatcher.query.snapshot import Snapshot
from dispatcher.query.usage.reading import _Lists
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout


def test_only_lines_of_submitted_jobs_that_count_and_the_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    layout.matrix_dir.mkdir()
    for name in ("matrix", "other"):
        entry = {"job_id": f"of-{name}", "method": "m"}
        (layout.matrix_dir / f"{name}.json").write_text(json.dumps([entry]))
    lines = [json.dumps({"job_id": job, "method": "m"}) for job in ("counts", "listed-later", "never-queued")]
    layout.submitted_manifest.write_text("\n".join(lines) + "\n")
    reads: list[Path] = []
    read = SubmittedJobs.read
    monkeypatch.setattr(SubmittedJobs, "read", lambda self, *rest: (reads.append(tmp_path), read(self, *rest))[1])
    records: Any = {
        "counts": Record(state=State.QUEUED, ad_hoc=True),
        "listed-later": Record(state=State.QUEUED),
    }
    lists = _Lists(load_config(layout), cast(Snapshot, SimpleNamespace(records=records)))
    assert lists("matrix/other.json") == {"of-other", "counts"}
    assert lists("matrix/matrix.json") == {"of-matrix", "counts"}
    assert len(reads) == 1
