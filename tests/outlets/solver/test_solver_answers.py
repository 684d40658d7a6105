"""What hosts answer, recorded from SLURM 22.05 (golden/sinfo*.txt, squeue*.txt) and written as OpenPBS documents it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import OutletError
from dispatcher.hosts.types import PbsHost, PlainHost, SlurmHost
from dispatcher.outlets.remote.connection import NoAnswer
from dispatcher.outlets.remote.operations import Failed, GpuInfo, GpuList, Ran
from dispatcher.outlets.solver import pbs, slurm
from dispatcher.outlets.solver.query import questions, read_report
from dispatcher.outlets.solver.reports import BatchReport, Gpus, HostReport, PlainReport, Unreachable

GOLDEN = Path(__file__).parent / "golden"
PLAIN = PlainHost(name="ws1", cluster="ws1", ssh="ws1", chips={"h100": 2})
SLURM = SlurmHost(name="login1", cluster="login1")
PBS = PbsHost(name="hpc2", cluster="hpc2")


def golden(name: str) -> Ran:
    return Ran(exit_code=0, out=(GOLDEN / name).read_text())


def batch_report(host: SlurmHost | PbsHost, answers: list[Any]) -> BatchReport:
    report = read_report(host, answers)
    assert isinstance(report, BatchReport), report
    return report


def test_partitions_of_slurm() -> None:
    report = batch_report(SLURM, [golden("sinfo.txt"), golden("squeue.txt")])
    assert list(report.queues) == ["high", "low"]
    low = report.queues["low"]
    assert (low.is_default, low.closed, low.pending) == (True, "", 2)
    assert (report.queues["high"].is_default, report.queues["high"].pending) == (False, 0)
    n1, n2, _, n4 = low.nodes
    assert (n1.name, n1.cpus, n1.free_cpus, n1.memory_mib, n1.free_mib) == ("n1", 4, 2, 4000, 3500)
    assert n1.gpus == {"h100": Gpus(4, 2)} and n1.features == {"a100", "nvlink"}
    assert n2.gpus == {"h100": Gpus(4, 4)} and n2.features == set() and not n2.unusable
    assert n4.unusable == "idle+drain" and n4.gpus == {"h100": Gpus(4, 0)}


def test_partitions_of_slurm_with_several_kinds_of_gpus() -> None:
    report = batch_report(SLURM, [golden("sinfo_mixed.txt"), golden("squeue_mixed.txt")])
    queues = report.queues
    assert {name: queue.closed for name, queue in queues.items() if queue.closed} == {
        "stopped": "it is drain",
        "closed": "it is down",
    }
    assert (queues["low"].pending, queues["high"].pending) == (2, 2), "jobs that name both partitions"
    assert {node.name: node.gpus for node in queues["low"].nodes} == {
        "n1": {"h100": Gpus(4, 3)},
        "n2": {"a100": Gpus(2, 0), "v100": Gpus(1, 1)},
        "n3": {},
        "n4": {"": Gpus(4, 3)},
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(null)", {}),
        ("gpu:4", {"": 4}),
        ("gpu", {"": 1}),
        ("gpu:h100:4(S:0-1)", {"h100": 4}),
        ("gpu:h100", {"h100": 1}),
        ("gpu:a100:1(IDX:0,2),gpu:v100:0(IDX:N/A),shard:8", {"a100": 1, "v100": 0}),
        ("gpu:a100_1g.5gb:7,gpu:a100_1g.5gb:7", {"a100_1g.5gb": 14}),
        ("craynetwork:4,mps:100", {}),
    ],
)
def test_gres(text: str, expected: dict[str, int]) -> None:
    assert slurm.parse_gres(text) == expected


@pytest.mark.parametrize(
    ("state", "is_unusable", "is_taken"),
    [
        ("idle", False, False),
        ("mixed+planned", False, True),
        ("idle+reserved", False, True),
        ("idle+cloud+powered_down", False, False),
        ("allocated+completing", False, False),
        ("down+not_responding", True, False),
        ("idle+drain", True, False),
        ("drained", True, False),
        ("idle+maintenance", True, False),
        ("future", True, False),
        ("inval", True, False),
        ("idle*", False, False),
    ],
)
def test_states_of_nodes_in_slurm(state: str, is_unusable: bool, is_taken: bool) -> None:
    line = f"low*|up|n1|{state}|0/4/0/4|4000|0|gpu:2|gpu:0|(null)|\n"
    (node,) = slurm.parse_report(line, "").queues["low"].nodes
    assert (bool(node.unusable), node.is_taken) == (is_unusable, is_taken)


def test_gpus_in_use_without_a_type_may_be_of_any() -> None:
    line = "low*|up|n1|mixed|0/4/0/4|4000|0|gpu:a100:2,gpu:v100:1|gpu:2|(null)|\n"
    (node,) = slurm.parse_report(line, "").queues["low"].nodes
    assert node.gpus == {"a100": Gpus(2, 2), "v100": Gpus(1, 1)}


@pytest.mark.parametrize("line", ["low* up n1", "low*|up|n1|idle|4|4000|0|gpu:2|gpu:0|(null)|", "a|b|c|"])
def test_what_sinfo_does_not_print_is_an_error(line: str) -> None:
    with pytest.raises(OutletError, match=r"cannot be read"):
        slurm.parse_report(f"{line}\n", "")


def test_slurm_is_asked_about_the_configured_partitions() -> None:
    from dispatcher.hosts.types import Partition

    host = SlurmHost(name="a", cluster="a", partitions=(Partition("gpu"), Partition("b")), cpu_partitions=("b", "cpu"))
    for operation in questions(host, 20, Path()):
        assert "--partition=gpu,b,cpu" in operation.words  # type: ignore[attr-defined]
    assert not any("--partition" in word for asked in questions(SLURM, 20, Path()) for word in asked.words)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["n1"], {"n1"}),
        (["n[1-3,7]"], {"n1", "n2", "n3", "n7"}),
        (["rack[01-02]n3,n9", "x"], {"rack01n3", "rack02n3", "n9", "x"}),
        (["n[098-101]"], {"n098", "n099", "n100", "n101"}),
        ([], set()),
    ],
)
def test_names_of_nodes(names: list[str], expected: set[str]) -> None:
    assert slurm.expand_nodes(names) == expected


@given(st.text(alphabet="n0123[]-,a", max_size=12))
def test_names_of_nodes_never_fail(text: str) -> None:
    assert all(slurm.expand_nodes([text]))


def test_constraints() -> None:
    features = frozenset({"a100", "nvlink"})
    assert all(slurm.has_features(text, features) for text in (None, "a100", "a100&nvlink", "h100|a100"))
    assert not any(slurm.has_features(text, features) for text in ("h100", "a100&ib", "h100|v100"))
    assert slurm.has_features("[rack1*2]", features), "what is not understood excludes nothing"


def pbs_answers() -> list[Ran]:
    return [golden("pbsnodes.json"), golden("qstat_queues.json"), golden("qstat_server.json")]


def test_queues_of_pbs() -> None:
    queues = batch_report(PBS, pbs_answers()).queues
    assert list(queues) == ["workq", "gpuq", "h100q", "old", "stopped"], "a routing queue runs nothing"
    assert {name: (queue.is_default, queue.pending) for name, queue in queues.items()} == {
        "workq": (True, 3),
        "gpuq": (False, 3),
        "h100q": (False, 0),
        "old": (False, 3),
        "stopped": (False, 3),
    }
    assert "enabled" in queues["old"].closed and "started" in queues["stopped"].closed
    assert [node.name for node in queues["workq"].nodes] == ["x1", "x2", "x3", "x4", "c1"]
    assert [node.name for node in queues["gpuq"].nodes] == ["x1", "x2", "x3", "x4", "c1", "q1"]
    assert [node.name for node in queues["h100q"].nodes] == ["x1", "x2", "x3", "x4", "h1", "c1"]


def test_nodes_of_pbs() -> None:
    nodes = {node.name: node for node in batch_report(PBS, pbs_answers()).queues["workq"].nodes}
    x1 = nodes["x1"]
    assert (x1.cpus, x1.free_cpus, x1.memory_mib, x1.free_mib) == (64, 48, 515305, 412905)
    assert x1.gpus == {"A100": Gpus(4, 1)} and not x1.unusable and not x1.is_taken
    assert nodes["x2"].is_taken and not nodes["x2"].unusable
    assert (nodes["x3"].unusable, nodes["x4"].unusable) == ("state-unknown,down", "offline")
    assert nodes["c1"].gpus == {} and nodes["c1"].memory_mib == 16384


@pytest.mark.parametrize("size", ["abc", "-1kb", "1.5gb"])
def test_sizes_that_pbs_does_not_print_are_errors(size: str) -> None:
    nodes = json.loads((GOLDEN / "pbsnodes.json").read_text())
    nodes["nodes"]["x1"]["resources_available"]["mem"] = size
    report = read_report(PBS, [Ran(exit_code=0, out=json.dumps(nodes)), *pbs_answers()[1:]])
    assert isinstance(report, Unreachable) and "not as expected" in report.error


MEMINFO = Ran(exit_code=0, out="MemTotal:       65536000 kB\nMemFree:  1 kB\nMemAvailable:   32768000 kB\n")
NPROC = Ran(exit_code=0, out="16\n")
GPU = GpuInfo(index=0, name="NVIDIA H100 80GB HBM3", uuid="GPU-1")


def test_a_plain_host() -> None:
    assert read_report(PLAIN, [NPROC, MEMINFO, GpuList(gpus=[GPU])]) == PlainReport(
        cpus=16, memory_mib=64000, free_mib=32000, gpus=(GPU,)
    )
    without = read_report(PLAIN, [NPROC, MEMINFO, Failed(error="nvidia-smi is not on PATH of ws1")])
    assert isinstance(without, PlainReport) and (without.gpus, without.no_gpus) == (
        (),
        "nvidia-smi is not on PATH of ws1",
    )


OK = Ran(exit_code=0, out="")
TIMED_OUT = Ran(exit_code=None)
DOWN = Ran(exit_code=1, err="slurm_load_partitions: Unable to contact slurm controller\n  (connect failure)\n")


@pytest.mark.parametrize(
    ("host", "answers", "expected"),
    [
        (
            SLURM,
            [DOWN, OK],
            "sinfo failed with exit status 1: slurm_load_partitions: Unable to contact slurm controller",
        ),
        (SLURM, [OK, DOWN], "squeue failed with exit status 1"),
        (SLURM, [TIMED_OUT, OK], "sinfo did not answer in time"),
        (SLURM, [Failed(error="sinfo: No such file or directory", errno=2), OK], "sinfo: No such file or directory"),
        (PBS, [TIMED_OUT, OK, OK], "pbsnodes -a did not answer in time"),
        (PBS, [Ran(exit_code=0, out="Connection refused"), OK, OK], "printed what is no JSON"),
        (PBS, [Ran(exit_code=0, out="[]"), *pbs_answers()[1:]], "JSON that is not as expected"),
        (PLAIN, [NPROC, OK, GpuList()], "nproc and /proc/meminfo do not show"),
        (PLAIN, [TIMED_OUT, MEMINFO, GpuList()], "nproc did not answer in time"),
        (PLAIN, NoAnswer("ssh ws1: Connection timed out"), "ssh ws1: Connection timed out"),
    ],
)
def test_a_host_that_does_not_answer_is_unreachable(host: Any, answers: Any, expected: str) -> None:
    report: HostReport = read_report(host, answers)
    assert isinstance(report, Unreachable) and expected in report.error


def test_a_word_of_memory_in_pbs() -> None:
    assert [pbs._mib(size) for size in ("1gb", "1gw", 1 << 20, "2048kb")] == [1024, 8192, 1, 2]
