"""A week of kills, sleeps, renamed hosts and other projects: no VM runs for nobody for long."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from outlets.tpu.money import STEP_S, WEEK_S, World, a_week

from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.connection import NoAnswer, Outcome
from dispatcher.outlets.remote.operations import Operation
from dispatcher.outlets.tpu import dead_man, leaving, provisioning, timer

DEAD_AFTER_S = 7200.0
IDLE_DELETE_S = 1800.0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None, int], World]:
    def run_one(dead_after_s: float | None, seed: int) -> World:
        directory = tmp_path / f"{dead_after_s}-{seed}"
        directory.mkdir()
        world = World(directory)
        for module in (provisioning, timer):
            monkeypatch.setattr(module, "boot_time_s", world.clock)
        monkeypatch.setattr(dead_man.time, "monotonic", world.clock)
        monkeypatch.setattr(provisioning, "Program", world.gcloud)
        monkeypatch.setattr(leaving, "Program", world.gcloud)

        def ask(host: TpuHost, operations: Sequence[Operation]) -> Outcome:
            machine = world.machines.get((host.project or "", host.zone, host.name))
            return NoAnswer("it is gone") if machine is None else [machine.answer(one) for one in operations]

        monkeypatch.setattr(leaving, "_ask", ask)
        a_week(world, dead_after_s, random.Random(seed))
        return world

    return run_one


@pytest.mark.parametrize("seed", range(3))
def test_a_week(run: Callable[[float | None, int], World], seed: int) -> None:
    world = run(DEAD_AFTER_S, seed)
    print(f"seed {seed}: {world.count} VMs, {world.request_count} queued resources, cost {world.cost_s:.0f} s")
    print(f"wanted {world.wanted_s:.0f} s, at most {world.longest_unwanted_s:.0f} s in a row unwanted")
    assert world.count > 3 and world.request_count
    assert not world.machines
    assert world.longest_unwanted_s <= DEAD_AFTER_S + IDLE_DELETE_S + 2 * STEP_S
    without = run(None, seed)
    print(f"without a timer: cost {without.cost_s:.0f} s in two weeks")
    assert without.machines, "a VM without a timer is still there a week after its last dispatcher"
    assert without.now_s >= 2 * WEEK_S
