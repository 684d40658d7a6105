"""Which host is chosen, and what is said of the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.hosts.types import (
    AnyHost,
    Hosts,
    Partition,
    PbsHost,
    PbsQueue,
    PlainHost,
    SlurmHost,
    SlurmOptions,
    TpuHost,
    VolcanoHost,
)
from dispatcher.outlets.base import Request
from dispatcher.outlets.pbs.resources import refuses as pbs_refusal
from dispatcher.outlets.plain.resources import refusal as plain_refusal
from dispatcher.outlets.remote.operations import GpuInfo
from dispatcher.outlets.slurm.resources import refusal as slurm_refusal
from dispatcher.outlets.solver.reports import (
    BatchReport,
    Gpus,
    HostReport,
    Node,
    PlainReport,
    Queue,
    QueueReport,
    Unreachable,
    VmReport,
)
from dispatcher.outlets.solver.request import Choice, HardwareRequest, Solution, UnsuitableHost
from dispatcher.outlets.solver.solve import judge, solve, worth_asking
from dispatcher.outlets.tpu.accelerator import refusal as tpu_refusal
from dispatcher.outlets.volcano.resources import refusal as volcano_refusal


def hosts_of(*hosts: AnyHost, priority: tuple[str, ...] = (), **gres: tuple[str, ...]) -> Hosts:
    return Hosts(hosts={host.name: host for host in hosts}, priority=priority, gres_mapping=gres)


def plain(name: str = "ws1", cluster: str = "lab", **fields: Any) -> PlainHost:
    return PlainHost(name=name, cluster=cluster, ssh=name, **{"chips": {"h100": 4}, **fields})


def login(name: str = "login1", cluster: str = "hpc", **fields: Any) -> SlurmHost:
    return SlurmHost(name=name, cluster=cluster, **{"partitions": (Partition("gpu"),), **fields})


def gpus(*busy: str, name: str = "NVIDIA H100 80GB HBM3") -> PlainReport:
    seen = tuple(GpuInfo(index=i, name=name, uuid=f"GPU-{i}", busy=why) for i, why in enumerate(busy))
    return PlainReport(cpus=16, memory_mib=64000, free_mib=32000, gpus=seen)


def node(name: str = "n1", used: int = 0, **fields: Any) -> Node:
    default = {"cpus": 32, "free_cpus": 32, "memory_mib": 1000, "free_mib": 1000, "gpus": {"h100": Gpus(8, used)}}
    return Node(name=name, **{**default, **fields})


def queue(*nodes: Node, name: str = "gpu", **fields: Any) -> Queue:
    return Queue(name=name, nodes=nodes, **fields)


def batch(*queues: Queue) -> BatchReport:
    return BatchReport({each.name: each for each in queues})


def ask(n: int = 1, chip: str = "h100", **fields: Any) -> HardwareRequest:
    return HardwareRequest(chip=chip, min_chips=n, **fields)


def names(solution: Solution) -> list[str]:
    return [choice.host for choice in solution.choices]


def verdict(request: HardwareRequest, host: AnyHost, report: HostReport | None, **gres: tuple[str, ...]) -> str:
    """In a few words: where it starts, where it would wait, or why it cannot run."""
    reports = {} if report is None else {host.name: report}
    solution = solve(request, hosts_of(host, **gres), reports)
    if solution.chosen is None:
        return solution.refusals[0].why
    return (
        f"{'waits' if solution.chosen.is_queued else 'starts'} in {solution.chosen.queue or '-'}: {solution.chosen.why}"
    )


@pytest.mark.parametrize(
    ("request_", "host", "report", "expected"),
    [
        (ask(4), plain(), gpus("", "", "", ""), "starts in -: 4 of 4 h100 free"),
        (ask(4, chip=""), plain(chips={"h100": 2, "l40": 2}), gpus("", "", "", ""), "starts in -: 4 of 4 GPUs free"),
        (ask(2), plain(), gpus("x", "", "", "y"), "starts in -: 2 of 4 h100 free"),
        (
            ask(3),
            plain(),
            gpus("20000 MiB used by pid 7 (ann: python)", "", "", "given to the attempt /w/a/1"),
            "2 of 4 h100 free, 3 needed: GPU 0: 20000 MiB used by pid 7 (ann: python); "
            "GPU 3: given to the attempt /w/a/1",
        ),
        (ask(5), plain(), gpus("", "", "", ""), "ws1 has 4 GPUs, and 5 are asked for (`chips` of the host: 4 h100)"),
        (ask(1, "a100"), plain(), gpus(""), "ws1 has no a100 (`chips` of the host: 4 h100)"),
        (ask(1), plain(chips={}), gpus("", ""), "ws1 has no h100 (`chips` of the host: none)"),
        (ask(2), plain(chips={"h100": 2}), gpus("", "x", "", ""), "starts in -: 2 of 2 h100 free"),
        (ask(4), plain(), gpus("", ""), "2 of 4 h100 free, 4 needed: nvidia-smi lists 2 of 4 that are configured"),
        (
            ask(1),
            plain(),
            msgspec.structs.replace(gpus(), no_gpus="nvidia-smi on ws1 failed with status 9"),
            "0 of 4 h100 free, 1 needed: nvidia-smi on ws1 failed with status 9",
        ),
        (ask(1, nodes=2), plain(), gpus(""), "ws1 is one machine, and 2 nodes are asked for"),
        (ask(0, cpus=16), plain(chips={}), gpus(), "starts in -: 16 CPUs, 32000 MiB of memory free"),
        (ask(0, cpus=17), plain(), gpus(), "too few CPUs: it has 16, 17 needed"),
        (ask(0, memory_mib=64001), plain(), gpus(), "too little memory: it has 64000 MiB, 64001 MiB needed"),
        (ask(0, memory_mib=32001), plain(), gpus(), "32000 of 64000 MiB of memory free, 32001 MiB needed"),
        (ask(2), plain(env={"CUDA_VISIBLE_DEVICES": "0,1"}), gpus("x", "", "", ""), "1 of 4 h100 free, 2 needed"),
        (ask(4), plain(), None, "starts in -: as configured, not asked"),
        (ask(5), plain(), None, "ws1 has 4 GPUs, and 5 are asked for (`chips` of the host: 4 h100)"),
    ],
)
def test_plain_hosts(request_: HardwareRequest, host: PlainHost, report: HostReport | None, expected: str) -> None:
    assert verdict(request_, host, report).startswith(expected)


def test_a_plain_host_with_several_kinds_of_gpus() -> None:
    seen = ["NVIDIA L40", "NVIDIA L40S", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"]
    report = msgspec.structs.replace(
        gpus(),
        gpus=tuple(
            GpuInfo(index=i, name=name, uuid=f"GPU-{i}", busy="x" if i == 2 else "") for i, name in enumerate(seen)
        ),
    )
    host = plain(chips={"l40": 1, "l40s": 1, "a100-sxm4-80gb": 2})
    assert verdict(ask(1, "l40"), host, report).startswith("starts")
    assert verdict(ask(1, "l40s"), host, report).startswith("starts")
    assert verdict(ask(1, "a100-sxm4-80gb"), host, report).startswith("starts in -: 1 of 2")
    assert verdict(ask(2, "a100-sxm4-80gb"), host, report).startswith("1 of 2 a100-sxm4-80gb free, 2 needed: GPU 2: x")


GPU = queue(node("n1", used=8), node("n2", used=5), name="gpu", pending=3)
FREE = queue(node("n1"), node("n2", used=5), name="gpu")


@pytest.mark.parametrize(
    ("request_", "host", "report", "expected"),
    [
        (ask(8), login(), batch(FREE), "starts in gpu: partition gpu: 11 of 16 h100 free"),
        (ask(3), login(), batch(GPU), "starts in gpu: partition gpu: 3 of 16 h100 free"),
        (ask(4), login(), batch(GPU), "waits in gpu: partition gpu: no room now (3 of 16 h100 free, 3 jobs waiting)"),
        (ask(6, nodes=2), login(), batch(FREE), "starts in gpu"),
        (ask(8, nodes=2), login(), batch(FREE), "waits in gpu"),
        (
            ask(16),
            login(),
            batch(FREE),
            "partition gpu: too few chips: a node has 8 h100, 16 needed; over 2 nodes (--nodes 2)",
        ),
        (ask(24, nodes=3), login(), batch(FREE), "partition gpu: too few nodes: 2 can run it, 3 needed"),
        (
            ask(24, nodes=2),
            login(),
            batch(FREE),
            "partition gpu: too few chips: a node has 8 h100, 12 needed on each of 2",
        ),
        (
            ask(1, "a100"),
            login(),
            batch(FREE),
            "partition gpu: no a100, it has h100; gres_mapping, or gpu_type of the host, must say",
        ),
        (ask(1), login(), batch(queue(node(gpus={}))), "partition gpu: its nodes have no GPUs"),
        (
            ask(1),
            login(),
            batch(queue(node(gpus={"": Gpus(4)}))),
            "partition gpu: no h100, it has GPUs without a type; gres_mapping",
        ),
        (ask(1, ""), login(), batch(queue(node(gpus={"": Gpus(4)}))), "starts in gpu"),
        (ask(1), login(), batch(queue(node(gpus={"H100": Gpus(4)}))), "starts in gpu"),
        (ask(5), login(chips={"h100": 4}), batch(FREE), "5 GPUs are asked for, and login1 may use 4 of h100"),
        (ask(1), login(slot_type="cpu"), batch(FREE), "login1 has slot_type cpu, and 1 GPUs are asked for"),
        (ask(1, cpus=33), login(), batch(FREE), "partition gpu: too few CPUs: a node has 32, 33 needed"),
        (ask(1, memory_mib=1001), login(), batch(FREE), "partition gpu: too little memory: a node has 1000 MiB"),
        (ask(1), login(mem="1001M"), batch(FREE), "partition gpu: too little memory: a node has 1000 MiB"),
        (ask(1, memory_mib=1), login(mem="1001M"), batch(FREE), "starts in gpu"),
        (ask(1, cpus=9), login(), batch(queue(node(free_cpus=8))), "waits in gpu"),
        (ask(1, memory_mib=9), login(), batch(queue(node(free_mib=8))), "waits in gpu"),
        (ask(1), login(), batch(queue(node(free_mib=0))), "waits in gpu"),
        (ask(1), login(), batch(queue(node(free_cpus=0))), "waits in gpu"),
        (ask(1), login(), batch(queue(node(is_taken=True))), "waits in gpu: partition gpu: no room now (0 of 8"),
        (
            ask(1),
            login(),
            batch(queue(node(unusable="drain"), node("n2", unusable="drain"))),
            "partition gpu: no node can be used (2 drain)",
        ),
        (ask(1), login(), batch(queue()), "partition gpu: no node can be used (it has none)"),
        (ask(1), login(), batch(queue(node(), closed="it is down")), "partition gpu: it is down"),
        (
            ask(1),
            login(),
            batch(queue(node(), name="gpus")),
            "partition gpu: SLURM shows none of this name (did you mean 'gpus'?)",
        ),
        (ask(1), login(exclude=("n[1-2]",)), batch(FREE), "partition gpu: no node can be used (it has none)"),
        (ask(8), login(exclude=("n1",)), batch(FREE), "waits in gpu"),
        (
            ask(1),
            login(partitions=(Partition("gpu", constraint="ib"),)),
            batch(FREE),
            "partition gpu: no node can be used",
        ),
        (
            ask(1),
            login(partitions=(Partition("gpu", constraint="ib"),)),
            batch(queue(node(features=frozenset({"ib"})))),
            "starts in gpu",
        ),
        (ask(8), login(), None, "waits in gpu: as configured, not asked"),
        (
            ask(2),
            login(gres_supported=False, slots_per_node=2),
            batch(queue(node(gpus={}), node("n2", gpus={}, free_cpus=31))),
            "starts in gpu: partition gpu: 2 of 4 h100 free",
        ),
        (
            ask(2, ""),
            login(gres_supported=False, slots_per_node=2),
            batch(queue(node(gpus={}), node("n2", gpus={}, free_cpus=31))),
            "starts in gpu: partition gpu: 2 of 4 GPUs free",
        ),
        (ask(1), login(gpu_type="h100"), batch(FREE), "starts in gpu"),
        (
            ask(1),
            login(gpu_type="h200"),
            batch(FREE),
            "partition gpu: no h200, it has h100",
        ),
        (
            ask(1, ""),
            login(gpu_type="a100"),
            batch(FREE),
            "partition gpu: no a100, it has h100; gpu_type of the host asks for it",
        ),
    ],
)
def test_partitions_of_slurm(
    request_: HardwareRequest, host: SlurmHost, report: HostReport | None, expected: str
) -> None:
    found = verdict(request_, host, report)
    assert found.startswith(expected), found


def test_gres_types_of_a_chip() -> None:
    report = batch(queue(node(gpus={"nvidia_h100_80gb_hbm3": Gpus(4)})))
    assert verdict(ask(1), login(), report).startswith("partition gpu: no h100")
    assert verdict(ask(4), login(), report, h100=("h100", "nvidia_h100_80gb_hbm3")).startswith("starts in gpu")
    untyped = batch(queue(node(gpus={"": Gpus(4)})))
    assert verdict(ask(4), login(), untyped, h100=("h100",)).startswith("partition gpu: no h100, it has GPUs without")
    assert verdict(ask(4), login(), untyped, h100=("h100", "")).startswith("starts in gpu")


def test_a_job_can_ask_for_one_gres_type_only() -> None:
    mixed = batch(queue(node(gpus={"h100": Gpus(4, 4)}), node("n2", gpus={"h100_80gb": Gpus(4)})))
    assert verdict(ask(1), login(), mixed, h100=("h100", "h100_80gb")).startswith("waits in gpu")
    assert verdict(ask(1), login(), mixed, h100=("h100_80gb", "h100")).startswith("starts in gpu")


def test_partitions_in_order() -> None:
    """The default one first, then as they are listed; where none can start it, the one with the most free GPUs."""
    host = login(partitions=(Partition("a"), Partition("b"), Partition("c", default=True)))

    def chosen(request: HardwareRequest, **used: int) -> str:
        report = batch(*(queue(node(used=used[name]), name=name) for name in "abc"))
        return verdict(request, host, report)

    assert chosen(ask(1), a=0, b=0, c=7).startswith("starts in c")
    assert chosen(ask(2), a=0, b=0, c=7).startswith("starts in a")
    assert chosen(ask(4), a=6, b=5, c=7).startswith("waits in b")
    assert chosen(ask(9), a=0, b=0, c=0).count("too few chips") == 3


def test_without_partitions_slurm_s_own_default_is_used() -> None:
    report = batch(queue(node(gpus={}), name="cpu", is_default=True), queue(node(), name="gpu"))
    host = login(partitions=())
    assert verdict(ask(0), host, report).startswith("starts in -: partition cpu: 32 of 32 CPUs free")
    assert verdict(ask(1), host, report) == "partition cpu: its nodes have no GPUs"
    assert verdict(ask(0), host, batch(queue(node()))) == "SLURM has no default partition: name one in `partitions`"
    assert verdict(ask(0), host, None) == "waits in -: as configured, not asked"


def test_a_partition_of_the_entry_alone_is_not_taken_for_one_that_does_not_exist() -> None:
    """SLURM is asked about the configured ones."""
    request = ask(1, slurm=SlurmOptions(partition="big"))
    assert verdict(request, login(), batch(queue(node()))) == "waits in big: as configured, not asked"
    asked_about_all = batch(queue(node()))
    assert verdict(request, login(partitions=()), asked_about_all).startswith("partition big: SLURM shows none of this")


def test_jobs_without_gpus_go_to_the_cpu_partitions() -> None:
    report = batch(queue(node()), queue(node(gpus={}, free_cpus=0), name="cpu"), queue(node(gpus={}), name="cpu2"))
    assert verdict(ask(0), login(), report).startswith("starts in gpu")
    host = login(cpu_partitions=("cpu", "cpu2"))
    assert verdict(ask(0), host, report).startswith("starts in cpu2")
    assert verdict(ask(1), host, report).startswith("starts in gpu")


def pbs(**fields: Any) -> PbsHost:
    return PbsHost(name="hpc2", cluster="hpc2", **{"chips": {"h100": 99}, **fields})


@pytest.mark.parametrize(
    ("request_", "host", "report", "expected"),
    [
        (ask(8), pbs(queues=(PbsQueue("gpu"),)), batch(FREE), "starts in gpu: queue gpu: 11 of 16 h100 free"),
        (ask(8), pbs(queues=(PbsQueue("gpu"),)), batch(GPU), "waits in gpu"),
        (ask(1), pbs(), batch(queue(node(), name="workq", is_default=True)), "starts in -"),
        (ask(1), pbs(), batch(queue(node(), name="workq")), "PBS has no default queue: name one in `queues`"),
        (ask(1, "a100"), pbs(queues=(PbsQueue("gpu"),)), batch(FREE), "hpc2 has no a100, only h100"),
        (
            ask(1),
            pbs(queues=(PbsQueue("gpu"),), chips={}),
            batch(FREE),
            "it is not known whether hpc2 has h100: say in `chips`",
        ),
        (ask(1, ""), pbs(queues=(PbsQueue("gpu"),), chips={}), batch(FREE), "starts in gpu"),
        (ask(1), pbs(queues=(PbsQueue("gpu"),), chips={"h100": 9, "l40": 9}), batch(FREE), "starts in gpu"),
        (
            ask(1, "l40"),
            pbs(queues=(PbsQueue("gpu"),), chips={"h100": 9, "l40": 9}),
            batch(FREE),
            "queue gpu: no l40, it has h100; jobs ask for gpu_type=l40",
        ),
        (ask(11, nodes=2), pbs(queues=(PbsQueue("gpu"),)), batch(FREE), "waits in gpu"),
        (
            ask(9, nodes=2),
            pbs(queues=(PbsQueue("gpu"),)),
            batch(queue(node(used=3), node("n2", used=4))),
            "starts in gpu",
        ),
        (
            ask(8, nodes=2),
            pbs(queues=(PbsQueue("gpu"),), slots_per_node=2),
            batch(FREE),
            "queue gpu: too few nodes: 2 can",
        ),
        (ask(8), pbs(queues=(PbsQueue("gpu"),)), batch(queue(node(free_cpus=7))), "waits in gpu"),
        (
            ask(1, "a100"),
            pbs(queues=(PbsQueue("gpu"),), chips={"a100": 4}),
            batch(queue(node(gpus={"": Gpus(4)}))),
            "starts in gpu",
        ),
        (
            ask(1),
            pbs(queues=(PbsQueue("old"), PbsQueue("gpu"))),
            batch(FREE, queue(node(), name="old", closed="no")),
            "starts in gpu",
        ),
        (
            ask(1),
            pbs(gres_supported=False, slots_per_node=4, chips={"h100": 4}, queues=(PbsQueue("gpu"),)),
            batch(queue(node(gpus={}))),
            "starts in gpu: queue gpu: 4 of 4 h100 free",
        ),
    ],
)
def test_queues_of_pbs(request_: HardwareRequest, host: PbsHost, report: HostReport | None, expected: str) -> None:
    found = verdict(request_, host, report)
    assert found.startswith(expected), found


FOUR_FREE = gpus("", "", "", "")
ALL_BUSY = gpus("x", "x", "x", "x")


def test_the_configured_order_decides_among_those_that_can_start_it() -> None:
    hosts = hosts_of(login(), plain("ws1"), plain("ws2"), plain("ws3"), priority=("ws3", "ws1"))
    reports: Mapping[str, HostReport] = {
        "login1": batch(FREE),
        "ws1": FOUR_FREE,
        "ws2": FOUR_FREE,
        "ws3": gpus("x", "", "", ""),
    }
    assert names(solve(ask(3), hosts, reports)) == ["ws3", "ws1", "login1", "ws2"]
    assert names(solve(ask(4), hosts, reports)) == ["ws1", "login1", "ws2"]


def test_hosts_of_preferred_clusters_come_first_and_those_of_excluded_ones_never() -> None:
    hosts = hosts_of(plain("ws1"), login(), login("login2", "other"), priority=("ws1",))
    reports: Mapping[str, HostReport] = {"ws1": FOUR_FREE, "login1": batch(FREE), "login2": batch(GPU)}
    assert names(solve(ask(4, preferred_clusters=("hpc",)), hosts, reports)) == ["login1", "ws1", "login2"]
    solution = solve(ask(4, preferred_clusters=("other",), excluded_clusters=("lab",)), hosts, reports)
    assert names(solution) == ["login1", "login2"], "a host that can start it now comes before a preferred queue"
    assert solution.refusals[0].why == "its cluster lab is excluded"


def test_the_scheduler_with_the_most_free_gpus_queues_what_nobody_can_start() -> None:
    hosts = hosts_of(
        plain("ws1"), login("a"), login("b"), pbs(queues=(PbsQueue("gpu"),), chips={"h100": 8}), login("c")
    )
    reports: Mapping[str, HostReport] = {
        "ws1": ALL_BUSY,
        "a": batch(queue(node(used=6))),
        "b": batch(queue(node(used=4))),
        "hpc2": batch(queue(node(used=3))),
        "c": Unreachable("ssh c: Connection timed out"),
    }
    solution = solve(ask(6), hosts, reports)
    assert names(solution) == ["hpc2", "b", "a"] and all(choice.is_queued for choice in solution.choices)
    assert names(solve(ask(6, preferred_clusters=("hpc",)), hosts, reports)) == ["b", "a", "hpc2"]


def test_an_unreachable_host_is_never_one_without_free_gpus() -> None:
    hosts = hosts_of(plain("ws1"), login())
    reports: Mapping[str, HostReport] = {"ws1": ALL_BUSY, "login1": Unreachable("sinfo did not answer in time")}
    solution = solve(ask(1), hosts, reports)
    assert solution.chosen is None
    assert [(refusal.host, refusal.is_unreachable) for refusal in solution.refusals] == [
        ("ws1", False),
        ("login1", True),
    ]
    assert solution.refusals[1].why == "sinfo did not answer in time"


def test_a_machine_that_somebody_has_to_create_comes_last() -> None:
    tpu = TpuHost(name="t", cluster="lab", zone="us-central2-b", accelerator_type="v4-8")
    created = msgspec.structs.replace(tpu, name="u", create="auto", cluster="u")
    volcano = VolcanoHost(name="v", cluster="v", image="i", pvc_name="p", pvc_mount_path="/p")
    hosts = hosts_of(tpu, created, volcano)
    absent = {"t": VmReport(), "u": VmReport(), "v": QueueReport()}
    assert names(solve(ask(1, "", preferred_clusters=("lab",)), hosts, absent)) == ["u", "v", "t"]
    ready = {**absent, "t": VmReport(state="READY")}
    assert names(solve(ask(1, ""), hosts, ready)) == ["t", "u", "v"]


def test_only_hosts_whose_reports_matter_are_asked() -> None:
    hosts = hosts_of(
        plain("small", chips={"h100": 1}),
        plain("ws1"),
        plain("excluded", "other"),
        login(),
        TpuHost(name="t", cluster="t", zone="us-central2-b", accelerator_type="v4-8"),
        VolcanoHost(name="v", cluster="v", image="i", pvc_name="p", pvc_mount_path="/p", gpus_per_node=0),
        priority=("login1",),
    )
    request = ask(4, excluded_clusters=("other",))
    assert [host.name for host in worth_asking(request, hosts)] == ["login1", "ws1"]


requests = st.builds(
    HardwareRequest,
    chip=st.sampled_from(["", "h100", "a100"]),
    min_chips=st.integers(0, 20),
    cpus=st.none() | st.integers(1, 40),
    memory_mib=st.none() | st.integers(1, 1200),
    nodes=st.integers(1, 3),
    preferred_clusters=st.lists(st.sampled_from(["lab", "hpc"]), max_size=1).map(tuple),
    excluded_clusters=st.lists(st.sampled_from(["lab", "hpc"]), max_size=1).map(tuple),
)
CHIPS: tuple[Mapping[str, int], ...] = ({}, {"h100": 8}, {"h100": 8, "a100": 4})
VOLCANO = {"name": "k", "cluster": "k", "image": "i", "pvc_name": "p", "pvc_mount_path": "/p"}


@pytest.mark.parametrize(
    ("refusal", "host"),
    [
        *((plain_refusal, plain(chips=chips)) for chips in CHIPS),
        *((slurm_refusal, login(chips=chips, slots_per_node=most)) for chips in CHIPS for most in (None, 4)),
        *((pbs_refusal, PbsHost(name="p", cluster="p", chips=chips, slots_per_node=4)) for chips in CHIPS),
        *(
            (volcano_refusal, VolcanoHost(**VOLCANO, chips=chips, gpus_per_node=n))
            for chips in CHIPS
            for n in (None, 4)
        ),
        (tpu_refusal, TpuHost(name="t", cluster="t", zone="z", accelerator_type="v4-32")),
    ],
)
def test_the_solver_refuses_what_the_outlet_refuses(refusal: Callable[[Any, Request], str], host: AnyHost) -> None:
    """Else a job is sent where it waits for ever, or is kept from where it could run."""
    for chip, number, nodes_ in itertools.product(("", "h100", "a100", "tpu-v4"), (0, 1, 4, 8, 9, 16, 64), (1, 2)):
        if number or host.type != "tpu":
            request = ask(number, chip, nodes=nodes_)
            verdict = judge(host, request, hosts_of(host), None)
            by_solver = verdict.why if isinstance(verdict, UnsuitableHost) else ""
            assert by_solver == refusal(host, request.for_outlet()), request


plain_reports = st.lists(st.sampled_from(["", "used by ann"]), max_size=6).map(lambda busy: gpus(*busy))
nodes = st.builds(
    lambda name, kind, used, free_cpus, unusable, taken: node(
        f"n{name}", gpus={kind: Gpus(8, used)}, free_cpus=free_cpus, unusable=unusable, is_taken=taken
    ),
    st.integers(0, 99),
    st.sampled_from(["", "h100", "a100"]),
    st.integers(0, 8),
    st.integers(0, 32),
    st.sampled_from(["", "", "drain"]),
    st.booleans(),
)
batch_reports = st.lists(nodes, max_size=4).map(lambda members: batch(queue(*members)))
unreachable = st.just(Unreachable("no route to host"))


@given(
    request=requests,
    reports=st.fixed_dictionaries(
        {}, optional={"ws1": plain_reports | unreachable, "login1": batch_reports | unreachable, "hpc2": batch_reports}
    ),
)
def test_what_always_holds(request: HardwareRequest, reports: Mapping[str, HostReport]) -> None:
    hosts = hosts_of(
        plain("ws1"),
        login(),
        pbs(queues=(PbsQueue("gpu"),)),
        TpuHost(name="t", cluster="t", zone="us-central2-b", accelerator_type="v4-8"),
    )
    solution = solve(request, hosts, reports)
    assert solve(request, hosts, reports) == solution
    told = [*names(solution), *(refusal.host for refusal in solution.refusals)]
    assert sorted(told) == sorted(hosts.hosts), "every host is told of once"
    assert all(refusal.why for refusal in solution.refusals) and all(choice.why for choice in solution.choices)
    assert [choice.is_queued for choice in solution.choices] == sorted(c.is_queued for c in solution.choices)
    for choice in solution.choices:
        assert hosts.hosts[choice.host].cluster not in request.excluded_clusters
        assert_has_room(request, choice, reports)
    for refusal in solution.refusals:
        if refusal.is_unreachable:
            assert isinstance(reports[refusal.host], Unreachable)


def assert_has_room(request: HardwareRequest, choice: Choice, reports: Mapping[str, HostReport]) -> None:
    """What is chosen to start now has the free hardware, as far as the host was asked."""
    report = reports.get(choice.host)
    assert not isinstance(report, Unreachable)
    if report is None:
        assert choice.free_chips is None
    elif not choice.is_queued:
        assert choice.free_chips is not None and choice.free_chips >= request.min_chips
        if isinstance(report, BatchReport):
            free = [n for n in report.queues["gpu"].nodes if not n.unusable and not n.is_taken]
            assert len([n for n in free if n.free_cpus >= (request.cpus or 1)]) >= request.nodes
