"""A login whose SLURM is another cluster from one day to the next, and sites with several clusters."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from beds.needs import SEARCH_PATH
from beds.slurm import SlurmBed
from fleet import Fleet, shell, wait_until

PATIENCE_S = 120.0
CONFIG = "kill_grace: 1s\nlost_after: 10s\nhosts:\n  hpc: {type: slurm}\n"
GATED = 'echo begun; until [ -e "$DISPATCHER_ROOT/go" ]; do sleep 0.1; done'
PROGRAMS = ("sbatch", "squeue", "scontrol", "sacct", "sinfo", "scancel")
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


def test_the_configured_cluster_is_named_in_every_call(fleet: Fleet, start_slurm: Start, tmp_path: Path) -> None:
    """Also where the modules of the site name another one."""
    """One that SLURM_CLUSTERS does not name would be asked otherwise."""
    alpha = start_slurm(cluster="alpha", nodes=1, accounting=True)
    shims, calls = tmp_path / "shims", tmp_path / "calls"
    shims.mkdir()
    calls.touch()
    for name in PROGRAMS:
        line = f'echo "{name} ${{SLURM_CLUSTERS-none}} $*" >>{calls}'
        (shims / name).write_text(f'#!/bin/sh\n{line}\nexec {shutil.which(name, path=SEARCH_PATH)} "$@"\n')
        (shims / name).chmod(0o755)
    fleet.variables = {**alpha.env, "PATH": f"{shims}:{os.environ['PATH']}", "SLURM_CLUSTERS": "nowhere"}
    fleet.write_config(CONFIG.replace("slurm}", "slurm, clusters: alpha}"))
    fleet.write_manifest([shell("a", GATED, gpus=0), shell("c", "true", gpus=0)])
    pod = fleet.start("pod1", "--slots", "0", "--outlet", "hpc:3", "--until-empty", poll="1")
    fleet.wait_for("a", "running", timeout_s=PATIENCE_S)
    file = json.loads(fleet.attempt("a").submission.read_text())
    assert file["location"] == {"parts": {"cluster": "alpha"}, "via": {"clusters": "alpha"}}
    fleet.run("cancel", "a")
    assert pod.end(PATIENCE_S) == 0, pod.said
    assert (fleet.record("a").state, fleet.record("c").state) == ("abandoned", "done")
    made = calls.read_text().splitlines()
    # Those of the batch scripts are made in their own cluster.
    named = [line for line in made if "--clusters=alpha" in line or line.split()[1] == "alpha"]
    assert [line for line in made if line not in named and "show job --oneliner" not in line] == []
    assert {line.split()[0] for line in named} >= {"sbatch", "squeue", "scontrol", "sinfo", "scancel"}


def test_what_the_modules_of_a_site_set_counts_unless_something_else_is_configured(
    fleet: Fleet, start_slurm: Start
) -> None:
    alpha = start_slurm(cluster="alpha", nodes=1)
    fleet.variables = {**alpha.env, "SBATCH_PARTITION": "high"}
    fleet.write_config(
        CONFIG
        + "  low: {type: slurm, partitions: [low]}\n"
        + "methods:\n  m: {command: [bash, -c, 'echo $SLURM_JOB_PARTITION']}\n"
    )
    fleet.write_manifest(
        [{"job_id": "a", "method": "m", "outlet": "hpc"}, {"job_id": "b", "method": "m", "outlet": "low"}]
    )
    fleet.run_all("--slots", "0", "--outlet", "hpc:1", "--outlet", "low:1", poll="1")
    assert (fleet.output("a"), fleet.output("b")) == ("high\n", "low\n")
