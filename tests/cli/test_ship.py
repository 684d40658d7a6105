"""`dispatcher ship FILES...`: files of the workspace on hosts behind a real sshd."""

from __future__ import annotations

import json
import os

import pytest
from beds.sshd import SshBed
from fleet import Fleet, shell

pytestmark = pytest.mark.slow

CONFIG = """
code: none
hosts: {h1: {type: plain, ssh: h1}, h2: {type: plain, ssh: h2}}
clusters: {h1: {work: ~/work}}
"""
ODD = "it's $HOME"


@pytest.fixture
def lab(fleet: Fleet, ssh: SshBed) -> Fleet:
    fleet.variables = {"DISPATCHER_SSH_CONFIG": os.fspath(ssh.config)}
    fleet.write_config(CONFIG)
    data = fleet.root / "data"
    (data / "deeper").mkdir(parents=True)
    (data / ODD).write_bytes(bytes(range(256)) * 5000)
    (data / "deeper" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (data / "deeper" / "run.sh").chmod(0o755)
    (data / "link").symlink_to("deeper/run.sh")
    (data / "latest").symlink_to("deeper")
    return fleet


def test_files_are_where_attempts_find_them(lab: Fleet, ssh: SshBed) -> None:
    said = lab.run("ship", "data")
    assert sorted(line.partition(" in ")[0] for line in said.splitlines()) == ["h1: 4 files", "h2: 4 files"]
    script = """wc -c <"$DISPATCHER_ROOT/data/it's \\$HOME"; data/latest/run.sh; cat data/new 2>/dev/null"""
    lab.write_manifest([shell(name, script, outlet=name, gpus=0) for name in ("h1", "h2")])
    (lab.root / "data/deeper/run.sh").write_text("#!/bin/sh\necho ran again\n")
    (lab.root / "data/new").write_text("new\n")
    assert lab.run("ship", "--outlet", "h2", "data/deeper/run.sh", "data/new").startswith("h2: 2 files in ")
    lab.start("pod", "--slots", "0", "--outlet", "h1:1", "--outlet", "h2:1", "--until-empty", poll="0.5").end()
    assert lab.output("h1") == "1280000\nran\n"
    assert lab.output("h2") == "1280000\nran again\nnew\n"
    assert not list(ssh["h1"].path("work").glob("*/run_state/shipped/*"))


def test_what_cannot_be_sent_is_said(lab: Fleet, ssh: SshBed) -> None:
    outside = lab.root.parent / "outside"
    outside.touch()
    assert "only files below the workspace" in lab.try_("ship", os.fspath(outside)).stderr
    record = lab.root / "run_state" / "code"
    record.mkdir(parents=True, exist_ok=True)
    assert "cannot be shipped" in lab.try_("ship", os.fspath(record)).stderr
    assert "no such host is configured (known: h1, h2)" in lab.try_("ship", "--outlet", "h3", "data").stderr
    ssh["h2"].stop_sshd()
    done = lab.try_("ship", "data", "--json")
    assert done.returncode == 1
    first, second = sorted(json.loads(done.stdout)["hosts"], key=lambda one: one["host"])
    assert first["directory"] and not first["error"]
    assert second["host"] == "h2" and second["error"]
