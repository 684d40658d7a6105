"""examples/week: a week in a lab, with all that is expected of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "examples" / "week" / "run.py"
LIMIT_S = 570


@pytest.mark.timeout(600)
@pytest.mark.quiet
@pytest.mark.slow
def test_a_week_in_a_lab_is_as_expected(tmp_path: Path) -> None:
    for module, extra in (("aiosmtpd", "test"), ("uvicorn", "web"), ("matplotlib", "plot")):
        pytest.importorskip(module, reason=f"{module} is not installed: scripts/install {extra}")
    known = {name: value for name, value in os.environ.items() if not name.startswith(("DISPATCHER_", "CUDA_"))}
    done = subprocess.run(
        [sys.executable, str(RUN), "--no-browser", "--keep", str(tmp_path / "week")], env=known,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and " expectations met, " in done.stdout, done.stdout + done.stderr
