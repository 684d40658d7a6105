"""Attempts as jobs of PBS: OpenPBS 19 or later, PBS Professional 18 or later, which have `qstat -F json`.

scheduler   The Scheduler of `type: pbs` hosts: which programs are called, and what they answer.
programs    Calls of several programs at once, and what their exit statuses mean.
resources   What an attempt asks for, in the words of qsub.
arguments   The other arguments of qsub, and which of them `pbsbatch_args` must not contradict.
states      What `qstat -f -F json` reports about a job.

The scripts are templates/pbs.sh.j2 and templates/pbs_nodes.sh.j2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.hosts.types import PbsHost
    from dispatcher.outlets.batch.scheduler import Scheduler
    from dispatcher.outlets.remote.transport import Transport


def make_scheduler(host: PbsHost, config: Config) -> Scheduler:
    """PBS on a configured host; ConfigError for `pbsbatch_args` that cannot be used."""
    from dispatcher.outlets.pbs.scheduler import PbsScheduler

    return PbsScheduler(host, config.layout)


def make_transport(host: PbsHost, config: Config, owner: str) -> Transport:
    """How it is reached."""
    from dispatcher.outlets.remote.transport import transport_to

    return transport_to(host.name, host.ssh)
