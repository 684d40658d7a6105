"""Rows about configured hosts: reached or not, what is free there, and what this workspace has in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from dispatcher.base.messages import counted
from dispatcher.hosts.types import AnyHost, Hosts, PlainHost, TpuHost, VolcanoHost
from dispatcher.outlets.solver.plain import gpus_for
from dispatcher.outlets.solver.reports import (
    BatchReport,
    Gpus,
    HostReport,
    PlainReport,
    Queue,
    QueueReport,
    Unreachable,
    VmReport,
)
from dispatcher.outlets.solver.volcano import free_in_queue
from dispatcher.outlets.tpu.accelerator import accelerator_of
from dispatcher.run_state.states import IN_FLIGHT, Record


def outlet_rows(hosts: Hosts, reports: Mapping[str, HostReport], records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """One row per host in the order of preference. `error` says why it is not reachable.

    `free` has one entry for a plain host, and one for each queue or partition: its name and what is free in it.
    """
    in_flight = Counter(record.outlet for record in records.values() if record.state in IN_FLIGHT)
    return [_row(host, reports[host.name], in_flight[host.name]) for host in hosts.in_order()]


def free_text(row: Mapping[str, Any]) -> str:
    """What is free, in one line; of a host that was not reached, why."""
    if row["error"]:
        return str(row["error"])
    parts = [f"{one['queue']}: {one['free']}" if one["queue"] else one["free"] for one in row["free"]]
    return "; ".join(parts)


def limits_text(row: Mapping[str, Any]) -> str:
    """The configured limits, in one line."""
    parts = []
    if row["max_in_flight"] is not None:
        parts.append(f"{row['max_in_flight']} in flight")
    if row["submits_per_minute"] is not None:
        parts.append(f"{row['submits_per_minute']}/min")
    return ", ".join(parts)


def _row(host: AnyHost, report: HostReport, in_flight: int) -> dict[str, Any]:
    return {
        "outlet": host.name,
        "type": host.type,
        "cluster": host.cluster,
        "reachable": not isinstance(report, Unreachable),
        "free": _free(host, report),
        "in_flight": in_flight,
        "max_in_flight": host.max_in_flight,
        "submits_per_minute": host.submits_per_minute,
        "error": report.error if isinstance(report, Unreachable) else "",
    }


def _free(host: AnyHost, report: HostReport) -> list[dict[str, str]]:
    if isinstance(report, PlainReport) and isinstance(host, PlainHost):
        return [{"queue": "", "free": _free_here(host, report)}]
    if isinstance(report, BatchReport):
        return [{"queue": queue.name, "free": _free_in(queue)} for queue in report.queues.values()]
    if isinstance(report, QueueReport) and isinstance(host, VolcanoHost):
        return [{"queue": host.queue, "free": free_in_queue(report)}]
    if isinstance(report, VmReport) and isinstance(host, TpuHost):
        has = accelerator_of(host)
        return [{"queue": "", "free": f"{report.state or 'no VM'}, {has.number} {has.chip}"}]
    return []


def _free_here(host: PlainHost, report: PlainReport) -> str:
    gpus = gpus_for(host, "", report.gpus)
    free = [gpu for gpu in gpus if not gpu.busy]
    shown = f"{len(free)} of {counted(len(gpus), 'GPU')}" if gpus else counted(report.cpus, "CPU")
    return f"{shown}, {report.free_mib // 1024} GiB"


def _free_in(queue: Queue) -> str:
    if queue.closed:
        return queue.closed
    usable = [node for node in queue.nodes if not node.unusable]
    sums: dict[str, Gpus] = {}
    for node in usable:
        for name, gpus in node.gpus.items():
            known = sums.get(name, Gpus(0))
            used = gpus.total if node.is_taken else gpus.used
            sums[name] = Gpus(known.total + gpus.total, known.used + used)
    parts = [f"{one.total - one.used} of {one.total} {name or 'GPUs'}" for name, one in sorted(sums.items())]
    cpus = sum(0 if node.is_taken else node.free_cpus for node in usable)
    parts.append(f"{cpus} of {counted(sum(node.cpus for node in usable), 'CPU')}")
    return ", ".join(parts) + (f", {queue.pending} waiting" if queue.pending else "")
