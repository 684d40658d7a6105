"""Attempts as jobs of SLURM, on hosts of `type: slurm`.

scheduler    SlurmScheduler: what the engine in outlets/batch calls.
gres         GPUs as SLURM knows them, by type.
resources    The table from requests to options for nodes, GPUs, CPUs, memory and partitions.
directives   The other `#SBATCH` lines, and what `sbatch_args` may add.
steps        srun, where an attempt has several nodes.
submitting   What sbatch's answers mean; the limits of a site.
questions    squeue, scontrol and sacct: what is asked, and how the answers are read.
states       What SLURM's states mean.
cancelling   scancel, by name.

templates/sbatch.sh.j2 is the batch script. docs/outlets/slurm.md describes all of it for users. All of it is pure:
operations for the agent go out, its answers come in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.hosts.types import SlurmHost
    from dispatcher.outlets.remote.transport import Transport
    from dispatcher.outlets.slurm.scheduler import SlurmScheduler


def make_scheduler(host: SlurmHost, config: Config) -> SlurmScheduler:
    """What the engine of batch outlets needs for this host; ConfigError for `sbatch_args` that cannot be used."""
    from dispatcher.outlets.slurm.scheduler import SlurmScheduler

    return SlurmScheduler(host, config.hosts, config.layout, config.kill_grace_s)


def make_transport(host: SlurmHost, config: Config, owner: str) -> Transport:
    """How it is reached."""
    from dispatcher.outlets.remote.transport import transport_to

    return transport_to(host.name, host.ssh)
