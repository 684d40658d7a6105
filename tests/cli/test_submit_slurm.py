"""`submit` and `poll` on a real SLURM whose login node is this machine, so that attempts see the workspace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from beds.slurm import SlurmBed
from fleet import Fleet, fleet_at, shell, wait_until
from repositories import Repository

CONFIG = """
clusters: {{here: {{share: {share}, work: {work}}}}}
hosts:
  hpc: {{type: slurm, cluster: here}}
poll_interval: 1s
kill_grace: 2s
"""


@pytest.fixture
def fleet(tmp_path: Path, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    with fleet_at(tmp_path / "a'; echo foo", said=tmp_path / "said") as made:
        made.write_config(CONFIG.format(share=tmp_path / "share", work=tmp_path / "work"))
        yield made


def poll_until(fleet: Fleet, job: str, *states: str) -> None:
    def reached() -> bool:
        fleet.run("poll")
        return fleet.record(job).state in states

    wait_until(reached, f"{job} is {' or '.join(states)}, now {fleet.records().get(job)}")


def test_many_jobs_go_as_one_array_and_end_each_by_itself(fleet: Fleet) -> None:
    fleet.write_manifest([shell(f"j{number}", f"exit {number}") for number in range(4)])
    rows = json.loads(fleet.run("submit", "j*", "--json"))
    assert [row["outlet"] for row in rows] == ["hpc"] * 4
    assert len({row["handle"].partition("_")[0] for row in rows}) == 1, rows
    for number in range(4):
        poll_until(fleet, f"j{number}", "done" if number == 0 else "failed")
        assert fleet.record(f"j{number}").reason == (f"exit {number}" if number else None)
    assert all(record.code is None for record in fleet.records().values())


def test_clean_code_is_shipped_although_the_workspace_is_seen(fleet: Fleet, tmp_path: Path) -> None:
    fleet.write_manifest([shell("there", "pwd; cat module.py"), shell("here", "pwd; cat module.py")])
    repository = Repository(fleet.root)
    repository.write(".gitignore", "run_state/\n")
    repository.write("module.py", "committed\n")
    head = repository.commit()
    repository.write("module.py", "changed since\n")
    fleet.run("submit", "there", "--clean")
    fleet.run("submit", "here")
    for job in ("there", "here"):
        poll_until(fleet, job, "done")
    assert fleet.output("here").splitlines()[-2:] == [os.fspath(fleet.root), "changed since"]
    *_, directory, content = fleet.output("there").splitlines()
    assert content == "committed"
    assert directory.startswith(os.fspath(tmp_path / "work"))
    assert not os.path.exists(directory), "the extracted tree is removed on success"
    assert str(fleet.record("there").code).startswith(head[:12])
    assert fleet.record("here").code is None
    assert [path.suffix for path in (tmp_path / "share/code").iterdir()] == [".tar"]


def test_a_refused_request_is_shown_and_the_job_is_queued_again(fleet: Fleet) -> None:
    fleet.write_config("hosts:\n  hpc: {type: slurm, partitions: [nowhere]}\n")
    fleet.write_manifest([shell("a", "true")])
    done = fleet.try_("submit", "a", "--json")
    assert done.returncode == 1
    (row,) = json.loads(done.stdout)
    assert (row["handle"], row["state"]) == (None, "queued")
    assert "invalid partition" in row["error"]


def test_cancelled_before_it_began(fleet: Fleet, slurm: SlurmBed) -> None:
    fleet.write_manifest([shell("a", "echo begun >begun")])
    slurm.run("scontrol", "update", "PartitionName=low", "State=DOWN")
    fleet.run("submit", "a", "--outlet", "hpc")
    assert fleet.record("a").state == "submitted"
    fleet.run("cancel", "a")
    poll_until(fleet, "a", "abandoned")
    slurm.run("scontrol", "update", "PartitionName=low", "State=UP")
    assert not (fleet.root / "begun").exists()
    assert slurm.run("squeue", "-h").stdout == ""
