"""What people are told of a TPU VM that is not up, and what they can do about it. Pure."""

from __future__ import annotations

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.tpu import gcloud
from dispatcher.outlets.tpu.gcloud import Queued, Vm
from dispatcher.outlets.tpu.vm import Condition, condition_of, kind_text


def why_not_up(host: TpuHost, vm: Vm, *, is_deleted: bool) -> str:
    """Why a VM that is there runs nothing. `is_deleted`: the dispatcher deletes it."""
    told = f"the TPU VM {host.name} is {vm.state or 'in no state'}"
    if vm.health_description:
        told += f" ({vm.health_description})"
    condition = condition_of(vm.state)
    if is_deleted:
        return f"{told}; it is deleted"
    if condition is Condition.DEAD:
        return f"{told}; {deletion(host)}"
    return f"{told}; `{gcloud.start_text(host)}` starts it" if condition is Condition.STOPPED else told


def why_absent(host: TpuHost, queued: Queued | None, queue_name: str, shortage: str, may_create: bool) -> str:
    """Why there is no VM. `shortage` is what Google has said of its capacity, empty when it has not."""
    name = f"the TPU VM {host.name}"
    if queued is not None:
        told = f"{name} waits for capacity: its queued resource {queue_name} is {queued.state}"
        return f"{told} ({shortage})" if shortage else told
    if shortage:
        return f"{name} was not created: {shortage}"
    if may_create:
        return f"{name} ({kind_text(host)}) is created when jobs wait for it"
    auto = "or `create: auto` in its configuration lets the dispatcher do that"
    return f"{name} does not exist: `dispatcher outlets create {host.name}` creates it ({auto})"


def other_size(host: TpuHost, vm: Vm) -> str:
    """Why a VM is not what the configuration says; empty where it is, or where the API does not tell."""
    if vm.accelerator_type in ("", host.accelerator_type):
        return ""
    return (
        f"the TPU VM {host.name} is a {vm.accelerator_type}, and hosts.{host.name}.accelerator_type says "
        f"{host.accelerator_type}: nothing is started on it; {deletion(host)}, or correct the configuration"
    )


def without_end(host: TpuHost) -> str:
    """That a VM which dispatchers create stays when no job needs it any more; empty where it does not."""
    if host.create != "auto" or host.idle_delete_s is not None:
        return ""
    return (
        f"hosts.{host.name} has `create: auto` without `idle_delete`: its VM costs money until it is deleted by hand, "
        "whether or not jobs use it; `idle_delete: 30m` ends that"
    )


def deletion(host: TpuHost) -> str:
    """How a person deletes it, with what was asked of Google for it."""
    return f"`dispatcher outlets delete {host.name}` deletes it"
