"""What node.sh tells of an attempt's GPUs: for how long all of them are at 0 %, and nothing that is not certain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import wait_until
from node_trials import Node, Run

from dispatcher import contract
from dispatcher.outlets.local import processes
from dispatcher.outlets.node.script import GpuWatch

# Refuses what the real one refuses. It counts its calls.
SMI = """#!/bin/bash
here=${0%/*}
[[ $* == "--query-gpu=index,uuid,utilization.gpu --format=csv,noheader,nounits" ]] || exit 1
echo >>"$here/calls"
[[ ! -e $here/hangs ]] || exec sleep 987
cat "$here/use"
"""
FOUR_IDLE = ("0", "0", "0", "0")


class WatchedNode(Node):
    """A node with a driver, and one attempt that waits until it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.driver = folder / "driver"
        self.driver.mkdir()
        (self.driver / "nvidia-smi").write_text(SMI)
        (self.driver / "nvidia-smi").chmod(0o755)
        self.path.append(self.driver)

    def busy(self, *percent: str) -> None:
        rows = "".join(f"{index}, GPU-{index}aa, {value}\n" for index, value in enumerate(percent))
        (self.driver / "use.new").write_text(rows)
        (self.driver / "use.new").rename(self.driver / "use")

    def begin(self, gpus: int = 1, **outside: str) -> Run:
        script = f"until [ -e '{self.folder}/go' ]; do sleep 0.02; done"
        watch = GpuWatch(gpus=gpus, interval_s=0.1)
        return self.start(script, watch=watch, outside=outside)

    def calls(self) -> int:
        path = self.driver / "calls"
        return len(path.read_text()) if path.exists() else 0

    def calls_more(self, count: int = 3) -> None:
        wanted = self.calls() + count
        wait_until(lambda: self.calls() >= wanted, "the driver is asked again")


def told(one: Run) -> dict[str, float]:
    path = one.directory / contract.GPU_USE_FILE
    return json.loads(path.read_text() or "{}") if path.exists() else {}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WatchedNode]:
    made = WatchedNode(tmp_path)
    made.environment.pop("CUDA_VISIBLE_DEVICES", None)
    yield made
    made.close()


def test_only_its_own_gpus_count(node: WatchedNode) -> None:
    """By index, or by the beginning of a UUID."""
    node.busy("90", "0", "0", "90")
    one = node.begin(2, CUDA_VISIBLE_DEVICES="1,GPU-2")
    idle = wait_until(lambda: (now := told(one)).get("idle_s", 0) >= 2 and now, "both are idle")
    assert idle["gpus"] == 2
    node.busy("0", "0", "1", "0")
    used = wait_until(lambda: told(one).get("idle_s") == 0 and told(one), "one of them is in use")
    node.calls_more()
    # While it is written, the file is empty.
    wait_until(lambda: told(one).get("samples", 0) > used["samples"], "another sample")
    assert one.process.poll() is None
    (node.folder / "go").touch()
    assert one.ended().status == 0


@pytest.mark.parametrize(
    "percent, gpus, outside",
    [
        pytest.param(("0", "5"), 1, {}, id="one of two, nobody knows which"),
        pytest.param(("[N/A]",), 1, {"CUDA_VISIBLE_DEVICES": "0"}, id="MIG"),
        pytest.param(("[Not Supported]", "0"), 2, {}, id="an old driver"),
        pytest.param(("0",), 1, {"CUDA_VISIBLE_DEVICES": "MIG-0aa"}, id="a part of a GPU"),
        pytest.param(("0",), 2, {}, id="fewer than it was given"),
    ],
)
def test_what_is_not_certain_is_not_told(
    node: WatchedNode, percent: tuple[str, ...], gpus: int, outside: dict[str, str]
) -> None:
    node.busy(*percent)
    one = node.begin(gpus, **outside)
    node.calls_more()
    assert told(one) == {}


def test_all_gpus_of_the_node_at_0_include_those_that_it_was_given(node: WatchedNode) -> None:
    node.busy(*FOUR_IDLE)
    one = node.begin(1)
    assert wait_until(lambda: told(one), "it is told")["gpus"] == 1
    # Whose this is, is not known.
    node.busy("0", "0", "0", "9")
    node.calls_more()
    before = told(one)
    node.calls_more()
    assert told(one) == before


@pytest.mark.parametrize(
    "outside", [{"SLURM_NNODES": "2"}, {"DISPATCHER_NUM_PROCESSES": "2"}, {"DISPATCHER_PROCESS_ID": "1"}]
)
def test_of_several_nodes_each_knows_only_itself(node: WatchedNode, outside: dict[str, str]) -> None:
    node.busy("0")
    one = node.begin(1, **outside)
    one.says("")
    (node.folder / "go").touch()
    assert one.ended().status == 0
    assert (told(one), node.calls()) == ({}, 0)


def test_a_driver_that_hangs_holds_up_no_end(node: WatchedNode) -> None:
    node.busy("0")
    one = node.begin(1)
    assert wait_until(lambda: told(one), "it is told")
    (node.driver / "hangs").touch()
    node.calls_more(1)
    (node.folder / "go").touch()
    assert one.ended().status == 0
    # The wrapper ends what the attempt leaves in its group.
    one.tell_group()
    wait_until(lambda: not processes.of_attempt(one.directory), "nothing of it is left")


def test_it_ends_with_the_script_that_was_killed(node: WatchedNode) -> None:
    node.busy("0")
    one = node.begin(1)
    assert wait_until(lambda: told(one), "it is told")
    one.process.kill()
    (node.folder / "go").touch()
    wait_until(lambda: not processes.of_attempt(one.directory), "nothing of it is left")
