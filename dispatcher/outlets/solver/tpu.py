"""A Cloud TPU VM: whether there is one, and whether it is READY. One attempt has the whole VM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.hosts.types import Hosts, TpuHost
from dispatcher.outlets.remote.operations import Operation, Run
from dispatcher.outlets.solver.reports import VmReport
from dispatcher.outlets.solver.request import Choice, HardwareRequest, UnsuitableHost
from dispatcher.outlets.tpu import gcloud
from dispatcher.outlets.tpu.accelerator import accelerator_of, refusal
from dispatcher.outlets.tpu.projects import with_project
from dispatcher.workspace import Layout

_READY: Final = "READY"


def questions(host: TpuHost, timeout_s: float, root: Path) -> list[Operation]:
    """What to ask: about the VM."""
    return [Run(words=gcloud.describe(with_project(host, Layout(root))), timeout_s=timeout_s)]


def report(answers: Sequence[Any]) -> VmReport:
    """What the answer tells; OutletError when Google did not."""
    (answer,) = answers
    vm = gcloud.read_vm(answer)
    if vm is None:
        return VmReport()
    return VmReport(
        state=vm.state,
        accelerator_type=vm.accelerator_type,
        workers=len(vm.workers),
        workspace=vm.labels.get(gcloud.WORKSPACE_LABEL, ""),
    )


def judge(host: TpuHost, request: HardwareRequest, hosts: Hosts, found: VmReport | None) -> Choice | UnsuitableHost:
    """Whether the VM can run the request, now, after another attempt, or when it has been created."""
    del hosts
    why = _never(host, request) or (_not_as_it_is(host, request, found) if found is not None else "")
    if why:
        return UnsuitableHost(host=host.name, why=why)
    has = accelerator_of(host)
    if found is None:
        return Choice(host=host.name, is_queued=True, why="as configured, not asked")
    if found.is_taken:
        return Choice(host=host.name, is_queued=True, free_chips=0, why="an attempt is running on the VM")
    if found.state == _READY:
        return Choice(host=host.name, free_chips=has.number, why=f"the VM is READY, with {has.number} {has.chip}")
    must_be_created = host.create != "auto"
    how = "it has to be created first" if must_be_created else "it is created when a job is to run there"
    why = f"there is no VM {host.name} in {host.zone}: {how}"
    return Choice(host=host.name, is_queued=True, must_be_created=must_be_created, why=why)


def give(host: TpuHost, request: HardwareRequest, hosts: Hosts, found: VmReport) -> VmReport:
    """The report as it will be when an attempt has started."""
    del host, request, hosts
    return msgspec.structs.replace(found, is_taken=True)


def _never(host: TpuHost, request: HardwareRequest) -> str:
    """Why the configured VM can never run it."""
    if not request.min_chips:
        return "it is a TPU VM, and no chips are asked for"
    return refusal(host, request.for_outlet())


def _not_as_it_is(host: TpuHost, request: HardwareRequest, found: VmReport) -> str:
    """Why the VM that there is cannot run it; empty also where there is none."""
    if found.state not in ("", _READY):
        return f"the VM is {found.state}"
    if found.accelerator_type not in ("", host.accelerator_type):
        return f"the VM is a {found.accelerator_type}, not the {host.accelerator_type} that is configured"
    if found.workers and request.nodes > found.workers:
        return f"too few nodes: the VM has {found.workers}, {request.nodes} needed"
    return ""
