"""Golden files that differ little: one is written out, and of each of the others there is its difference from that.

A difference is a unified diff: `patch -o - BASE.sh CASE.diff` prints the whole text. With DISPATCHER_WRITE_GOLDEN=1 in
the environment the tests write the files anew: read their changes before they are committed.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

FOLDER = Path(__file__).parent / "outlets" / "golden"


def check_golden(case: str, text: str, base: str, base_text: str) -> None:
    """Compare what was made for a case with its golden file; `base` is the case that is written out."""
    if case == base:
        _check(FOLDER / f"{case}.sh", text)
    else:
        lines = (base_text.splitlines(keepends=True), text.splitlines(keepends=True))
        _check(FOLDER / f"{case}.diff", "".join(difflib.unified_diff(*lines, f"{base}.sh", f"{case}.sh", n=1)))


def _check(path: Path, text: str) -> None:
    if os.environ.get("DISPATCHER_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
