"""Hosts without a scheduler (`type: plain`): attempts are processes there, which the agent starts and finds.

scheduler   Such a host as a Scheduler: launches, checks and signals in place of a scheduler's programs.
resources   Which requests a host can never run.
launched    What it has in common with a TPU VM: attempts that the agent launches, checks and signals.
states      What the check of an attempt means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.hosts.types import PlainHost
    from dispatcher.outlets.plain.scheduler import PlainScheduler
    from dispatcher.outlets.remote.transport import Transport


def make_scheduler(host: PlainHost, config: Config) -> PlainScheduler:
    """What the engine of batch outlets needs for this host."""
    from dispatcher.outlets.plain.scheduler import PlainScheduler

    return PlainScheduler(host, config.hosts.cluster_of(host), config.layout.root)


def make_transport(host: PlainHost, config: Config, owner: str) -> Transport:
    """How it is reached."""
    from dispatcher.outlets.remote.transport import transport_to

    return transport_to(host.name, host.ssh)
