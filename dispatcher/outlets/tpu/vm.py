"""What the state of a TPU VM means, and what is to be done next about it. Pure.

A VM is created where attempts wait for it and the configuration allows it. Where Google has none free, a queued
resource asks for it; one that has failed is deleted and made anew. A VM that was preempted keeps its name and its
quota until it is deleted. Only what was created for this workspace is ever deleted.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.base import LOST, PREEMPTED
from dispatcher.outlets.tpu.gcloud import Queued, Vm


class Condition(enum.Enum):
    """What a state of the API means."""

    # It runs.
    UP = "up"
    # It will run by itself.
    COMING = "coming"
    # It has stopped for good, and stands in the way of a new one until it is deleted.
    DEAD = "dead"
    # It does not run, and its disk is kept; a person may start it again.
    STOPPED = "stopped"
    # It is about to be stopped or deleted.
    LEAVING = "leaving"
    # It cannot be told: hidden, or a word that this version does not know.
    UNKNOWN = "unknown"


_CONDITIONS: Final[Mapping[str, Condition]] = {
    "READY": Condition.UP,
    **dict.fromkeys(("CREATING", "STARTING", "RESTARTING", "REPAIRING", "REIMAGING", "UNHIDING"), Condition.COMING),
    **dict.fromkeys(("PREEMPTED", "TERMINATED", "FAILED"), Condition.DEAD),
    "STOPPED": Condition.STOPPED,
    **dict.fromkeys(("STOPPING", "DELETING"), Condition.LEAVING),
}
# Of queued resources: those that wait for capacity, and those that have come to nothing and stay until deleted.
_WAITING: Final = frozenset(("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"))
_FAILED: Final = frozenset(("FAILED", "SUSPENDED"))


class Action(enum.Enum):
    """What is to be done about a VM."""

    NOTHING = "nothing"
    CREATE = "create"
    # With a queued resource, because there is no capacity now.
    QUEUE = "queue"
    DELETE = "delete"
    # Take the queued resource back, with the VM that it may have brought.
    DELETE_QUEUED = "delete queued"


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a host at one moment. `vm` and `queued` None: there is surely none.

    `workspace` is the id of this one, `accelerator_type` what the VM is to be. `is_wanted`: attempts wait for the VM;
    `is_given_up`: none has for a long time. `may_create`: a dispatcher may create it and delete what it has created.
    `is_short`: Google has said that it has none free. `is_idle`: it has stood unused for longer than it may.
    """

    vm: Vm | None = None
    queued: Queued | None = None
    workspace: str = ""
    accelerator_type: str = ""
    is_wanted: bool = False
    may_create: bool = False
    is_given_up: bool = False
    is_short: bool = False
    is_idle: bool = False


def condition_of(state: str) -> Condition:
    """What this word of the API means; one that is not known is no reason to do anything."""
    return _CONDITIONS.get(state, Condition.UNKNOWN)


def is_up(vm: Vm | None) -> bool:
    """Whether its workers can be reached."""
    return vm is not None and condition_of(vm.state) is Condition.UP


def waits_in_queue(queued: Queued | None) -> bool:
    """Whether a request for capacity stands that may bring a VM at any time."""
    return queued is not None and queued.state in _WAITING


def action(seen: HostState) -> Action:
    """What a dispatcher does next."""
    if seen.vm is None:
        return _without_vm(seen)
    if not seen.vm.is_of(seen.workspace):
        return Action.NOTHING
    condition = condition_of(seen.vm.state)
    is_over = condition is Condition.DEAD and seen.may_create
    if is_over or (condition is Condition.UP and seen.is_idle):
        # A VM of a queued resource goes with it: alone it would leave the request behind.
        return Action.DELETE_QUEUED if seen.vm.queued_resource else Action.DELETE
    return Action.NOTHING


def _without_vm(seen: HostState) -> Action:
    if not seen.may_create:
        return Action.NOTHING
    if seen.queued is not None:
        brings_other = seen.queued.accelerator_type not in ("", seen.accelerator_type)
        if seen.queued.state in _FAILED or (seen.queued.state in _WAITING and brings_other):
            return Action.DELETE_QUEUED
        if seen.queued.state in _WAITING and not seen.is_wanted and seen.is_given_up:
            # Else it would bring a VM hours later, when it is not needed.
            return Action.DELETE_QUEUED
        # ACTIVE: its VM was deleted, and it brings no other one.
        return Action.DELETE_QUEUED if seen.queued.state == "ACTIVE" else Action.NOTHING
    if not seen.is_wanted:
        return Action.NOTHING
    return Action.QUEUE if seen.is_short else Action.CREATE


def lost_attempts(host: TpuHost, vm: Vm | None) -> tuple[str, str] | None:
    """The reason and the words for the end of attempts that ran on it; None: they may still run.

    `vm` None: there is surely none any more.
    """
    if vm is None:
        reason = PREEMPTED if host.spot or host.preemptible else LOST
        return reason, f"the TPU VM {host.name} does not exist any more"
    condition = condition_of(vm.state)
    if condition is Condition.DEAD:
        return (LOST if vm.state == "FAILED" else PREEMPTED), f"the TPU VM {host.name} is {vm.state}"
    if condition is Condition.STOPPED:
        return LOST, f"the TPU VM {host.name} is STOPPED"
    return None


def kind_text(host: TpuHost) -> str:
    """What is created, in a few words: `v4-32, spot, us-central2-b of lab`."""
    kind = "spot" if host.spot else "preemptible" if host.preemptible else "on demand"
    where = f"{host.zone} of {host.project}" if host.project else host.zone
    return f"{host.accelerator_type}, {kind}, {where}"
