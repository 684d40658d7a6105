"""`dispatcher solve`: which host can run a request for hardware, and why the others cannot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dispatcher.cli.common import SecondsRange, json_option, layout
from dispatcher.cli.hardware import NO_HOSTS, HardwareOptions, hardware_options, hosts_option
from dispatcher.cli.printing import note, print_json, print_rows
from dispatcher.errors import UsageError

if TYPE_CHECKING:
    from dispatcher.hosts.types import Hosts
    from dispatcher.outlets.solver.request import Choice, HardwareRequest, Solution, UnsuitableHost


@click.command()
@hardware_options
@hosts_option
@click.option("--explain", is_flag=True, help="Show every host: chosen, or why not.")
@click.option(
    "--timeout", "timeout_s", type=SecondsRange(1), default=30.0, metavar="SECONDS",
    help="How long each host has for its answer.  [default: 30]",
)  # fmt: skip
@json_option
def solve(hardware: HardwareOptions, hosts_file: Path | None, explain: bool, timeout_s: float, as_json: bool) -> int:
    """Find a host for a job: `dispatcher solve --chip h100 -n 4 --explain`.

    Asks all configured hosts at the same time what is free. Those that can start the job now come first, in the order
    of `priority`; else the scheduler with the most free GPUs queues it. The exit status is 1 when no host can run it.
    """
    from dispatcher.config import load_config
    from dispatcher.outlets.base import Request
    from dispatcher.outlets.solver.solve import solve as find
    from dispatcher.outlets.solver.solve import worth_asking
    from dispatcher.outlets.solver.survey import ask_hosts

    config = load_config(layout(), hosts_file)
    hosts = config.hosts
    if not hosts.hosts:
        raise UsageError(NO_HOSTS.format(config.layout.config_file))
    hardware.check_clusters(hosts)
    for line in hosts.unused:
        note(line)
    request = hardware.over(Request())
    solution = find(request, hosts, ask_hosts(worth_asking(request, hosts), config, timeout_s))
    _print(request, hosts, solution, explain=explain, as_json=as_json)
    return int(solution.chosen is None)


def _print(request: HardwareRequest, hosts: Hosts, solution: Solution, *, explain: bool, as_json: bool) -> None:
    if as_json:
        print_json({"request": request, "choices": solution.choices, "refusals": solution.refusals})
        return
    chosen = solution.chosen
    if chosen is None:
        click.echo(f"no host can run it ({_text(request)})")
    else:
        where = f" {chosen.queue}" if chosen.queue else ""
        click.echo(f"{chosen.host}{where}{' (queued)' if chosen.is_queued else ''}: {chosen.why}")
    if explain or chosen is None:
        click.echo()
        choices = [_row(hosts, choice, _verdict(choice, chosen)) for choice in solution.choices]
        refused = [_row(hosts, refusal, _refused(refusal)) for refusal in solution.refusals]
        print_rows([*choices, *refused], "plain")


def _text(request: HardwareRequest) -> str:
    parts = [request.chips_text if request.min_chips else "CPUs only"]
    if request.cpus is not None:
        parts.append(f"{request.cpus} CPUs")
    if request.memory_mib is not None:
        parts.append(f"{request.memory_mib} MiB of memory")
    if request.nodes > 1:
        parts.append(f"{request.nodes} nodes")
    return ", ".join(parts)


def _verdict(choice: Choice, chosen: Choice | None) -> str:
    if choice is chosen:
        return "chosen"
    return "would queue it" if choice.is_queued else "possible"


def _refused(refusal: UnsuitableHost) -> str:
    return "unreachable" if refusal.is_unreachable else "no"


def _row(hosts: Hosts, verdict: Choice | UnsuitableHost, word: str) -> dict[str, Any]:
    host = hosts.hosts[verdict.host]
    return {"host": host.name, "type": host.type, "cluster": host.cluster, "verdict": word, "why": verdict.why}
