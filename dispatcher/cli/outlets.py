"""`dispatcher outlets`: the configured hosts, asked now."""

from __future__ import annotations

from pathlib import Path

import click

from dispatcher.cli.common import SecondsRange, json_option, layout, open_workspace
from dispatcher.cli.hardware import NO_HOSTS, hosts_option
from dispatcher.cli.printing import note, print_json, print_rows
from dispatcher.cli.vms import create_command, created_vms, delete_command


@click.group(invoke_without_command=True)
@hosts_option
@click.option(
    "--timeout", "timeout_s", type=SecondsRange(1), default=30.0, metavar="SECONDS",
    help="How long each host has for its answer.  [default: 30]",
)  # fmt: skip
@json_option
@click.pass_context
def outlets(context: click.Context, hosts_file: Path | None, timeout_s: float, as_json: bool) -> None:
    """List the configured hosts: reachable or not, what is free, what is in flight.

    All are asked at the same time. In flight are the jobs of this workspace, whichever pod has submitted them. The
    commands below create and delete what costs money.
    """
    if context.invoked_subcommand is not None:
        return
    from dispatcher.config import load_config
    from dispatcher.outlets.solver.survey import ask_hosts
    from dispatcher.query.outlets import free_text, limits_text, outlet_rows

    config = load_config(layout(), hosts_file)
    workspace = open_workspace()
    hosts = config.hosts
    for line in hosts.unused:
        note(line)
    reports = ask_hosts(hosts.in_order(), config, timeout_s)
    workspace.store.refresh()
    rows = outlet_rows(hosts, reports, workspace.store.records)
    for line in created_vms(config):
        note(line)
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            "outlet": row["outlet"],
            "type": row["type"],
            "cluster": row["cluster"],
            "reachable": "yes" if row["reachable"] else "no",
            "free": free_text(row),
            "in flight": row["in_flight"],
            "limits": limits_text(row),
        }
        for row in rows
    ]
    print_rows(shown, "plain", none=NO_HOSTS.format(workspace.layout.config_file))


outlets.add_command(create_command)
outlets.add_command(delete_command)
