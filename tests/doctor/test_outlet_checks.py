"""What `doctor` finds out about configured hosts, on real ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.sshd import SshBed

from dispatcher.config import load_config
from dispatcher.doctor import outlet_checks
from dispatcher.doctor.context import Context
from dispatcher.doctor.findings import OK, WARNING, WRONG, Finding
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.workspace import Layout


def findings(root: Path, text: str) -> dict[str, Finding]:
    layout = Layout(root)
    layout.config_file.write_text(text)
    return {one.check: one for one in outlet_checks.hosts(Context(layout, load_config(layout)))}


@pytest.fixture
def at(ssh: SshBed, monkeypatch: pytest.MonkeyPatch) -> SshBed:
    monkeypatch.setenv("DISPATCHER_SSH_CONFIG", os.fspath(ssh.config))
    return ssh


def test_a_host_that_can_be_used_and_one_that_cannot(at: SshBed, tmp_path: Path) -> None:
    with at["h2"].away():
        found = findings(tmp_path, "hosts: {h1: {type: plain, ssh: h1}, h2: {type: plain, ssh: h2}}")
    assert found["host h1"].verdict == OK
    assert "root@h1, Python 3" in found["host h1"].what
    assert found["host h2"].verdict == WRONG
    assert found["host h2"].cure == "`ssh h2 true` must work without a question"


def test_that_a_host_does_not_see_the_workspace(at: SshBed, tmp_path: Path) -> None:
    workspace_id(Layout(tmp_path))
    text = "hosts: {h1: {type: plain, ssh: h1}}"
    assert findings(tmp_path, text)["host h1"].what.endswith("; does not see the workspace")


def test_that_a_host_sees_the_workspace(
    start_ssh: Callable[..., SshBed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = start_ssh(["h1"], shared=[tmp_path])
    monkeypatch.setenv("DISPATCHER_SSH_CONFIG", os.fspath(bed.config))
    workspace_id(Layout(tmp_path))
    text = "hosts: {h1: {type: plain, ssh: h1}}"
    assert findings(tmp_path, text)["host h1"].what.endswith("; sees the workspace")


def test_directories_that_cannot_be_written_to(at: SshBed, tmp_path: Path) -> None:
    text = "clusters: {c: {work: /proc/none, log: /tmp/logs}}\nhosts: {h1: {type: plain, ssh: h1, cluster: c}}"
    found = findings(tmp_path, text)
    assert found["host h1 work"].verdict in (WRONG, WARNING)
    assert found["host h1 log"].verdict == OK


def test_programs_that_are_missing(at: SshBed, tmp_path: Path) -> None:
    found = findings(tmp_path, "hosts: {h1: {type: pbs, ssh: h1}}")
    assert found["host h1"].verdict == OK
    wrong = outlet_checks.hosts(Context(Layout(tmp_path), load_config(Layout(tmp_path))))
    assert [one.what for one in wrong if one.verdict == WRONG] == [
        "no qsub, qstat, qdel, qselect, qsig on PATH of root@h1"
    ]
