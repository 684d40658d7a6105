"""`dispatcher usage --disk`: what takes up the space."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, shell

LEAVES = 'echo said; cd "$DISPATCHER_ATTEMPT_DIR"; mkdir ckpt-1 out; head -c 300000 /dev/zero >ckpt-1/w; exit 3'


@pytest.fixture
def used(fleet: Fleet) -> Fleet:
    fleet.write_config("methods: {m: {backoff: 0.01s}}\n")
    fleet.write_manifest([shell("a", LEAVES, lang="de", retries=1), shell("b", "echo said", lang="fi")])
    fleet.run_all()
    return fleet


def read(fleet: Fleet, *words: str) -> list[dict[str, Any]]:
    return list(json.loads(fleet.run("usage", "--disk", "--format", "json", *words)))


def du(path: Path) -> int:
    return int(subprocess.run(["du", "-s", "-B1", path], capture_output=True, text=True, check=True).stdout.split()[0])


def test_it_is_what_du_says(used: Fleet, tmp_path: Path) -> None:
    one = used.attempt("a").directory
    os.link(one / "ckpt-1" / "w", one / "out" / "same")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "big").write_bytes(b"x" * 5_000_000)
    (one / "link").symlink_to(tmp_path / "outside")
    (used.layout.jobs_dir / "linked").symlink_to(tmp_path / "outside")
    rows = read(used)
    assert sum(row["bytes"] for row in rows) == du(used.layout.run_state)
    assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)
    kinds = {row["what"]: row["bytes"] for row in rows}
    assert kinds["attempts: checkpoints"] >= 600_000 > kinds["attempts: logs"] > 0
    assert kinds["journal"] > 0


def test_by_keys(used: Fleet) -> None:
    rows = {row["lang"]: row for row in read(used, "--by", "lang")}
    assert rows.keys() == {"de", "fi"}
    assert rows["de"]["checkpoints"] >= 600_000 and rows["fi"]["checkpoints"] == 0
    assert rows["de"]["bytes"] == du(used.layout.job_dir("a"))
    used.run("clean", "--yes")
    after = {row["lang"]: row for row in read(used, "--by", "lang")}
    assert 300_000 <= after["de"]["checkpoints"] < 600_000 and after["fi"] == rows["fi"]
    shown = used.run("usage", "--disk")
    assert "attempts: checkpoints" in shown and "KiB in " in shown
    assert used.try_("usage", "--disk", "--by", "nosuch").returncode == 2
    assert used.try_("usage", "--disk", "--until", "1h").returncode == 2


def test_a_workspace_in_which_nothing_has_run(fleet: Fleet) -> None:
    fleet.write_config("")
    shutil.rmtree(fleet.layout.run_state, ignore_errors=True)
    shown = fleet.run("usage", "--disk")
    assert shown.strip() == "0 B in 0 files"
    assert read(fleet) == [] and read(fleet, "--by", "method") == []
