"""A login whose SLURM is another cluster from one day to the next, and sites with several clusters."""

from __future__ import annotations

import json
from collections.abc import Callable

from beds.slurm import SlurmBed
from fleet import Fleet, shell, wait_until

PATIENCE_S = 120.0
CONFIG = "kill_grace: 1s\nlost_after: 10s\nhosts:\n  hpc: {type: slurm}\n"
GATED = 'echo begun; until [ -e "$DISPATCHER_ROOT/go" ]; do sleep 0.1; done'
Start = Callable[..., SlurmBed]


def test_an_attempt_in_the_other_cluster_is_neither_lost_nor_run_again(fleet: Fleet, start_slurm: Start) -> None:
    alpha, beta = start_slurm(cluster="alpha", nodes=1), start_slurm(cluster="beta", nodes=1)
    fleet.write_config(CONFIG)
    fleet.write_manifest([shell("a", GATED, gpus=0), shell("b", "true", gpus=0)])
    words = ("--slots", "0", "--outlet", "hpc:1")
    fleet.variables = alpha.env
    first = fleet.start("pod1", *words, poll="1")
    fleet.wait_for("a", "running", timeout_s=PATIENCE_S)
    file = json.loads(fleet.attempt("a").submission.read_text())
    assert file["location"] == {"parts": {"cluster": "alpha"}}
    first.kill()

    fleet.variables = beta.env
    second = fleet.start("pod2", *words, poll="1")
    # It runs what it can, and by then has looked for the other one as well.
    fleet.wait_for("b", "done", timeout_s=PATIENCE_S)
    why = "it was submitted to cluster alpha, and hpc leads to cluster beta now"
    wait_until(lambda: why in fleet.run("pods"), "it is shown where the attempt is", PATIENCE_S)
    fleet.run("cancel", "a")
    again = fleet.start("pod1", *words, poll="1").ready()
    fleet.wait_for("b", "done")
    assert fleet.record("a").state == "running"
    for dispatcher in (second, again):
        dispatcher.kill()

    fleet.variables = alpha.env
    third = fleet.start("pod3", "--until-empty", *words, poll="1")
    assert third.end(PATIENCE_S) == 0, third.said
    assert (fleet.record("a").state, fleet.record("a").attempt) == ("abandoned", 1), "the one that was asked for"
    assert json.loads(fleet.attempt("a").exit.read_text())["exit_code"] == 143
