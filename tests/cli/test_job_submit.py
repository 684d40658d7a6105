"""`dispatcher job submit`: a job class on a real SLURM, with an entry that nobody has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from beds.slurm import SlurmBed
from fleet import Fleet, fleet_at, wait_until

from dispatcher.base.users import user_name

JOBS = '''
from dataclasses import dataclass

from dispatcher.runtime.configuration import field
from dispatcher.runtime.jobs.basic import BasicJob
from dispatcher.runtime.registry import job


@dataclass(frozen=True)
class Counting:
    text: str = field("count/text")
    times: int = field("count/times", default=1)


@job("count/letters")
class CountLetters(BasicJob[Counting]):
    """Count letters."""

    @classmethod
    def config(cls):
        return Counting

    def run(self):
        return {"letters": len(self.args.text) * self.args.times}
'''


@pytest.fixture
def fleet(tmp_path: Path, slurm: SlurmBed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A workspace without a manifest, on a cluster's login node."""
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    with fleet_at(tmp_path / "a'; echo foo") as made:
        made.write_config("hosts:\n  hpc: {type: slurm}\npoll_interval: 1s\n")
        (made.root / "jobs").mkdir()
        made.layout.run_state.mkdir()
        (made.root / "jobs/count.py").write_text(JOBS)
        (made.root / "count.yaml").write_text("job: count/letters\ncount: {text: it's}\n")
        yield made


def submit(fleet: Fleet, *words: str) -> list[dict[str, Any]]:
    return list(json.loads(fleet.run("job", "submit", *words, "--json")))


def submitted(fleet: Fleet) -> list[dict[str, Any]]:
    return [json.loads(line) for line in fleet.layout.submitted_manifest.read_text().splitlines()]


def fails(fleet: Fleet, *words: str) -> str:
    done = fleet.try_("job", "submit", *words)
    assert done.returncode != 0
    return done.stderr


def test_a_job_class_becomes_an_entry_and_runs(fleet: Fleet) -> None:
    (row,) = submit(fleet, "counted", "count.yaml", "count.times=3", "-n", "0", "--cpu", "1", "--outlet", "hpc")
    assert (row["job"], row["outlet"]) == ("counted", "hpc")
    (entry,) = submitted(fleet)
    assert entry == {
        "job_id": "counted",
        "method": "job",
        "user": user_name(),
        "job": "count/letters",
        "config": {"count": {"text": "it's", "times": 3}},
        "resources": {"min_chips": 0, "cpus": 1},
        # No pod takes it to another place before it is there.
        "outlet": ["hpc"],
    }

    def is_done() -> bool:
        fleet.run("poll")
        return fleet.record("counted").state == "done"

    wait_until(is_done, "it is done")
    assert json.loads(fleet.attempt("counted").result.read_text())["letters"] == 12
    submit(fleet, "counted", "count.yaml", "--name", "again", "-n", "0", "--outlet", "hpc")
    assert [entry["job_id"] for entry in submitted(fleet)] == ["counted", "again"]
    assert "there is a job counted already" in fails(fleet, "counted", "count.yaml", "-n", "0", "--outlet", "hpc")
    fleet.run("cancel", "again")
    fleet.run("poll")
    wait_until(lambda: not fleet.pids(), "it has ended")


def test_faults_are_found_before_anything_is_written(fleet: Fleet) -> None:
    assert "missing.yaml: cannot be read" in fails(fleet, "a", "missing.yaml", "--outlet", "hpc")
    assert "count.tims" in fails(fleet, "a", "count.yaml", "count.tims=3", "--outlet", "hpc")
    assert "job_id" in fails(fleet, "no/name", "count.yaml", "--outlet", "hpc")
    assert "no such host is configured" in fails(fleet, "a", "count.yaml", "--outlet", "h1")
    assert submit(fleet, "a", "count.yaml", "--dry-run", "-n", "0") == [{"job": "a", "outlet": "hpc"}]
    assert not fleet.layout.submitted_manifest.exists()
    assert fleet.records() == {}


def test_the_other_commands_of_job_classes_are_passed_on(fleet: Fleet) -> None:
    assert "count/letters" in fleet.run("job", "list")
    assert "--chip" in fleet.run("job", "submit", "--help")
    assert "dispatcher job submit NAME CONFIG.yaml" in fleet.run("job", "--help")
