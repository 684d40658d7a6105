"""The ledger of attempts on a cluster: they count for as long as they ran there, with their GPUs, by how they ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from beds.slurm import SlurmBed
from fleet import Fleet, shell

CONFIG = "hosts: {hpc: {type: slurm}}\n"
# What the job itself says of its times.
BEGUN = 'cd "$DISPATCHER_ATTEMPT_DIR"; echo "$EPOCHREALTIME" >begun; trap \'echo "$EPOCHREALTIME" >ended\' EXIT'
STAYS = f"{BEGUN}; sleep 600 & trap 'kill $!; exit 75' TERM; wait"
GRACE_S = 20
# Between the wrapper and the job are a few programs, which a busy machine starts slowly.
AROUND_S = 1.5


def ran_s(fleet: Fleet, job: str, number: int = 1) -> float:
    begun, ended = (float(Path(fleet.attempt(job, number).directory, name).read_text()) for name in ("begun", "ended"))
    return ended - begun


def adds_up(found: dict[str, Any], kind: str, attempts: Sequence[float]) -> bool:
    """Whether so long attempts with a GPU each are this kind of time."""
    return 0 <= found[kind]["gpus"] * 3600 - sum(attempts) < AROUND_S * len(attempts)


@pytest.mark.slow
def test_attempts_count_for_as_long_as_they_ran(
    start_slurm: Callable[..., SlurmBed], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = start_slurm(nodes=1, grace_s=GRACE_S)
    monkeypatch.setenv("SLURM_CONF", str(bed.conf))
    fleet = Fleet(bed.directory / "work" / "lab")
    fleet.write_config(CONFIG)
    # Shorter than the time between two polls; one that does not say gets a GPU.
    fleet.write_manifest([
        shell("done", f"{BEGUN}; sleep 2"), shell("failed", f"{BEGUN}; sleep 1; exit 3", gpus=1),
        shell("cancelled", STAYS, gpus=1), shell("preempted", STAYS, gpus=1),
    ])  # fmt: skip
    try:
        pod = fleet.start("pod", "--outlet", "hpc", "--slots", "8", poll="4")
        fleet.wait_for("cancelled", "running")
        fleet.wait_for("preempted", "running")
        fleet.wait_for("done", "done")
        fleet.wait_for("failed", "failed")
        fleet.run("cancel", "cancelled")
        fleet.wait_for("cancelled", "abandoned")
        bed.submit("#!/bin/sh\nsleep 4", "--partition=high", "--gpus=4")
        # It waits in the queue of SLURM meanwhile.
        fleet.wait_for("preempted", "running", attempt=2)
        fleet.run("cancel", "preempted")
        fleet.wait_for("preempted", "abandoned", attempt=2)
        pod.stop()
        account = json.loads(fleet.run("usage", "--by", "job_id", "--json"))
    finally:
        fleet.close()
    hours = {row["values"]["job_id"]: row["hours"] for row in account["rows"]}
    assert set(hours) == {"done", "failed", "cancelled", "preempted"}, account
    assert adds_up(hours["done"], "useful", [ran_s(fleet, "done")]), account
    assert adds_up(hours["failed"], "failed", [ran_s(fleet, "failed")]), account
    assert adds_up(hours["cancelled"], "cancelled", [ran_s(fleet, "cancelled")]), account
    assert adds_up(hours["preempted"], "preempted", [ran_s(fleet, "preempted")]), account
    assert adds_up(hours["preempted"], "cancelled", [ran_s(fleet, "preempted", 2)]), account
    kinds = [kinds for job in hours.values() for kind, kinds in job.items() if kind != "total"]
    assert sum(one["gpus"] for one in kinds) == pytest.approx(account["total"]["total"]["gpus"])
    assert account["check"]["hosts"] == pytest.approx(account["total"]["total"])
    assert account["check"]["left_over"] == pytest.approx({"slots": 0, "gpus": 0})
