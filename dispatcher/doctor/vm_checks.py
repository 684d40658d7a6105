"""The checks of TPU VMs: whether gcloud can be asked, what exists and costs money, and what could not be created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dispatcher.base.messages import counted
from dispatcher.config import Config
from dispatcher.doctor.findings import OK, WARNING, WRONG, Finding, Findings
from dispatcher.errors import OutletError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.outlets.tpu import projects
from dispatcher.outlets.tpu.by_hand import HostResources, all_created, look_at_all
from dispatcher.outlets.tpu.gcloud import host_problem
from dispatcher.outlets.tpu.telling import other_size, without_end
from dispatcher.outlets.tpu.vm import is_up


def look(config: Config, hosts: Sequence[TpuHost]) -> Mapping[str, HostResources | OutletError]:
    """What there is of each; StorageError when the workspace has no id."""
    return look_at_all(hosts, workspace_id(config.layout)) if hosts else {}


def vms(config: Config, hosts: Sequence[TpuHost], found: Mapping[str, HostResources | OutletError]) -> Findings:
    """What each of these hosts is at Google."""
    for host in hosts:
        name = f"host {host.name}"
        problem = host_problem(host)
        if problem:
            yield Finding(name, WRONG, problem)
        if host.version is None:
            yield Finding(name, WARNING, "it has no `version`, so its VM cannot be created")
        if warning := without_end(host):
            yield Finding(name, WARNING, warning)
        one = found[host.name]
        if isinstance(one, OutletError):
            yield Finding(name, WRONG, str(one), "`gcloud auth login`, and `gcloud` on PATH of this machine")
        else:
            yield _unmanaged(name, host, one, workspace_id(config.layout))
            if one.vm is not None and (problem := other_size(host, one.vm)):
                yield Finding(name, WRONG, problem)


def other_projects(config: Config, hosts: Sequence[TpuHost]) -> Findings:
    """Hosts whose project is not gcloud's own although they name none."""
    for line in projects.other_projects(hosts, config.layout):
        yield Finding("TPU VMs", WARNING, line)


def created(config: Config, hosts: Sequence[TpuHost]) -> Findings:
    """What this workspace has created and no configured host is: it costs money, and nothing else shows it."""
    found = all_created(hosts, config.layout)
    for one in found.strays(hosts):
        text = f"{one.name} ({one.text}): created for this workspace, {one.cost}, but no configured host leads to it"
        yield Finding("TPU VMs", WARNING, text, f"`{one.deletion}` deletes it")
    for line in found.unlisted:
        cure = f"log in with gcloud, or remove the lines of the project from {config.layout.tpu_projects}"
        yield Finding("TPU VMs", WARNING, line, cure)


def is_reachable(found: HostResources | OutletError) -> bool:
    """Whether its workers can be asked."""
    return isinstance(found, HostResources) and is_up(found.vm)


def _unmanaged(name: str, host: TpuHost, found: HostResources, workspace: str) -> Finding:
    text = found.text(workspace)
    if found.vm is not None:
        text += f", {counted(len(found.vm.workers), 'worker')}"
    if found.costs_of(workspace):
        return Finding(name, OK, f"{text}: it may cost money; `dispatcher outlets delete {host.name}` deletes it")
    return Finding(name, OK, text)
