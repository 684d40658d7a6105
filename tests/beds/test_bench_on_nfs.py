"""The row of scripts/bench about NFS, at its smallest size and on the hosts of these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .nfs import NfsBed

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.slow
def test_its_figures(nfs: NfsBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    from benchmarks.bench import Bench, Size
    from benchmarks.rows.nfs import measure_at

    figures = list(measure_at(Bench(tmp_path, Size.SMALLEST, print), "v4.2", *nfs.hosts("v4.2")))
    assert len(figures) == 4
    assert all(figure.ours and figure.ratio for figure in figures)
