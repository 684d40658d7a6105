"""Machines that cost money: `dispatcher outlets create|delete HOST`, what `submit` creates, and what exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from dispatcher.base.messages import counted
from dispatcher.cli.common import confirm, json_option, open_workspace
from dispatcher.cli.hardware import hosts_option
from dispatcher.cli.host_overrides import override_options
from dispatcher.cli.printing import note, print_json
from dispatcher.cli.time_limit import timeout_option
from dispatcher.errors import StateError, UsageError, nearest

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.hosts.overrides import HostOverrides
    from dispatcher.hosts.types import TpuHost
    from dispatcher.outlets.solver.reports import HostReport


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
    host = _tpu_host(config, name)
    if queue:
        from dispatcher.outlets.tpu import by_hand

        _confirm_creation(host, yes=yes)
        queued = by_hand.queue(host, _workspace(config))
        note(f"{name} was requested: queued resource {queued}; `dispatcher outlets` shows its state")
    else:
        create_vm(config, host, yes=yes)
    if as_json:
        print_json({"outlet": name, "state": "requested" if queue else "ready"})


@click.command("delete")
@click.argument("name", metavar="HOST")
@click.option("--force", is_flag=True, help="Also while jobs of this workspace run there.")
@yes_option
@hosts_option
@json_option
def delete_command(name: str, force: bool, yes: bool, hosts_file: Path | None, as_json: bool) -> None:
    """Delete the TPU VM of a configured host, and its queued resource, if they were created for this workspace."""
    from dispatcher.outlets.tpu import by_hand
    from dispatcher.run_state.states import IN_FLIGHT

    config = _config(hosts_file)
    host = _tpu_host(config, name)
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

    _confirm_creation(host, yes=yes)
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


def create_missing(config: Config, names: Sequence[str], *, yes: bool) -> None:
    """Where all of these hosts are TPU VMs and none is there, create the first, if a person agrees."""
    from dispatcher.hosts.types import TpuHost
    from dispatcher.outlets.tpu import by_hand

    hosts = [host for name in names if isinstance(host := config.hosts.hosts[name], TpuHost)]
    if not hosts or len(hosts) < len(names):
        return
    workspace = _workspace(config)
    found = by_hand.look_at_all(hosts, workspace)
    for each in found.values():
        if not isinstance(each, by_hand.Found):
            raise each
        if each.vm is not None or each.queued is not None:
            return
    create_vm(config, hosts[0], yes=yes)


def created_vms(config: Config, reports: Mapping[str, HostReport]) -> list[str]:
    """A line for each VM that was created for this workspace, and for each that was asked for; `reports` by host."""
    from dispatcher.hosts.types import TpuHost
    from dispatcher.outlets.solver.reports import VmReport
    from dispatcher.outlets.tpu.by_hand import Found, look_at_all

    vms = {name: report for name, report in reports.items() if isinstance(report, VmReport)}
    if not vms:
        return []
    workspace = _workspace(config)
    texts = {name: report.state for name, report in vms.items() if report.workspace == workspace}
    hosts = [config.hosts.hosts[name] for name, report in vms.items() if not report.state]
    found = look_at_all([host for host in hosts if isinstance(host, TpuHost)], workspace)
    texts |= {name: one.text(workspace) for name, one in found.items() if isinstance(one, Found) and one.queued}
    how = "created for this workspace, and may cost money"
    return [f"{name} ({text}): {how}; `dispatcher outlets delete {name}` deletes it" for name, text in texts.items()]


def _confirm_creation(host: TpuHost, *, yes: bool) -> None:
    from dispatcher.outlets.tpu.gcloud import name_problem
    from dispatcher.outlets.tpu.vm import kind_text

    problem = name_problem(host)
    if problem:
        raise UsageError(problem)
    confirm(f"Create {host.name} ({kind_text(host)})? It costs money.", yes=yes)


def _config(hosts_file: Path | None) -> Config:
    from dispatcher.config import load_config

    return load_config(open_workspace().layout, hosts_file)


def _workspace(config: Config) -> str:
    from dispatcher.outlets.batch.identity import workspace_id

    return workspace_id(config.layout)


def _tpu_host(config: Config, name: str) -> TpuHost:
    from dispatcher.hosts.types import TpuHost

    host = config.hosts.hosts.get(name)
    if host is None:
        raise UsageError(f"{name}: no such host is configured{nearest(name, config.hosts.hosts)}")
    if not isinstance(host, TpuHost):
        raise UsageError(f"{name} is a host of type {host.type}; only hosts of type tpu are created and deleted")
    return host
