"""Several dispatchers with one SLURM cluster on its worst day: nothing is lost, submitted twice or left running."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.slurm import SlurmBed
from chaos.cluster_storm import PODS, ClusterStorm
from chaos.proofs import check_intervals, check_journal
from fleet import Fleet, wait_until

HERE = Path(__file__).parent
JOBS = 150
DEFAULT_S = 15.0
CONFIG = """
heartbeat: 1s
lost_after: 10s
kill_grace: 1s
max_requeues: 1000
methods:
  m: {retries: 1000, retry_on: [signal], backoff: 0.1s}
hosts:
  hpc: {type: slurm, partitions: [low], mem: 50M}
"""


@pytest.mark.slow
@pytest.mark.quiet
@pytest.mark.timeout(0)
def test_the_worst_day_of_a_cluster(
    fleet: Fleet, tmp_path: Path, start_slurm: Callable[..., SlurmBed], pytestconfig: pytest.Config
) -> None:
    seconds = pytestconfig.getoption("--chaos-seconds") or DEFAULT_S
    seed = pytestconfig.getoption("--chaos-seed")
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"chaos seed {seed}, {seconds:g} s (--chaos-seed {seed} makes the same choices)")
    # The controller remembers all jobs, so that it can be asked for twins.
    slurm = start_slurm(nodes=4, cpus=8, min_job_age_s=100_000, slurmd_timeout_s=5)
    fleet.variables = slurm.env
    proof = tmp_path / "proof"
    proof.mkdir()
    write_matrix(fleet, proof, random.Random(seed), seconds)
    storm = ClusterStorm(fleet, slurm, seed)
    for _ in range(PODS):
        storm.start_pod()
    storm.pods[0].ready()
    wait_until(lambda: len(fleet.records()) == JOBS, f"all entries are queued: {storm.pods[0].said}")
    storm.blow(seconds)
    finish(fleet, storm)
    print(f"{dict(storm.done)}, {len(fleet.history())} lines in the journal")

    assert set(fleet.states().values()) == {"done"}
    assert not (proof / "twice").exists(), (proof / "twice").read_text()
    check_intervals(proof)
    check_journal(fleet)
    check_cluster(slurm)


def write_matrix(fleet: Fleet, proof: Path, chance: random.Random, seconds: float) -> None:
    """Jobs that together keep all CPUs of the cluster busy for about a quarter of the storm."""
    fleet.write_config(CONFIG)
    python = [sys.executable, "-I", "-S", str(HERE / "witness.py"), str(proof)]
    longest_s = min(seconds / 20, 6.0)
    fleet.write_manifest([
        {
            "job_id": f"job_{number:03d}",
            "gpus": 0,
            "command": [*python, f"job_{number:03d}", f"{chance.uniform(0.05, longest_s):.3f}"],
        }
        for number in range(JOBS)
    ])  # fmt: skip


def finish(fleet: Fleet, storm: ClusterStorm) -> None:
    """Let the day end well: what people have put aside is put back, until all is done."""
    end_s = time.monotonic() + 300
    while True:
        storm.settle()
        storm.resume_nodes()
        left = {job: record for job, record in fleet.records().items() if record.state != "done"}
        if not left:
            break
        assert time.monotonic() < end_s, f"not done: {left}"
        if aside := [job for job, record in left.items() if record.state in ("failed", "held", "abandoned")]:
            storm.requeue(*aside)
        for scope in storm.workspace().snapshot().pauses:
            storm.workspace().unpause(scope)
        time.sleep(0.5)
    for pod in storm.pods:
        pod.send(signal.SIGTERM)
    for pod in storm.pods:
        # One that has only just been started is not listening yet.
        assert pod.end() in (0, 1, -signal.SIGTERM), pod.said


def check_cluster(slurm: SlurmBed) -> None:
    """No name was given twice, and of no attempt is anything left."""
    shown = slurm.run("squeue", "--me", "--array", "-h", "--states=all", "--Format=Name:128,ArrayTaskID:20").stdout
    names = Counter(tuple(line.split()) for line in shown.splitlines() if line.startswith("d-"))
    assert names
    assert max(names.values()) == 1, f"submitted twice: {names.most_common(3)}"
    wait_until(lambda: not slurm.run("squeue", "--me", "-h").stdout, "the queue is empty")
    wait_until(lambda: not slurm.processes("slurmstepd"), "no step is left")
    assert not slurm.processes("job.sh")
    assert not [pid for pid in slurm.processes() if b"DISPATCHER_ATTEMPT_DIR=" in environment(pid)]


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
