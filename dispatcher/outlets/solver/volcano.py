"""The Queue of Volcano that a host uses: what it may have, how much of that is in use, and how large nodes are.

Volcano before 1.6 does not tell what a Queue has allocated; then the PodGroups that run in it are added up. What is
free on nodes is not asked: of a resource that is not in the Queue's `capability` it is not known how much is free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.errors import OutletError
from dispatcher.hosts.quantity import parse_quantity
from dispatcher.hosts.types import Hosts, VolcanoHost
from dispatcher.outlets.remote.operations import Failed, Operation, Ran, Run
from dispatcher.outlets.solver.answers import output
from dispatcher.outlets.solver.reports import QueueReport
from dispatcher.outlets.solver.request import Choice, HardwareRequest, UnsuitableHost, chips_text
from dispatcher.outlets.volcano import resources
from dispatcher.outlets.volcano.kubectl import Kubectl, Reason, first_problem

_QUEUES: Final = "queues.scheduling.volcano.sh"
_PODGROUPS: Final = "podgroups.scheduling.volcano.sh"
# A line for each: its queue, its phase, and RESOURCE=AMOUNT of what it has as a whole.
_PODGROUP_LINES: Final = (
    '{{range .items}}{{.spec.queue}}{{"\\t"}}{{with .status}}{{.phase}}{{end}}'
    '{{range $name, $amount := .spec.minResources}}{{"\\t"}}{{$name}}={{$amount}}{{end}}{{"\\n"}}{{end}}'
)
# A line for each: RESOURCE=AMOUNT of what pods can have of it.
_NODE_LINES: Final = (
    '{{range .items}}{{range $name, $amount := .status.allocatable}}{{$name}}={{$amount}}{{" "}}{{end}}{{"\\n"}}{{end}}'
)
# A PodGroup in one of these phases has nodes; `Unknown`: some of its Kubernetes pods do.
_PLACED: Final = frozenset({"Running", "Unknown"})
_OPEN: Final = frozenset({"", "Open", "Unknown"})
_NOTHING: Final = Decimal(0)
_GIB: Final = 2**30


def questions(host: VolcanoHost, timeout_s: float, root: Path) -> list[Operation]:
    """What to ask: about the Queue, about all PodGroups, and about the nodes that the Job may run on."""
    kubectl = Kubectl(host, root)
    asked = (
        ("get", _QUEUES, host.queue, "--output=json"),
        ("get", _PODGROUPS, "--all-namespaces", f"--output=go-template={_PODGROUP_LINES}"),
        nodes_question(host),
    )
    return [Run(words=kubectl.words(*words), timeout_s=timeout_s) for words in asked]


def nodes_question(host: VolcanoHost) -> tuple[str, ...]:
    """The words of kubectl that ask what the nodes have on which Jobs of the host may run."""
    selector = ",".join(f"{key}={value}" for key, value in host.node_selector.items())
    return "get", "nodes", f"--selector={selector}", f"--output=go-template={_NODE_LINES}"


def report(answers: Sequence[Any]) -> QueueReport:
    """What the answers tell; OutletError when the API server did not."""
    queue, podgroups, nodes = answers
    problem = first_problem(queue.exit_code, queue.err) if isinstance(queue, Ran) else None
    if problem is not None and problem.reason is Reason.NOT_FOUND:
        return QueueReport(closed="the cluster has no such Queue")
    if problem is not None and problem.reason is not Reason.DENIED:
        raise OutletError(problem.message)
    try:
        # Queues belong to the cluster: many who may make Jobs in their namespace may not read them.
        denied = QueueReport(allocated=problem.message) if problem is not None else None
        found = denied or _parsed(json.loads(output("kubectl", queue)), podgroups)
        return msgspec.structs.replace(found, nodes=read_nodes(nodes))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OutletError(f"kubectl get {_QUEUES} has printed what cannot be read: {error!r}") from None


def _parsed(queue: Mapping[str, Any], podgroups: Ran | Failed) -> QueueReport:
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    capability = _amounts((spec.get("capability") or {}).items())
    allocated: Mapping[str, Decimal] | str
    if "allocated" in status:
        allocated = _amounts((status["allocated"] or {}).items())
    else:
        allocated = _sum_of(queue["metadata"]["name"], podgroups) if capability else {}
    state = status.get("state") or ""
    return QueueReport(
        capability=capability,
        allocated=allocated,
        closed="" if state in _OPEN else f"it is {state}",
        pending=int(status.get("pending") or 0),
    )


def read_nodes(answer: Ran | Failed) -> tuple[Mapping[str, Decimal], ...]:
    """What each node has; none where that is not known: nodes belong to the cluster, and not all users may ask."""
    if isinstance(answer, Failed) or answer.exit_code != 0:
        return ()
    lines = (line.split() for line in answer.out.splitlines())
    return tuple(_amounts(part.rpartition("=")[::2] for part in line) for line in lines)


def _amounts(written: Iterable[tuple[str, Any]]) -> dict[str, Decimal]:
    return {name: parse_quantity(str(amount)) for name, amount in written}


def _sum_of(queue: str, podgroups: Ran | Failed) -> Mapping[str, Decimal] | str:
    """What the PodGroups that run in a queue have, or why that is not known."""
    if isinstance(podgroups, Failed):
        return podgroups.error
    problem = first_problem(podgroups.exit_code, podgroups.err)
    if problem is not None:
        return problem.message
    total: dict[str, Decimal] = {}
    for line in podgroups.out.splitlines():
        name, phase, *has = line.split("\t")
        if name == queue and phase in _PLACED:
            parts = (each.rpartition("=") for each in has)
            _add(total, _amounts((resource, amount) for resource, _, amount in parts))
    return total


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, _NOTHING) + amount


def judge(
    host: VolcanoHost, request: HardwareRequest, hosts: Hosts, found: QueueReport | None
) -> Choice | UnsuitableHost:
    """Whether the Queue can run the request, now or some day."""
    del hosts
    why = resources.refusal(host, request.for_outlet())
    if why:
        return UnsuitableHost(host=host.name, why=why)
    if found is None:
        return Choice(host=host.name, queue=host.queue, is_queued=True, why="as configured, not asked")
    needs = _needs(host, request)
    why = found.closed or _never_fits(host, request, needs, found) or _no_nodes(host, request, found.nodes)
    if why:
        return UnsuitableHost(host=host.name, why=f"queue {host.queue}: {why}")
    shortage = _shortage(host, request, needs, found)
    free = found.free().get(host.gpu_resource_key)
    decisive = _decisive(host, request)
    return Choice(
        host=host.name,
        queue=host.queue,
        is_queued=bool(shortage),
        free_chips=None if free is None else int(free),
        why=f"queue {host.queue}: {shortage or f'{_share(found, decisive, _word(host, request, decisive))} free'}",
    )


def give(host: VolcanoHost, request: HardwareRequest, hosts: Hosts, found: QueueReport) -> QueueReport:
    """The report as it will be when an attempt with this request has started, if it can start now."""
    del hosts
    needs = _needs(host, request)
    if isinstance(found.allocated, str) or _shortage(host, request, needs, found):
        return found
    allocated = dict(found.allocated)
    _add(allocated, needs)
    return msgspec.structs.replace(found, allocated=allocated)


def _needs(host: VolcanoHost, request: HardwareRequest) -> dict[str, Decimal]:
    """What all Kubernetes pods of the Job get together."""
    asked = request.for_outlet()
    pods = resources.shape_of(host, asked).nodes
    each = _amounts(resources.pod_resources(host, asked).items())
    return {name: amount * pods for name, amount in each.items()}


def free_in_queue(found: QueueReport) -> str:
    """What is free of everything that the Queue limits, in words."""
    if found.closed:
        return found.closed
    if isinstance(found.allocated, str):
        return f"not known: {found.allocated}"
    parts = [_share(found, name, name) for name in sorted(found.capability)] or ["no limits"]
    return ", ".join([*parts, *_waiting(found)])


def _never_fits(host: VolcanoHost, request: HardwareRequest, needs: Mapping[str, Decimal], found: QueueReport) -> str:
    """Why the Queue could not run it even if it were empty."""
    for name, amount in needs.items():
        most = found.capability.get(name)
        if most is not None and most < amount:
            word = _word(host, request, name)
            return f"its capability is {_text(word, most)}, {_text(word, amount)} needed"
    return ""


def _no_nodes(host: VolcanoHost, request: HardwareRequest, nodes: Sequence[Mapping[str, Decimal]]) -> str:
    """Why the nodes could not run all Kubernetes pods of the Job at the same time even if they were empty.

    Nothing is concluded where no node has such GPUs: a cluster may add nodes when a Job waits for them.
    """
    asked = request.for_outlet()
    each = _amounts(resources.pod_resources(host, asked).items())
    able = [node for node in nodes if host.gpu_resource_key not in each or node.get(host.gpu_resource_key)]
    if not each or not able:
        return ""
    for name, amount in each.items():
        most = max(node.get(name, _NOTHING) for node in able)
        if most < amount:
            word = _word(host, request, name)
            wrong = "; correct `chips` or `gpus_per_node`" if most < (resources.gpus_of_node(host) or 0) else ""
            cure = wrong if name == host.gpu_resource_key else ""
            return f"a node has {_text(word, most)}, {_text(word, amount)} needed by each Kubernetes pod{cure}"
    pods = resources.shape_of(host, asked).nodes
    room = sum(min(int(node.get(name, _NOTHING) // amount) for name, amount in each.items()) for node in able)
    if room < pods:
        return f"too few nodes: they have room for {room} of the {pods} Kubernetes pods, if nothing else ran"
    return ""


def _shortage(host: VolcanoHost, request: HardwareRequest, needs: Mapping[str, Decimal], found: QueueReport) -> str:
    """Why it may have to wait; empty when it can start now."""
    decisive = _decisive(host, request)
    if isinstance(found.allocated, str):
        return f"what is free is not known: {found.allocated}"
    if decisive not in found.capability:
        return f"what is free is not known, because its capability does not limit {decisive}"
    free = found.free()
    short = [name for name, amount in needs.items() if name in free and free[name] < amount]
    if not short:
        return ""
    shares = (f"{_share(found, name, _word(host, request, name))} free" for name in dict.fromkeys([decisive, *short]))
    return f"no room now ({', '.join([*shares, *_waiting(found)])})"


def _decisive(host: VolcanoHost, request: HardwareRequest) -> str:
    """The resource that the answer is about."""
    return host.gpu_resource_key if request.min_chips else resources.CPU


def _word(host: VolcanoHost, request: HardwareRequest, name: str) -> str:
    """What people call a resource; empty for GPUs of any kind."""
    return request.chip if name == host.gpu_resource_key else name


def _waiting(found: QueueReport) -> list[str]:
    return [f"{found.pending} waiting"] if found.pending else []


def _share(found: QueueReport, name: str, word: str) -> str:
    """`3 of 16 h100`."""
    free = found.free()[name]
    return f"{_number(free / _GIB if name == resources.MEMORY else free)} of {_text(word, found.capability[name])}"


def _text(word: str, amount: Decimal) -> str:
    """`16 h100`, `32 CPUs`, `64 GiB of memory`."""
    if word == resources.MEMORY:
        return f"{_number(amount / _GIB)} GiB of memory"
    if word == resources.CPU:
        return f"{_number(amount)} {'CPU' if amount == 1 else 'CPUs'}"
    return f"{_number(amount)} {word}" if word else chips_text(int(amount), word)


def _number(amount: Decimal) -> str:
    """With one digit after the point where it has a fraction."""
    return f"{amount:.0f}" if amount == amount.to_integral_value() else f"{amount:.1f}"
