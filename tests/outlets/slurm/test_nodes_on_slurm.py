"""node.sh as a step of a real SLURM job on two nodes: what a signal to the step alone does, and what is left."""

from __future__ import annotations

import shlex

from beds.bed import wait_for
from beds.slurm import SlurmBed
from node_trials import Node, archive_of
from slurm_jobs import Jobs

from dispatcher.outlets.base import Request
from dispatcher.outlets.batch.scheduler import Phase

NAME = "d-0123456789ab-0123456789abcdef"
REQUEST = Request(gpus=2, nodes=2, cpus=1)


def test_a_signal_to_the_step_reaches_each_command_once(slurm: SlurmBed) -> None:
    """As in a grace period, of which SLURM tells the batch script nothing."""
    folder = slurm.directory / "work" / "two nodes"
    folder.mkdir(mode=0o777)
    node = Node(folder)
    jobs = Jobs(slurm, folder, slot_type="cuda")
    one = node.written(code=archive_of({"data/x": "from the code\n"}), setup="export FROM_SETUP=yes")
    script = (
        'trap "echo told \\$SLURM_PROCID; exit 75" TERM; echo "$SLURM_PROCID $FROM_SETUP $(cat data/x)"; '
        "while :; do sleep 0.05; done"
    )
    words = [*jobs.scheduler.launcher(REQUEST), "bash", str(one.script), "bash", "-c", script]
    environment = f"DISPATCHER_ATTEMPT_DIR={shlex.quote(str(one.directory))}"
    jobs.submit(NAME, f"{environment} {shlex.join(words)} >{shlex.quote(str(one.log))} 2>&1", request=REQUEST)
    ready = [f"{rank} yes from the code" for rank in (0, 1)]
    wait_for(lambda: one.log.exists() and all(line in one.output for line in ready), lambda: jobs.log("j0"))
    handle = jobs.state("j0").handle
    slurm.run("scancel", "--signal=TERM", f"{handle}.0")
    assert jobs.wait(Phase.ENDED).exit_code == 75
    assert sorted(line for line in one.output.splitlines() if line.startswith("told")) == ["told 0", "told 1"]
    assert one.first == "signal TERM"
    assert not one.has_failed_setup
    assert node.leftovers() == []
