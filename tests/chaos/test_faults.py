"""Storage in trouble: calls of dispatchers, wrappers and jobs fail at random, and each job runs to its end once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from fleet import Fleet, shell, wait_until

SOURCE = Path(__file__).with_name("faults.c")


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (gcc or cc) to build what makes calls fail")
    library = tmp_path / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("percent", "jobs"), [(1.0, 40), pytest.param(3.0, 60, marks=pytest.mark.long)], ids=["1%-40", "3%-60"]
)
def test_each_job_runs_to_its_end_once(fleet: Fleet, tmp_path: Path, faults: Path, percent: float, jobs: int) -> None:
    """What a job appends to a file elsewhere counts how often it ran; its own calls below the workspace fail too."""
    ran, log = tmp_path / "ran", tmp_path / "faults.log"
    ran.touch()
    script = f"echo $DISPATCHER_JOB_ID >>{ran}; exit 0"
    fleet.write_manifest([shell(f"j{number}", script) for number in range(jobs)])
    environment = {
        "LD_PRELOAD": os.fspath(faults),
        "FAULTS_BELOW": os.fspath(fleet.root),
        "FAULTS_SPARED": f"{fleet.root}/said",
        "FAULTS_PERCENT": str(percent),
        "FAULTS_LOG": os.fspath(log),
    }
    pods = []

    def all_ended() -> bool:
        # A pod that could not begin, or ended for want of its run state, is started again as a person would.
        for name in ("one", "two"):
            if not any(pod.pod == name and pod.is_running() for pod in pods):
                pods.append(fleet.start(name, "--slots", "2", poll="0.5", **environment))
        return Counter(fleet.states().values())["done"] == jobs

    wait_until(all_ended, f"all jobs are done: {fleet.root}", timeout_s=240)
    for pod in pods:
        if pod.is_running():
            pod.stop()
    counts = Counter(ran.read_text().split())
    faults_met = len(log.read_text().splitlines())
    print(f"{jobs} jobs, {faults_met} faults, {len(pods) - 2} pods started again")
    assert faults_met > jobs / 3
    assert counts == Counter({f"j{number}": 1 for number in range(jobs)})
    assert [pod.said for pod in pods if "Traceback" in pod.said] == []
    assert {record.exit_code for record in fleet.records().values()} == {0}
