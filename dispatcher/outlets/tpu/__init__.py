"""Cloud TPU VMs (`type: tpu`): a VM with the host's name, which gcloud creates, describes, deletes and reaches.

gcloud         The words of gcloud for VMs and queued resources, and what its answers and failures mean. Pure.
creation       The options with which it is created, and what the configuration may add to them. Pure.
vm             What the state of a VM means, and what is to be done next about it. Pure.
provisioning   One VM in the course of time: looked at, created, queued for, deleted; telling: its messages; by_hand:
               the same by commands, which wait.
leaving        What a dispatcher does about it when it ends.
usage          Whether others still use it.
timer          How a VM deletes itself when no dispatcher is left; dead_man: the program that does so there.
projects       Where VMs were created or used, so that none is forgotten.
scheduler      The VM as a Scheduler: launches, checks and signals on all workers.
workers        The transport to all workers; reaching: its words of gcloud; merging: the answers of all as one.
accelerator    What Google's names of accelerators are as chips.

A VM is one host without a shared filesystem: what attempts need is sent to it, and what they report is brought home.
Creation costs money: a dispatcher creates a VM only where the host says `create: auto` and jobs wait for it, a command
asks. A VM of this workspace has its id as a label; nothing else is ever deleted.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.hosts.types import Location, TpuHost
    from dispatcher.outlets.context import PodContext
    from dispatcher.outlets.remote.transport import Transport
    from dispatcher.outlets.tpu.provisioning import TpuProvisioning
    from dispatcher.outlets.tpu.scheduler import TpuScheduler


def make_scheduler(host: TpuHost, config: Config) -> TpuScheduler:
    """What the engine of batch outlets needs for this host.

    UsageError for a name that no VM can have, and for `create_args` that contradict what is generated.
    """
    from dispatcher.errors import UsageError
    from dispatcher.outlets.tpu.gcloud import host_problem
    from dispatcher.outlets.tpu.scheduler import TpuScheduler

    problem = host_problem(host)
    if problem:
        raise UsageError(problem)
    return TpuScheduler(host)


def locate(host: TpuHost, config: Config, location: Location | None) -> TpuHost:
    """The host with its project, or that of a location; UsageError where there is none."""
    from dispatcher.outlets.tpu.projects import settled

    return settled(host if location is None else host.at(location), config.layout)


def make_transport(host: TpuHost, config: Config, owner: str) -> Transport:
    """How its workers are reached; gcloud runs on this machine."""
    from dispatcher.outlets.remote.divided import DividedTransport
    from dispatcher.outlets.tpu.gcloud import PROGRAM
    from dispatcher.outlets.tpu.projects import with_project
    from dispatcher.outlets.tpu.workers import WorkersTransport

    return DividedTransport(host.name, (PROGRAM,), WorkersTransport(with_project(host, config.layout)))


def make_provisioning(host: TpuHost, context: PodContext, limit: int) -> TpuProvisioning:
    """Whether the VM is there, and what a pod with `limit` attempts on it does so that it is."""
    from dispatcher.outlets.batch.identity import workspace_id
    from dispatcher.outlets.tpu.projects import remember_project
    from dispatcher.outlets.tpu.provisioning import Times, TpuProvisioning, VmOwner
    from dispatcher.outlets.tpu.telling import without_end
    from dispatcher.outlets.tpu.usage import other_owners, other_pods

    layout = context.config.layout
    # One that ends at once leaves what it finds to those that stay.
    is_lasting = bool(limit) and context.needs_slots
    around = VmOwner(
        log=context.log,
        is_used_elsewhere=lambda: bool(other_pods(layout, context.observer, context.pod, host.name)),
        has_others=lambda: bool(other_owners(layout, context.observer, context.pod, host.name)),
        remember=functools.partial(remember_project, layout, host.name),
        tells_at_end=is_lasting,
        ends_when_empty=context.ends_when_empty,
    )
    times = Times(interval_s=context.poll_interval_s)
    may_create = host.create == "auto" and is_lasting
    if may_create and (warning := without_end(host)):
        context.log(f"warning: {warning}")
    return TpuProvisioning(host, workspace_id(layout), around, times, may_create=may_create)
