"""What a pod knows of a host's free hardware: for how long, and what it has given away since."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from clocks import Clock

from dispatcher.hosts.types import (
    AnyHost,
    Cluster,
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
from dispatcher.outlets.batch.scheduler import Scheduler
from dispatcher.outlets.pbs.scheduler import PbsScheduler
from dispatcher.outlets.plain.scheduler import PlainScheduler
from dispatcher.outlets.remote.operations import GpuInfo, GpuList, Ran
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.outlets.solver.free import ASK_AGAIN_S, ASK_EVERY_S, AWAITED_S, USE_FOR_S, FreeHardware
from dispatcher.outlets.tpu.scheduler import TpuScheduler
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout

MEMINFO = Ran(exit_code=0, out="MemTotal: 65536000 kB\nMemAvailable: 32768000 kB\n")
NPROC = Ran(exit_code=0, out="16\n")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def plain(clock: Clock, **fields: Any) -> FreeHardware:
    host = PlainHost(name="ws1", cluster="ws1", ssh="ws1", **{"chips": {"h100": 4}, **fields})
    return free_on(PlainScheduler(host, Cluster(name="c"), Path()), host, clock)


def free_on(scheduler: Scheduler, host: AnyHost, clock: Clock) -> FreeHardware:
    return FreeHardware(host, Hosts(), Path(), scheduler.default_gpus, clock)


def gpus(*busy: str) -> Sequence[Any]:
    seen = [GpuInfo(index=i, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{i}", busy=why) for i, why in enumerate(busy)]
    return [NPROC, MEMINFO, GpuList(gpus=seen)]


def row(partition: str, node: str, used: int, cpus: str = "0/8/0/8") -> str:
    return f"{partition}|up|{node}|mixed|{cpus}|4000|0|gpu:h100:4|gpu:h100:{used}|(null)|\n"


def sinfo(*rows: str) -> Sequence[Any]:
    return [Ran(exit_code=0, out="".join(rows)), Ran(exit_code=0)]


def login(clock: Clock, **fields: Any) -> FreeHardware:
    partitions = (Partition("gpu"), Partition("all"))
    host = SlurmHost(name="s", cluster="s", **{"partitions": partitions, **fields})
    return free_on(SlurmScheduler(host, Hosts(), Layout(Path("/w")), 1.0), host, clock)


def test_a_host_is_asked_while_somebody_wants_to_know(clock: Clock) -> None:
    free = plain(clock)
    assert free.due_in_s() == 0 and len(free.questions()) == 3
    free.take_in(gpus("", "", "", ""), [])
    assert free.due_in_s() is None and free.questions() == []
    assert free.outlook(Request(1)) == 0 and free.due_in_s() == ASK_EVERY_S and free.questions() == []
    clock.now_s += ASK_EVERY_S
    assert free.due_in_s() == 0 and free.questions()


def test_a_host_is_asked_again_soon_after_an_attempt_has_ended_there(clock: Clock) -> None:
    free = plain(clock)
    free.take_in(gpus("", "", "", ""), [])
    free.note_end()
    assert free.due_in_s() is None, "nobody wants to know"
    assert free.outlook(Request(1)) == 0 and free.due_in_s() == ASK_AGAIN_S
    free.take_in(gpus("", "", "", ""), [])
    assert free.outlook(Request(1)) == 0 and free.due_in_s() == ASK_EVERY_S


def test_why_requests_are_refused(clock: Clock) -> None:
    free = plain(clock)
    free.take_in(gpus("", "x", "x", "x"), [])
    assert free.outlook(Request(1)) == 0 and free.refused() == {}
    assert free.outlook(Request(2)) is None
    assert free.refused() == {Request(2): "1 of 4 GPUs free, 2 needed: GPU 1: x; GPU 2: x; GPU 3: x"}
    free.take_in(gpus("", "", "x", "x"), [])
    assert free.refused() == {}


def test_what_was_told_long_ago_is_not_used(clock: Clock) -> None:
    free = plain(clock)
    free.take_in(gpus("", "", "", ""), [])
    clock.now_s += USE_FOR_S + 1
    assert free.awaited_for_s() is None, "nobody wants to know"
    clock.now_s += AWAITED_S + 1
    assert free.outlook(Request(1)) == math.inf, "worth waiting for, because it is asked now"
    assert free.awaited_for_s() == AWAITED_S
    clock.now_s += AWAITED_S
    assert free.outlook(Request(1)) is None and free.awaited_for_s() is None
    free.take_in(gpus("", "", "", ""), [])
    assert free.outlook(Request(1)) == 0


def test_before_the_first_answer(clock: Clock) -> None:
    free = plain(clock)
    assert free.outlook(Request(1)) == math.inf
    clock.now_s += AWAITED_S + 1
    assert free.outlook(Request(1)) is None


def test_a_host_that_does_not_answer_has_no_outlook(clock: Clock) -> None:
    free = login(clock)
    free.take_in([Ran(exit_code=1, err="Unable to contact slurm controller"), Ran(exit_code=0)], [])
    assert free.outlook(Request(1)) is None and "Unable to contact" in free.problem
    free.take_in(sinfo(row("gpu", "n1", 0)), [])
    assert free.outlook(Request(1)) == 0 and free.problem == ""


def test_gpus_of_a_plain_host_that_were_given_away(clock: Clock) -> None:
    free = plain(clock)
    free.take_in(gpus("", "x", "", ""), [])
    assert [free.outlook(Request(number, chip="h100")) for number in (3, 4)] == [0, None]
    free.give(Request(2, chip="h100"))
    assert [free.outlook(Request(number, chip="h100")) for number in (1, 2)] == [0, None]
    free.take_in(gpus("", "x", "", ""), [Request(1)])
    assert [free.outlook(Request(number, chip="h100")) for number in (2, 3)] == [0, None]


def test_a_job_that_leaves_gpus_open_gets_one_where_there_are_some(clock: Clock) -> None:
    with_gpus, without = plain(clock), plain(clock, chips={})
    for free in (with_gpus, without):
        free.take_in(gpus("x", "x", "x", "x"), [])
    assert with_gpus.outlook(Request()) is None and without.outlook(Request()) == 0


def test_gpus_of_a_node_that_were_given_away_are_taken_in_all_its_partitions(clock: Clock) -> None:
    free = login(clock)
    free.take_in(sinfo(row("gpu", "n1", 0), row("all", "n1", 0), row("all", "n2", 2)), [])
    free.give(Request(4))
    assert free.outlook(Request(2)) == 0, "n2, by the other partition"
    free.give(Request(2))
    assert free.outlook(Request(1)) == 1, "all are in use: it would wait"
    assert free.outlook(Request(5)) is None


def test_the_smallest_node_that_suffices_is_taken(clock: Clock) -> None:
    free = login(clock)
    free.take_in(sinfo(row("gpu", "n1", 0), row("gpu", "n2", 2)), [])
    free.give(Request(2))
    assert free.outlook(Request(4)) == 0
    free.give(Request(8, nodes=2))
    assert free.outlook(Request(4)) == 0, "what has to wait takes nothing"


def test_cpus_are_taken_too(clock: Clock) -> None:
    free = login(clock, cpu_partitions=("gpu",))
    free.take_in(sinfo(row("gpu", "n1", 0, "0/8/0/8")), [])
    free.give(Request(0, cpus=6))
    assert free.outlook(Request(0, cpus=2)) == 0 and free.outlook(Request(0, cpus=3)) is not None
    assert free.outlook(Request(0, cpus=3)) != 0


def test_of_queues_that_with_more_free_gpus_is_better(clock: Clock) -> None:
    fuller, emptier = login(clock), login(clock)
    fuller.take_in(sinfo(row("gpu", "n1", 3)), [])
    emptier.take_in(sinfo(row("gpu", "n1", 2)), [])
    one, other = fuller.outlook(Request(4)), emptier.outlook(Request(4))
    assert one is not None and other is not None and 0 < other < one <= 1


def test_pbs(clock: Clock) -> None:
    golden = Path(__file__).parent / "golden"
    host = PbsHost(name="p", cluster="p", queues=(PbsQueue("h100q"),))
    free = free_on(PbsScheduler(host, Layout(Path("/w"))), host, clock)
    nodes = json.loads((golden / "pbsnodes.json").read_text())
    nodes["nodes"] = {"h1": nodes["nodes"]["h1"]}
    queues = Ran(exit_code=0, out=(golden / "qstat_queues.json").read_text())
    server = Ran(exit_code=0, out=(golden / "qstat_server.json").read_text())
    free.take_in([Ran(exit_code=0, out=json.dumps(nodes)), queues, server], [])
    assert free.outlook(Request(4)) == 0
    free.give(Request(3))
    assert free.outlook(Request(1)) == 0 and free.outlook(Request(2)) == 1 / 2


def volcano(clock: Clock, **keys: Any) -> FreeHardware:
    place = {"image": "i", "pvc_name": "p", "pvc_mount_path": "/p", "gpus_per_node": 4}
    host = VolcanoHost(name="k", cluster="k", **{**place, **keys})
    return free_on(VolcanoScheduler(host, Layout(Path("/w")), 1.0), host, clock)


def queue_of_volcano(capability: dict[str, int], used: int = 0) -> Sequence[Any]:
    described = {
        "metadata": {"name": "default"},
        "spec": {"capability": capability},
        "status": {"state": "Open", "allocated": {"nvidia.com/gpu": used}},
    }
    return [Ran(exit_code=0, out=json.dumps(described)), Ran(exit_code=0), Ran(exit_code=0)]


def test_a_queue_of_volcano(clock: Clock) -> None:
    free = volcano(clock)
    free.take_in(queue_of_volcano({"nvidia.com/gpu": 8}, used=2), [])
    assert [free.outlook(Request(number)) for number in (6, 7, 9)] == [0, 1 / 7, None]
    free.give(Request(5))
    assert [free.outlook(Request(number)) for number in (None, 1)] == [1, 1], "two Kubernetes pods of three"


def test_a_job_that_leaves_gpus_open_has_one_in_each_kubernetes_pod(clock: Clock) -> None:
    free = volcano(clock, num_nodes=3)
    free.take_in(queue_of_volcano({"nvidia.com/gpu": 2}), [])
    assert free.outlook(Request(1)) == 0 and free.outlook(Request()) is None


def tpu(clock: Clock, **keys: Any) -> FreeHardware:
    host = TpuHost(name="t", cluster="t", zone="z", accelerator_type="v4-8", **keys)
    return free_on(TpuScheduler(host), host, clock)


READY = [Ran(exit_code=0, out='{"state": "READY"}')]
NO_VM = [Ran(exit_code=1, err="ERROR: (x) NOT_FOUND: Resource 'projects/p/locations/z/nodes/t' was not found")]


def test_a_tpu_vm_is_taken_as_long_as_an_attempt_runs(clock: Clock) -> None:
    free = tpu(clock)
    free.take_in(READY, [])
    assert free.outlook(Request()) == free.outlook(Request(8, chip="tpu-v4")) == 0
    free.give(Request(1))
    assert free.outlook(Request()) == 1
    free.take_in(READY, [], [Request(1)])
    assert free.outlook(Request()) == 1
    free.take_in(READY, [])
    assert free.outlook(Request()) == 0


def test_a_tpu_vm_that_does_not_exist_is_waited_for_where_it_may_be_created(clock: Clock) -> None:
    asked, auto = tpu(clock), tpu(clock, create="auto")
    for free in (asked, auto):
        free.take_in(NO_VM, [])
    assert auto.outlook(Request(1)) == 1
    assert asked.outlook(Request(1)) is None
    assert asked.refused() == {Request(1): "there is no VM t in z: it has to be created first"}


@pytest.mark.parametrize("slurm", [None, SlurmOptions(partition="cpu")], ids=["first", "named"])
def test_a_job_that_leaves_gpus_open_has_those_of_its_partition(clock: Clock, slurm: SlurmOptions | None) -> None:
    free = login(clock, partitions=(Partition("gpu"), Partition("cpu", slot_type="cpu")))
    free.take_in(sinfo(row("gpu", "n1", 4), row("cpu", "n2", 4)), [])
    outlook = free.outlook(Request(slurm=slurm))
    assert outlook == (1 if slurm is None else 0), "in the partition with GPUs all of these are in use"
