"""Files of derived data, written in parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.base import files, parts


def written_by_a_killed_process(path: Path) -> Path:
    script = (
        "import pathlib, sys; from dispatcher.base import files; print(files.temporary_name(pathlib.Path(sys.argv[1])))"
    )
    shown = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    leftover = Path(shown.stdout.strip())
    leftover.write_text("half")
    assert leftover in files.leftovers(path.parent)
    return leftover


def test_only_leftovers_of_the_same_file_are_removed(tmp_path: Path) -> None:
    own = written_by_a_killed_process(tmp_path / "derived")
    edited = written_by_a_killed_process(tmp_path / "matrix_status.json")
    parts.write(tmp_path / "derived", tmp_path, [b"one", b"two"])
    assert not own.exists()
    assert edited.read_text() == "half"
    with open(tmp_path / "derived", "rb") as file:
        assert [parts.read(file), parts.read(file)] == [b"one", b"two"]


def test_a_part_that_is_damaged_or_torn_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "derived"
    parts.write(path, tmp_path, [b"some bytes"])
    good = path.read_bytes()
    for bad in (good[:-1], good[:3], b"", good[:-1] + b"x"):
        path.write_bytes(bad)
        with open(path, "rb") as file, pytest.raises(parts.DamagedPartError):
            parts.read(file)
