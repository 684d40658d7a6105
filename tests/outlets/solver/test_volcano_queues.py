"""Queues of Volcano: what the API server tells of them, and what fits into them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dispatcher.hosts.types import Hosts, VolcanoHost
from dispatcher.outlets.remote.operations import Failed, Ran, Run
from dispatcher.outlets.solver import volcano
from dispatcher.outlets.solver.query import questions, read_report
from dispatcher.outlets.solver.reports import QueueReport, Unreachable
from dispatcher.outlets.solver.request import Choice, HardwareRequest

GPU = "nvidia.com/gpu"
GI = 2**30
NO_GROUPS = Ran(exit_code=0)
# As the template of the third question prints them.
NODES = Ran(exit_code=0, out=f"cpu=16 memory=64Gi {GPU}=8 pods=110 \n" * 2 + "cpu=8 memory=16Gi \n")
# As the template of the second question prints them.
GROUPS = Ran(
    exit_code=0,
    out=f"gpu\tRunning\tcpu=4\tmemory=8Gi\t{GPU}=4\n"
    f"gpu\tUnknown\tcpu=500m\t{GPU}=1\n"
    f"gpu\tInqueue\tcpu=4\t{GPU}=4\n"
    f"gpu\t\n"
    f"default\tRunning\t{GPU}=2\n",
)
FORBIDDEN = Ran(
    exit_code=1,
    err='Error from server (Forbidden): podgroups.scheduling.volcano.sh is forbidden: User "ann" cannot list resource '
    '"podgroups" in API group "scheduling.volcano.sh" at the cluster scope\n',
)


def host(**keys: Any) -> VolcanoHost:
    given = {"chips": {"h100": 8}, "queue": "gpu", **keys}
    return VolcanoHost(name="k", cluster="k", image="i", pvc_name="p", pvc_mount_path="/p", **given)


def queue(spec: Mapping[str, Any], **status: Any) -> Ran:
    described = {"kind": "Queue", "metadata": {"name": "gpu"}, "spec": spec, "status": {"state": "Open", **status}}
    return Ran(exit_code=0, out=json.dumps(described))


def told(answer: Ran | Failed, podgroups: Ran | Failed = NO_GROUPS, nodes: Ran | Failed = NODES) -> QueueReport:
    report = read_report(host(), [answer, podgroups, nodes])
    assert isinstance(report, QueueReport), report
    return report


def test_the_questions() -> None:
    chosen = host(kubeconfig="k.yaml", context="lab", queue="a;b", node_selector={"gpu": "h100", "zone": "b"})
    asked = questions(chosen, 30, Path("/w"))
    words = [operation.words for operation in asked if isinstance(operation, Run)]
    assert all("--kubeconfig=/w/k.yaml" in each and "--context=lab" in each for each in words)
    assert words[0][-4:] == ["get", "queues.scheduling.volcano.sh", "a;b", "--output=json"]
    assert "a;b" not in words[1][-1], "the template has no value of the configuration"
    assert words[2][-4:-1] == ["get", "nodes", "--selector=gpu=h100,zone=b"]


def test_what_a_queue_has_and_what_is_in_use() -> None:
    capability = {"cpu": 64, "memory": "64Gi", GPU: "16"}
    report = told(queue({"capability": capability}, allocated={"cpu": "12500m", GPU: "5"}, pending=2))
    assert report.capability == {"cpu": 64, "memory": 64 * GI, GPU: 16} and report.pending == 2
    assert report.free() == {"cpu": Decimal("51.5"), "memory": 64 * GI, GPU: 11} and report.closed == ""


def test_before_volcano_tells_it_the_podgroups_that_run_are_added_up() -> None:
    report = told(queue({"capability": {GPU: 16, "cpu": 4}}), GROUPS)
    assert report.allocated == {"cpu": Decimal("4.5"), "memory": 8 * GI, GPU: 5}
    assert report.free() == {GPU: 11, "cpu": 0}, "what was lowered since is no negative amount"


@pytest.mark.parametrize(
    ("podgroups", "why"),
    [(FORBIDDEN, FORBIDDEN.err.strip()), (Failed(error="kubectl: no such file"), "kubectl: no such file")],
)
def test_what_cannot_be_added_up_is_not_known(podgroups: Ran | Failed, why: str) -> None:
    report = told(queue({"capability": {GPU: 16}}), podgroups)
    assert report.allocated == why and report.free() == {}
    assert told(queue({}), podgroups).allocated == {}, "nobody asks what is in use of nothing"
    assert told(queue({"capability": {GPU: 16}}, allocated={}), podgroups).free() == {GPU: 16}


@pytest.mark.parametrize("state", ["Closed", "Closing"])
def test_closed_queues(state: str) -> None:
    assert told(queue({}, state=state)).closed == f"it is {state}"
    assert told(queue({}, state="Unknown")).closed == ""


def test_a_queue_that_the_cluster_does_not_have() -> None:
    err = 'Error from server (NotFound): queues.scheduling.volcano.sh "gpu" not found\n'
    assert told(Ran(exit_code=1, err=err)).closed == "the cluster has no such Queue"


def test_who_may_not_read_queues_can_use_them() -> None:
    err = 'Error from server (Forbidden): queues.scheduling.volcano.sh "gpu" is forbidden: User "ann" cannot get'
    found = told(Ran(exit_code=1, err=f"{err}\n"))
    chosen = volcano.judge(host(), ask(4), Hosts(), found)
    assert isinstance(chosen, Choice) and chosen.is_queued and chosen.free_chips is None
    assert chosen.why == f"queue gpu: what is free is not known: {err}"
    assert volcano.free_in_queue(found) == f"not known: {err}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Ran(exit_code=1, err="Unable to connect to the server: dial tcp: no route to host\n"), "no route to host"),
        (Ran(exit_code=None), "kubectl gave no answer in time"),
        (Failed(error="kubectl is not on PATH"), "kubectl is not on PATH"),
        (Ran(exit_code=0, out="no JSON"), "has printed what cannot be read"),
        (queue({"capability": {"cpu": "many"}}), "expected an amount such as 4, 500m or 64Gi, not 'many'"),
    ],
)
def test_what_is_no_answer(answer: Ran | Failed, why: str) -> None:
    report = read_report(host(), [answer, NO_GROUPS, NODES])
    assert isinstance(report, Unreachable) and why in report.error


def ask(n: int = 1, chip: str = "h100", **fields: Any) -> HardwareRequest:
    return HardwareRequest(chip=chip, min_chips=n, **fields)


def report_of(capability: Mapping[str, float] | None = None, used: float | str = 0, **fields: Any) -> QueueReport:
    amounts = {name: Decimal(str(amount)) for name, amount in (capability or {}).items()}
    return QueueReport(capability=amounts, allocated=used if isinstance(used, str) else {GPU: Decimal(used)}, **fields)


def verdict(request: HardwareRequest, found: QueueReport | None, **keys: Any) -> str:
    answer = volcano.judge(host(**keys), request, Hosts(), found)
    if not isinstance(answer, Choice):
        return answer.why
    assert answer.queue == "gpu"
    return f"{'waits' if answer.is_queued else 'starts'}: {answer.why}"


@pytest.mark.parametrize(
    ("request_", "report", "keys", "expected"),
    [
        (ask(4), None, {}, "waits: as configured, not asked"),
        (ask(4), report_of({GPU: 16}, 5), {}, "starts: queue gpu: 11 of 16 h100 free"),
        (ask(1, ""), report_of({GPU: 1}), {}, "starts: queue gpu: 1 of 1 GPU free"),
        (ask(11), report_of({GPU: 16}, 5), {}, "waits: queue gpu: no room now (11 of 16 h100 free)"),
        (ask(10), report_of({GPU: 16}, 6), {}, "starts: queue gpu: 10 of 16 h100 free"),
        (
            ask(8),
            report_of({GPU: 16}, 9, pending=3),
            {},
            "waits: queue gpu: no room now (7 of 16 h100 free, 3 waiting)",
        ),
        (ask(17), report_of({GPU: 16}), {}, "queue gpu: its capability is 16 h100, 18 h100 needed"),
        (ask(1), report_of({GPU: 0}), {}, "queue gpu: its capability is 0 h100, 1 h100 needed"),
        (ask(1, "a100"), report_of({GPU: 16}), {}, "k has no a100, but h100"),
        (ask(1), report_of({GPU: 16}, closed="it is Closed"), {}, "queue gpu: it is Closed"),
        (
            ask(1),
            report_of({}),
            {},
            f"waits: queue gpu: what is free is not known, because its capability does not limit {GPU}",
        ),
        (ask(1), report_of({GPU: 16}, "may not"), {}, "waits: queue gpu: what is free is not known: may not"),
        (
            ask(4),
            report_of({GPU: 16, "memory": 96 * GI}),
            {"memory": "64Gi"},
            "starts: queue gpu: 16 of 16 h100 free",
        ),
        (
            ask(16),
            report_of({GPU: 16, "memory": 96 * GI}),
            {"memory": "64Gi"},
            "queue gpu: its capability is 96 GiB of memory, 128 GiB of memory needed",
        ),
        (ask(1, cpus=9), report_of({GPU: 16, "cpu": 8}), {}, "queue gpu: its capability is 8 CPUs, 9 CPUs needed"),
        (ask(0), report_of({GPU: 16, "cpu": 8}, 16), {"cpu_cpu": "500m"}, "starts: queue gpu: 8 of 8 CPUs free"),
        (ask(0, cpus=4, nodes=2), report_of({"cpu": 8}), {}, "starts: queue gpu: 8 of 8 CPUs free"),
        (ask(0, cpus=5, nodes=2), report_of({"cpu": 8}), {}, "queue gpu: its capability is 8 CPUs, 10 CPUs needed"),
        (ask(1), report_of({"amd.com/gpu": 4}), {"gpu_resource_key": "amd.com/gpu"}, "starts: queue gpu: 4 of 4 h100"),
    ],
)
def test_what_fits(
    request_: HardwareRequest, report: QueueReport | None, keys: Mapping[str, Any], expected: str
) -> None:
    assert verdict(request_, report, **keys).startswith(expected)


@pytest.mark.parametrize(
    ("request_", "keys", "expected"),
    [
        (ask(16), {}, "starts: queue gpu: 64 of 64 h100 free"),
        (ask(16), {"chips": {"h100": 16}}, "a node has 8 h100, 16 h100 needed by each Kubernetes pod; correct `chips`"),
        (ask(9, ""), {"chips": {}, "gpus_per_node": 9}, "9 GPUs needed by each Kubernetes pod; correct `chips` or"),
        (ask(9, ""), {"chips": {}}, "queue gpu: a node has 8 GPUs, 9 GPUs needed by each Kubernetes pod"),
        (ask(24), {}, "queue gpu: too few nodes: they have room for 2 of the 3 Kubernetes pods, if nothing else ran"),
        (ask(20), {"gpus_per_node": 4}, "queue gpu: too few nodes: they have room for 4 of the 5 Kubernetes pods"),
        (ask(1, cpus=17), {}, "queue gpu: a node has 16 CPUs, 17 CPUs needed by each Kubernetes pod"),
        (ask(1), {"memory": "65Gi"}, "queue gpu: a node has 64 GiB of memory, 65 GiB of memory needed by each"),
        (ask(0, cpus=8, nodes=5), {}, "starts"),
        (ask(0, cpus=8, nodes=6), {}, "queue gpu: too few nodes: they have room for 5 of the 6 Kubernetes pods"),
        (ask(0), {}, "starts"),
        (ask(1), {"gpu_resource_key": "amd.com/gpu"}, "waits"),
    ],
)
def test_what_no_node_could_ever_run(request_: HardwareRequest, keys: Mapping[str, Any], expected: str) -> None:
    """`chips` are those of one node. Where no node has such GPUs the cluster may still add some."""
    found = told(queue({"capability": {GPU: 64, "cpu": 99}}, allocated={}))
    assert expected in verdict(request_, found, **keys)
    denied = told(queue({"capability": {GPU: 64, "cpu": 99}}, allocated={}), nodes=FORBIDDEN)
    assert verdict(request_, denied, **keys).startswith(("starts", "waits")), "of nodes nothing is known"


def test_what_is_short_besides_the_gpus_is_named() -> None:
    report = QueueReport(
        capability={GPU: Decimal(16), "memory": Decimal(96 * GI)},
        allocated={GPU: Decimal(4), "memory": Decimal(64 * GI + GI // 2)},
    )
    expected = "waits: queue gpu: no room now (12 of 16 h100 free, 31.5 of 96 GiB of memory free)"
    assert verdict(ask(1), report, memory="64Gi") == expected


def test_what_was_given_away_is_not_free() -> None:
    given = volcano.give(host(cpu="4"), ask(9), Hosts(), report_of({GPU: 16, "cpu": 99}))
    assert given.allocated == {GPU: 10, "cpu": 8}, "two Kubernetes pods of five"
    assert volcano.give(host(), ask(7), Hosts(), given) == given, "it has to wait"
    unknown = report_of({GPU: 16}, "may not")
    assert volcano.give(host(), ask(1), Hosts(), unknown) == unknown


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (report_of({GPU: 16, "cpu": 64, "memory": 64 * GI}, 5, pending=2), None),
        (report_of({}), "no limits"),
        (report_of({}, pending=1), "no limits, 1 waiting"),
        (report_of({GPU: 1}, "may not"), "not known: may not"),
        (report_of({GPU: 1}, closed="it is Closed"), "it is Closed"),
    ],
)
def test_what_outlets_shows(report: QueueReport, expected: str | None) -> None:
    everything = f"64 of 64 CPUs, 64 of 64 GiB of memory, 11 of 16 {GPU}, 2 waiting"
    assert volcano.free_in_queue(report) == (everything if expected is None else expected)
