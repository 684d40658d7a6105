"""Which hosts can run a request, the best first, and why the others cannot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from dispatcher.hosts.types import AnyHost, Hosts, PbsHost, PlainHost, SlurmHost, TpuHost, VolcanoHost
from dispatcher.outlets.solver import batch, plain, tpu, volcano
from dispatcher.outlets.solver.reports import HostReport, Unreachable
from dispatcher.outlets.solver.request import Choice, HardwareRequest, Solution, UnsuitableHost


class _Rules(NamedTuple):
    """What decides about a host of a kind, by its configuration and its report."""

    judge: Callable[[Any, HardwareRequest, Hosts, Any], Choice | UnsuitableHost]
    give: Callable[[Any, HardwareRequest, Hosts, Any], HostReport]


_RULES: Final[Mapping[str, _Rules]] = {
    PlainHost.type: _Rules(plain.judge, plain.give),
    SlurmHost.type: _Rules(batch.judge, batch.give),
    PbsHost.type: _Rules(batch.judge, batch.give),
    TpuHost.type: _Rules(tpu.judge, tpu.give),
    VolcanoHost.type: _Rules(volcano.judge, volcano.give),
}


def solve(request: HardwareRequest, hosts: Hosts, reports: Mapping[str, HostReport]) -> Solution:
    """Judge every host by its report; one without a report is judged by its configuration.

    Hosts that can start the request now come first, in the configured order; then those that would queue it, the one
    with the most free GPUs first; then machines that do not exist yet. Within each, hosts of the preferred clusters
    come first.
    """
    choices: list[Choice] = []
    refusals: list[UnsuitableHost] = []
    for host in hosts.in_order():
        verdict = judge(host, request, hosts, reports.get(host.name))
        if isinstance(verdict, Choice):
            choices.append(verdict)
        else:
            refusals.append(verdict)

    def order(choice: Choice) -> tuple[bool, bool, bool, int]:
        is_other = hosts.hosts[choice.host].cluster not in request.preferred_clusters
        free = choice.free_chips or 0
        return choice.is_queued, choice.must_be_created, is_other, -free if choice.is_queued else 0

    # Sorting keeps the configured order among equals.
    return Solution(choices=tuple(sorted(choices, key=order)), refusals=tuple(refusals))


def worth_asking(request: HardwareRequest, hosts: Hosts) -> list[AnyHost]:
    """The hosts whose reports matter: those that the configuration alone does not refuse."""
    return [host for host in hosts.in_order() if isinstance(judge(host, request, hosts, None), Choice)]


def judge(host: AnyHost, request: HardwareRequest, hosts: Hosts, report: HostReport | None) -> Choice | UnsuitableHost:
    """Whether one host can run the request."""
    if host.cluster in request.excluded_clusters:
        return UnsuitableHost(host=host.name, why=f"its cluster {host.cluster} is excluded")
    if isinstance(report, Unreachable):
        return UnsuitableHost(host=host.name, why=report.error, is_unreachable=True)
    return _RULES[host.type].judge(host, request, hosts, report)


def give(host: AnyHost, request: HardwareRequest, hosts: Hosts, report: HostReport) -> HostReport:
    """The report as it will be when an attempt with this request has started, if it can start now."""
    return report if isinstance(report, Unreachable) else _RULES[host.type].give(host, request, hosts, report)
