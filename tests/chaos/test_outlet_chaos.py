"""Several dispatchers with a cluster, or with ssh hosts, on their worst day: nothing is lost and nothing runs twice."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from beds.pbs import PYTHON
from chaos.outlet_storms import OutletStorm, PbsStorm, SlurmStorm, SshStorm
from chaos.proofs import check_intervals, check_journal
from chaos.storm import weather
from fleet import Fleet, wait_until

HERE = Path(__file__).parent
JOBS = 150
CONFIG = """
code: none
heartbeat: 1s
lost_after: 10s
kill_grace: 1s
max_requeues: 1000
methods:
  m: {retries: 1000, retry_on: [signal], backoff: 0.1s}
hosts:
"""


def of_slurm(fleet: Fleet, request: pytest.FixtureRequest, seed: int, _: Path) -> OutletStorm:
    # The controller remembers all jobs, so that it can be asked for twins.
    start = request.getfixturevalue("start_slurm")
    return SlurmStorm(fleet, seed, start(nodes=4, cpus=8, min_job_age_s=100_000, slurmd_timeout_s=5))


def of_pbs(fleet: Fleet, request: pytest.FixtureRequest, seed: int, _: Path) -> OutletStorm:
    pbs = request.getfixturevalue("pbs")
    pbs.configure(kill_delay_s=1.0)
    return PbsStorm(fleet, seed, pbs)


def of_ssh(fleet: Fleet, request: pytest.FixtureRequest, seed: int, proof: Path) -> OutletStorm:
    return SshStorm(fleet, seed, request.getfixturevalue("start_ssh")(list(SshStorm.hosts), shared=[proof]))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("storm_of", [pytest.param(of_slurm, marks=pytest.mark.quiet), of_pbs, of_ssh])
def test_the_worst_day_of_a_cluster(
    fleet: Fleet,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    pytestconfig: pytest.Config,
    storm_of: Callable[..., OutletStorm],
) -> None:
    seconds, seed = weather(pytestconfig)
    proof = tmp_path / "proof"
    proof.mkdir()
    storm = storm_of(fleet, request, seed, proof)
    write_matrix(fleet, storm, proof, seconds)
    storm.begin()
    wait_until(lambda: len(fleet.records()) == JOBS, "all entries are queued")
    storm.blow(seconds)
    storm.finish()

    assert set(fleet.states().values()) == {"done"}
    assert not (proof / "twice").exists(), (proof / "twice").read_text()
    check_intervals(proof)
    check_journal(fleet)
    storm.check()


def write_matrix(fleet: Fleet, storm: OutletStorm, proof: Path, seconds: float) -> None:
    """Jobs that together keep all CPUs of the cluster busy for about a quarter of the storm."""
    fleet.write_config(CONFIG + "".join(f"  {name}: {host}\n" for name, host in storm.hosts.items()))
    chance = random.Random(storm.seed)
    # Hosts have this machine's programs, and no checkout.
    witness = shutil.copy(HERE / "witness.py", proof)
    python = [PYTHON, "-I", "-S", str(witness), str(proof)]
    longest_s = min(seconds / 20, 6.0)
    fleet.write_manifest([
        {
            "job_id": f"job_{number:03d}",
            "gpus": 0,
            "command": [*python, f"job_{number:03d}", f"{chance.uniform(0.05, longest_s):.3f}"],
        }
        for number in range(JOBS)
    ])  # fmt: skip
