"""Machines that cost money: `dispatcher outlets create|delete HOST`, what `submit` creates, and what exists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from dispatcher.base.messages import counted
from dispatcher.cli.common import confirm, json_option, layout, open_workspace
from dispatcher.cli.hardware import hosts_option
from dispatcher.cli.host_overrides import override_options
from dispatcher.cli.printing import note, print_json
from dispatcher.cli.time_limit import timeout_option
from dispatcher.errors import StateError, UsageError, nearest

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.hosts.overrides import HostOverrides
    from dispatcher.hosts.types import TpuHost


def yes_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--yes`: nothing is asked."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask, also where it costs money.")(function)


@click.command("create")
@click.argument("name", metavar="HOST")
@click.option("--queue", is_flag=True, help="Ask with a queued resource, which waits until Google has one free.")
@yes_option
@hosts_option
@override_options()
@timeout_option
@json_option
def create_command(
    name: str, queue: bool, yes: bool, hosts_file: Path | None, host_overrides: HostOverrides, as_json: bool
) -> None:
    """Create the TPU VM of a configured host, and wait until it is READY. It costs money until it is deleted."""
    config = _config(hosts_file)
    _tpu_host(config, name)
    config = msgspec.structs.replace(config, hosts=host_overrides.over(config.hosts, [name]))
    host = _settled(config, name)
    if queue:
        from dispatcher.outlets.tpu import by_hand
        from dispatcher.outlets.tpu.gcloud import QUEUED_FOR_S
        from dispatcher.outlets.tpu.projects import remember_project

        _confirm_creation(host, yes=yes)
        remember_project(config.layout, name, host.project or "")
        queued = by_hand.queue(host, _workspace(config))
        note(
            f"{name} was requested: queued resource {queued}, which expires in {QUEUED_FOR_S // 3600} h; "
            "`dispatcher outlets` shows its state"
        )
    else:
        create_vm(config, host, yes=yes)
    if as_json:
        print_json({"outlet": name, "state": "requested" if queue else "ready"})


@click.command("delete")
@click.argument("name", metavar="HOST")
@click.option("--zone", metavar="ZONE", help="Where, for a VM that no configured host is any more.")
@click.option("--project", metavar="PROJECT", help="Of Google Cloud, where two have a VM of this name.")
@click.option("--force", is_flag=True, help="Also while jobs of this workspace run there.")
@yes_option
@hosts_option
@json_option
def delete_command(
    name: str,
    zone: str | None,
    project: str | None,
    force: bool,
    yes: bool,
    hosts_file: Path | None,
    as_json: bool,
) -> None:
    """Delete a TPU VM and its queued resource, if they were created for this workspace.

    HOST is a configured host, or what it was called when its VM was created. `dispatcher outlets` lists all of them.
    """
    from dispatcher.outlets.tpu import by_hand
    from dispatcher.run_state.states import IN_FLIGHT

    config = _config(hosts_file)
    for line in _other_projects(config, name):
        note(line)
    host = _to_be_deleted(config, name, zone, project)
    workspace = open_workspace()
    records = workspace.records()
    running = [job for job, record in records.items() if record.outlet == name and record.state in IN_FLIGHT]
    if running and not force:
        raise StateError(f"{counted(len(running), 'job')} run on {name}: {', '.join(running[:3])}; or use --force")
    found = by_hand.look(host, _workspace(config))
    if found.vm is None and found.queued is None:
        note(f"there is no TPU VM {name}")
    else:
        confirm(f"Delete {name} ({found.text(_workspace(config))})?", yes=yes)
        by_hand.delete(host, _workspace(config), note)
        note(f"{name} was deleted")
    if as_json:
        print_json({"outlet": name, "state": "deleted"})


def create_vm(config: Config, host: TpuHost, *, yes: bool) -> None:
    """Create the VM of a host, if a person agrees; says how far it is."""
    from dispatcher.outlets.tpu import by_hand
    from dispatcher.outlets.tpu.gcloud import Failure, GcloudError
    from dispatcher.outlets.tpu.projects import remember_project

    _confirm_creation(host, yes=yes)
    remember_project(config.layout, host.name, host.project or "")
    try:
        vm = by_hand.create(host, _workspace(config), note)
    except GcloudError as error:
        if error.failure is Failure.NO_CAPACITY:
            hint = f"`dispatcher outlets create {host.name} --queue` waits for it"
            raise StateError(f"{host.name}: {error}; {hint}") from error
        raise
    except KeyboardInterrupt:
        note(f"{host.name} may still be created and cost money: `dispatcher outlets delete {host.name}` deletes it")
        raise
    workers = counted(len(vm.workers), "worker")
    note(f"{host.name} is READY ({workers}) and costs money: `dispatcher outlets delete {host.name}` deletes it")
    if vm.is_of(_workspace(config)):
        note(by_hand.timer_text(host))


def create_missing(config: Config, names: Sequence[str], *, yes: bool) -> None:
    """Where all of these hosts are TPU VMs and none is there, create the first, if a person agrees."""
    from dispatcher.hosts.types import TpuHost
    from dispatcher.outlets.tpu import by_hand

    if not names or not all(isinstance(config.hosts.hosts[name], TpuHost) for name in names):
        return
    hosts = [_settled(config, name) for name in names]
    workspace = _workspace(config)
    found = by_hand.look_at_all(hosts, workspace)
    for each in found.values():
        if not isinstance(each, by_hand.HostResources):
            raise each
        if each.vm is not None or each.queued is not None:
            return
    create_vm(config, hosts[0], yes=yes)


def created_vms(config: Config) -> list[str]:
    """A line for each VM that this workspace has created, and for each that it has asked for, in whatever zone.

    Before them, one for each host whose project is not gcloud's own although it names none.
    """
    from dispatcher.outlets.tpu.by_hand import all_created

    hosts = _tpu_hosts(config)
    found = all_created(hosts, config.layout)
    strays = found.strays(hosts)
    lines = _other_projects(config)
    for one in found.vms:
        where, how = "", f"dispatcher outlets delete {one.name}"
        if one in strays:
            where, how = ", but no configured host leads to it", one.deletion
        lines.append(f"{one.name} ({one.text}): created for this workspace, {one.cost}{where}; `{how}` deletes it")
    return [*lines, *found.unlisted]


def _confirm_creation(host: TpuHost, *, yes: bool) -> None:
    from dispatcher.outlets.tpu.vm import kind_text

    confirm(f"Create {host.name} ({kind_text(host)})? It costs money.", yes=yes)


def _config(hosts_file: Path | None) -> Config:
    from dispatcher.config import load_config

    return load_config(layout(), hosts_file)


def _workspace(config: Config) -> str:
    from dispatcher.outlets.batch.identity import workspace_id

    return workspace_id(config.layout)


def _to_be_deleted(config: Config, name: str, zone: str | None, project: str | None) -> TpuHost:
    """The configured host, or the VM that was created under this name elsewhere."""
    from dispatcher.hosts.types import TpuHost
    from dispatcher.outlets.tpu import by_hand

    hosts = _tpu_hosts(config)
    host = _tpu_host(config, name) if name in config.hosts.hosts else None
    if host is not None and zone in (None, host.zone) and project in (None, host.project):
        found = by_hand.look(host, _workspace(config))
        if found.vm is not None or found.queued is not None:
            return host
    listed = by_hand.all_created(hosts, config.layout)
    meant = [
        one for one in listed.vms if one.name == name and zone in (None, one.zone) and project in (None, one.project)
    ]
    if len(meant) > 1:
        places = " and ".join(f"--zone {one.zone} --project {one.project}" for one in meant)
        raise UsageError(f"{name}: {len(meant)} VMs have this name; choose one with {places}")
    if not meant and listed.unlisted:
        raise StateError(f"{name}: {'; '.join(listed.unlisted)}")
    if not meant and host is None:
        known = nearest(name, [*(one.name for one in listed.vms), *config.hosts.hosts])
        raise UsageError(f"{name}: no configured host, and no VM that this workspace has created, has this name{known}")
    if not meant:
        assert host is not None
        return host
    (one,) = meant
    return TpuHost(
        name=name, cluster=name, zone=one.zone, project=one.project, accelerator_type=one.accelerator_type or "unknown"
    )


def _tpu_hosts(config: Config) -> list[TpuHost]:
    from dispatcher.hosts.types import TpuHost
    from dispatcher.outlets.tpu.projects import with_project

    return [with_project(host, config.layout) for host in config.hosts.in_order() if isinstance(host, TpuHost)]


def _other_projects(config: Config, name: str | None = None) -> list[str]:
    """A line for each configured host, or for this one, that is in another project than gcloud's own."""
    from dispatcher.hosts.types import TpuHost
    from dispatcher.outlets.tpu.projects import other_projects

    hosts = [host for host in config.hosts.in_order() if isinstance(host, TpuHost) and name in (None, host.name)]
    return other_projects(hosts, config.layout)


def _settled(config: Config, name: str) -> TpuHost:
    """The host with the project in which its VM is created; says so where that is not gcloud's own."""
    from dispatcher.outlets.tpu.gcloud import host_problem
    from dispatcher.outlets.tpu.projects import settled

    host = _tpu_host(config, name)
    problem = host_problem(host)
    if problem:
        raise UsageError(problem)
    for line in _other_projects(config, name):
        note(line)
    return settled(host, config.layout)


def _tpu_host(config: Config, name: str) -> TpuHost:
    from dispatcher.hosts.types import TpuHost
    from dispatcher.outlets.tpu.projects import with_project

    host = config.hosts.hosts.get(name)
    if host is None:
        raise UsageError(f"{name}: no such host is configured{nearest(name, config.hosts.hosts)}")
    if not isinstance(host, TpuHost):
        raise UsageError(f"{name} is a host of type {host.type}; only hosts of type tpu are created and deleted")
    return with_project(host, config.layout)
