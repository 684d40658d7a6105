"""The page about TPU VMs names the tests that show what it says."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_the_tests_that_the_page_names() -> None:
    page = (TESTS.parents[1] / "docs" / "outlets" / "tpu.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)(?:\.py)?`", page))
    files = [*TESTS.glob("tpu/*.py"), TESTS / "test_contract.py", TESTS / "remote" / "test_machines.py"]
    known = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    assert len(named) > 8
    assert named <= known | {path.stem for path in files}
