"""The pages about outlets name the tests that show what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
# With the folders of tests that each names.
PAGES = {
    "ssh": ("outlets/remote", "outlets/plain", "outlets"),
    "slurm": ("outlets/slurm", "outlets/batch", "outlets/remote", "outlets", "pod"),
    "pbs": ("outlets/pbs", "outlets/batch", "outlets/remote", "outlets", "pod"),
    "volcano": ("outlets/volcano", "outlets/batch", "outlets", "beds"),
    "tpu": ("outlets/tpu", "outlets/remote", "outlets"),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names(page: str) -> None:
    text = (TESTS.parent / "docs" / "outlets" / f"{page}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)(?:\.py)?`", text))
    files = [path for folder in PAGES[page] for path in (TESTS / folder).glob("test_*.py")]
    known = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    assert len(named) > 8
    assert named <= known | {path.stem for path in files}
