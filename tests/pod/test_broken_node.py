"""Nodes of an outlet on which nothing can start: claims choose none of them, so none is paused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from beds.sshd import SshBed
from fleet import Fleet, shell

from dispatcher import templates

pytestmark = pytest.mark.slow

CONFIG = """\
code: none
max_requeues: 0
hosts:
  h1: {type: plain, ssh: h1}
"""


def test_a_node_that_starts_nothing_is_not_said_to_be_paused(fleet: Fleet, ssh: SshBed) -> None:
    fleet.write_config(CONFIG)
    fleet.variables = {"DISPATCHER_SSH_CONFIG": os.fspath(ssh.config)}
    fleet.layout.templates_dir.mkdir()
    head, _, rest = (Path(templates.__file__).parent / "wrapper.sh.j2").read_text().partition("\n")
    (fleet.layout.templates_dir / "wrapper.sh.j2").write_text(f"{head}\nkill -9 $$\n{rest}")
    jobs = [f"job{number}" for number in range(7)]
    fleet.write_manifest([shell(job, "true", gpus=0, outlet="h1") for job in jobs])
    pod = fleet.start("pod", "--outlet", "h1:2", "--until-empty", poll="0.5")
    assert pod.end() == 1
    records = fleet.records()
    assert {record.state for record in records.values()} == {"failed"}, "more of them than pause a host"
    assert {(record.reason, record.host) for record in records.values()} == {("cannot start 1 times", "h1")}
    assert "paused" not in pod.said + fleet.try_("status").stdout
