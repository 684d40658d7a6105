"""Where a job that was started finds its code."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.runtime.launching import shipped_code


@pytest.mark.parametrize("cwd", ["", ".", "deep", "deep/er/"])
def test_the_cwd_of_an_entry_is_below_the_code(cwd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / cwd).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / cwd)
    assert shipped_code(cwd) == tmp_path
    assert shipped_code("/elsewhere") == tmp_path / cwd
