"""Which hosts can run a request, the best first, and why the others cannot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dispatcher.hosts.types import AnyHost, ConnectedHost, Hosts, PbsHost, PlainHost, SlurmHost
from dispatcher.outlets.solver import batch, plain
from dispatcher.outlets.solver.reports import HostReport, Unreachable
from dispatcher.outlets.solver.request import Choice, HardwareRequest, Refusal, Solution

_JUDGES: Final[Mapping[str, Callable[[Any, HardwareRequest, Hosts, Any], Choice | Refusal]]] = {
    PlainHost.type: plain.judge,
    SlurmHost.type: batch.judge,
    PbsHost.type: batch.judge,
}


def solve(request: HardwareRequest, hosts: Hosts, reports: Mapping[str, HostReport]) -> Solution:
    """Judge every host by its report; one without a report is judged by its configuration.

    Hosts that can start the request now come first, in the configured order; then those that would queue it, the one
    with the most free GPUs first. Within both, hosts of the preferred clusters come first.
    """
    choices: list[Choice] = []
    refusals: list[Refusal] = []
    for host in hosts.in_order():
        verdict = judge(host, request, hosts, reports.get(host.name))
        if isinstance(verdict, Choice):
            choices.append(verdict)
        else:
            refusals.append(verdict)

    def order(choice: Choice) -> tuple[bool, bool, int]:
        is_other = hosts.hosts[choice.host].cluster not in request.preferred_clusters
        return choice.is_queued, is_other, -(choice.free_chips or 0) if choice.is_queued else 0

    # Sorting keeps the configured order among equals.
    return Solution(choices=tuple(sorted(choices, key=order)), refusals=tuple(refusals))


def worth_asking(request: HardwareRequest, hosts: Hosts) -> list[ConnectedHost]:
    """The hosts whose reports matter: those that the configuration alone does not refuse."""
    connected = [host for host in hosts.in_order() if isinstance(host, ConnectedHost)]
    return [host for host in connected if isinstance(judge(host, request, hosts, None), Choice)]


def judge(host: AnyHost, request: HardwareRequest, hosts: Hosts, report: HostReport | None) -> Choice | Refusal:
    """Whether one host can run the request."""
    if host.type not in _JUDGES:
        return Refusal(host=host.name, why=f"hosts of type {host.type} cannot be used yet")
    if host.cluster in request.excluded_clusters:
        return Refusal(host=host.name, why=f"its cluster {host.cluster} is excluded")
    if isinstance(report, Unreachable):
        return Refusal(host=host.name, why=report.error, is_unreachable=True)
    return _JUDGES[host.type](host, request, hosts, report)
