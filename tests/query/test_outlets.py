"""The rows of `dispatcher outlets`, from what hosts have reported."""

from __future__ import annotations

from dispatcher.hosts.types import Hosts, PlainHost, SlurmHost
from dispatcher.outlets.remote.operations import GpuInfo
from dispatcher.outlets.solver.reports import BatchReport, Gpus, Node, PlainReport, Queue, Unreachable
from dispatcher.query.outlets import free_text, limits_text, outlet_rows
from dispatcher.run_state.states import Record, State


def node(name: str, used: int, unusable: str = "", *, is_taken: bool = False) -> Node:
    return Node(
        name=name, cpus=8, free_cpus=6, memory_mib=1024, free_mib=512, gpus={"a100": Gpus(4, used)},
        unusable=unusable, is_taken=is_taken,
    )  # fmt: skip


HOSTS = Hosts(
    hosts={
        "plain": PlainHost(name="plain", cluster="plain", ssh="p"),
        "cpu": PlainHost(name="cpu", cluster="cpu", ssh="c", max_in_flight=4),
        "hpc": SlurmHost(name="hpc", cluster="hpc", max_in_flight=32, submits_per_minute=10),
        "away": PlainHost(name="away", cluster="away", ssh="a"),
    },
    priority=("hpc",),
)


def test_what_is_free_where() -> None:
    gpus = tuple(GpuInfo(index=n, name="A100", uuid=f"u{n}", busy="ada" if n == 1 else "") for n in range(4))
    queues = {
        "low": Queue(name="low", nodes=(node("n1", 1), node("n2", 0, is_taken=True), node("n3", 0, "drained"))),
        "high": Queue(name="high", closed="DOWN"),
        "cpu": Queue(name="cpu", nodes=(Node(name="c", cpus=1, free_cpus=1, memory_mib=1, free_mib=1),), pending=3),
    }
    reports = {
        "plain": PlainReport(gpus=gpus, cpus=16, memory_mib=65536, free_mib=40960),
        "cpu": PlainReport(cpus=1, memory_mib=4096, free_mib=2048),
        "hpc": BatchReport(queues),
        "away": Unreachable("ssh a: no route to host"),
    }
    records = {
        "a": Record(state=State.RUNNING, outlet="hpc"),
        "b": Record(state=State.SUBMITTED, outlet="hpc"),
        "c": Record(state=State.DONE, outlet="hpc"),
    }
    rows = {row["outlet"]: row for row in outlet_rows(HOSTS, reports, records)}
    assert next(iter(rows)) == "hpc"
    assert {name: free_text(row) for name, row in rows.items()} == {
        "plain": "3 of 4 GPUs, 40 GiB",
        "cpu": "1 CPU, 2 GiB",
        "hpc": "low: 3 of 8 a100, 6 of 16 CPUs; high: DOWN; cpu: 1 of 1 CPU, 3 waiting",
        "away": "ssh a: no route to host",
    }
    assert {name: row["in_flight"] for name, row in rows.items()} == {"hpc": 2, "plain": 0, "cpu": 0, "away": 0}
    assert [row["reachable"] for row in rows.values()] == [True, True, True, False]
    assert [limits_text(row) for row in rows.values()] == ["32 in flight, 10/min", "", "4 in flight", ""]
