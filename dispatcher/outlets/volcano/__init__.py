"""Attempts as Jobs of Volcano in a Kubernetes cluster (`type: volcano`).

scheduler    VolcanoScheduler: what the engine in outlets/batch calls.
resources    The Kubernetes pods of a Job, and what each of them gets.
manifest     The Job of an attempt, as data.
merging      A project's own template of the Job, merged over it.
submitting   `kubectl create`, and what its answers mean.
objects      Jobs, PodGroups, Kubernetes pods and events as the API server shows them.
questions    What is asked about Jobs, and how the answers are read.
states       What they mean.
limits       How many Jobs a namespace may have.
kubectl      The words of every call of kubectl, and what its failures mean.
helper       The transport to the volume: calls of the agent in a small pod that mounts it.
helper_pod   Making that pod, waiting for it and removing it; helper_job: its manifest; helper_state: how it is.

templates/volcano_pod.sh.j2 is what a Kubernetes pod runs, templates/volcano_nodes.sh.j2 starts the command on all pods
of a Job. docs/outlets/volcano.md describes all of it for users. Programs run on this machine; files are where the
volume is mounted, and are reached through a Kubernetes pod that is kept for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.hosts.types import Location, VolcanoHost
    from dispatcher.outlets.remote.transport import Transport
    from dispatcher.outlets.volcano.scheduler import VolcanoScheduler


def make_scheduler(host: VolcanoHost, config: Config) -> VolcanoScheduler:
    """What the engine of batch outlets needs for this host; ConfigError for a template that cannot be used."""
    from dispatcher.outlets.volcano.scheduler import VolcanoScheduler

    return VolcanoScheduler(host, config.layout, config.kill_grace_s)


def locate(host: VolcanoHost, config: Config, location: Location | None) -> VolcanoHost:
    """The host with the context that kubectl takes by default now, or with that of a location.

    On this machine the context of a location may be called otherwise: then the host's own is taken, and what the
    cluster tells of itself shows whether it is the same one.
    """
    from dispatcher.outlets.volcano.kubectl import contexts, current_context

    root = config.layout.root
    if location is not None:
        there = host.at(location)
        if there.context is None or there.context in contexts(there, root):
            return there
        host = msgspec.structs.replace(host, namespace=there.namespace)
    return host if host.context else msgspec.structs.replace(host, context=current_context(host, root))


def make_transport(host: VolcanoHost, config: Config, owner: str) -> Transport:
    """How it is reached: kubectl runs here, and files are on the volume."""
    from dispatcher.outlets.remote.divided import DividedTransport
    from dispatcher.outlets.volcano.helper import HelperTransport
    from dispatcher.outlets.volcano.kubectl import PROGRAM

    return DividedTransport(host.name, [PROGRAM], HelperTransport(host, config.layout, owner))
