"""A bed that cannot work here is told in one line, by scripts/install-beds and by each of its tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import outcomes
from .fixtures import skip_without
from .needs import outcome, why_not

TESTS = Path(__file__).parents[1]
PANIC = """\
#!/bin/sh
echo 'mmapper_init - find_iomem failed'
echo 'userspace - ptrace set fp regs failed, errno = 14'
echo 'Kernel panic - not syncing: Attempted to kill init!'
seq -f 'Call Trace: %g' 100
"""
REASON = "the kernel did not come to its end: userspace - ptrace set fp regs failed, errno = 14; " \
    "Kernel panic - not syncing: Attempted to kill init!"  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(outcomes, "CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_boot_that_fails_is_one_line(tmp_path: Path) -> None:
    skip_without("guest")
    (tmp_path / "linux.uml").write_text(PANIC)
    (tmp_path / "linux.uml").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "beds.trials", "guest"], cwd=TESTS, capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"{REASON}\n")


@pytest.mark.parametrize("outcome_of_a_test", [("true", pytest.fail.Exception), ("false", pytest.skip.Exception)])
def test_its_tests_are_errors_in_ci_and_skipped_elsewhere(
    cache: Path, monkeypatch: pytest.MonkeyPatch, outcome_of_a_test: tuple[str, type[BaseException]]
) -> None:
    skip_without("guest")
    outcome("guest").note(REASON)
    line = f"bed guest: cannot work here: {REASON}"
    assert why_not("guest") == line
    ci, expected = outcome_of_a_test
    monkeypatch.setenv("CI", ci)
    with pytest.raises(expected) as raised:
        skip_without("guest")
    assert raised.value.msg == line


def test_an_outcome_counts_until_a_program_is_another(cache: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("1.0")
    outcomes.Outcome("b", [str(program)]).note(None)
    assert outcomes.Outcome("b", [str(program)]).is_known
    program.write_text("1.0.1")
    assert not outcomes.Outcome("b", [str(program)]).is_known
    outcomes.Outcome("b", [str(program)]).note("a fault")
    assert outcomes.Outcome("b", [str(program)]).why_not == "a fault"
    outcomes.Outcome("b", [str(program)]).forget()
    assert not outcomes.Outcome("b", [str(program)]).is_known
