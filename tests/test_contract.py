"""What a job reports with dispatcher.contract."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dispatcher import contract


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(contract.ATTEMPT_DIR, str(tmp_path))
    return tmp_path


def progress(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / contract.PROGRESS_FILE).read_text()))


def test_progress_has_the_longest_gap_between_two_reports(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1000.0, 1005.0, 1007.0, 1027.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    for longest_s in (0.0, 5.0, 5.0, 20.0):
        contract.report_progress(1, 2, loss=2.5)
        assert progress(attempt) == {"step": 1, "of": 2, "metrics": {"loss": 2.5}, "longest_gap_s": longest_s}


def test_the_time_from_the_start_to_the_first_report_is_a_gap(attempt: Path) -> None:
    taken = attempt / contract.TAKEN_FILE
    taken.touch()
    os.utime(taken, (time.time() - 90, time.time() - 90))
    contract.report_progress(1, 2)
    assert progress(attempt)["longest_gap_s"] == pytest.approx(90, abs=10)


def test_nothing_is_written_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(contract.ATTEMPT_DIR, raising=False)
    monkeypatch.chdir(tmp_path)
    contract.report_progress(1, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_diverges_reports(attempt: Path) -> None:
    """JSON has no NaN and no infinity."""
    contract.report_progress(1, 2, loss=float("nan"), lr=0.1)
    contract.report_result(loss=float("inf"), gain=0.5, note="diverged")
    assert json.loads((attempt / contract.PROGRESS_FILE).read_text())["metrics"] == {"loss": None, "lr": 0.1}
    result = json.loads((attempt / contract.RESULT_FILE).read_text())
    assert result == {"loss": None, "gain": 0.5, "note": "diverged"}


def test_progress_that_cannot_be_written_ends_no_job(
    attempt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(contract.ATTEMPT_DIR, os.fspath(attempt / "gone"))
    for step in range(3):
        contract.report_progress(step, 3)
    said = capsys.readouterr().err
    assert said.startswith("dispatcher: warning: progress cannot be reported: ")
    assert said.count("\n") == 1
    with pytest.raises(OSError, match="gone"):
        contract.report_result(loss=1.0)
