"""Hosts whose clocks are hours ahead or behind: nobody waits for them, and durations are what they were."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fleet import Fleet, shell

from dispatcher.base.times import parse_time
from dispatcher.run_state.journal import now_text

HOURS_S = 6 * 3600
CONFIG = "heartbeat: 0.5s\nlost_after: 3s\nmethods:\n  m: {retries: 1, backoff: 0.2s}\n"
GATED = "echo begun; until [ -e go ]; do sleep 0.02; done"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (gcc or cc) to build a clock that is wrong")
    made = tmp_path_factory.mktemp("clock") / "shifted_clock.so"
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


@pytest.fixture(params=[HOURS_S, -HOURS_S], ids=["ahead", "behind"])
def wrong(request: pytest.FixtureRequest, library: Path) -> Mapping[str, str]:
    """The environment of processes on a host whose clock is wrong."""
    return {"LD_PRELOAD": str(library), "CLOCK_SHIFT_S": str(request.param)}


def told(fleet: Fleet, *words: str, **environment: str) -> Any:
    return json.loads(fleet.run(*words, "--json", **environment))


def test_a_retry_that_another_host_has_set(fleet: Fleet, wrong: Mapping[str, str]) -> None:
    fleet.write_config(CONFIG)
    fleet.write_manifest([shell("a", "[ -e again ] || { touch again; exit 1; }")])
    assert fleet.start("wrong", "--max-jobs", "1", **wrong).end() == 0
    assert fleet.record("a").state == "queued"
    pod = fleet.start("right", "--until-empty")
    assert pod.end() == 0, "it waits no longer than the pause"
    assert fleet.record("a").state == "done"


def test_what_runs_is_shown_by_the_clock_of_its_host(fleet: Fleet, wrong: Mapping[str, str]) -> None:
    fleet.write_config(CONFIG)
    fleet.write_manifest([shell("a", GATED), shell("b", "true")])
    pod = fleet.start("wrong", "--slots", "2", **wrong)
    fleet.wait_running("a")
    fleet.wait_for("b", "done")
    for environment in ({}, wrong):
        jobs = {row["job"]: row for row in told(fleet, "status", **environment)["jobs"]}
        assert 0 <= jobs["a"]["elapsed_s"] < 600
        assert 0 <= told(fleet, "pods", **environment)[0]["up_s"] < 600
        account = told(fleet, "usage", **environment)
        assert 0 < account["total"]["total"]["slots"] < 2 * 600 / 3600, "two slots"
    (fleet.root / "go").touch()
    assert pod.stop() == 0


def test_an_attempt_whose_end_another_host_finds(fleet: Fleet, wrong: Mapping[str, str]) -> None:
    fleet.write_config(CONFIG)
    fleet.write_manifest([shell("ended", GATED), shell("killed", GATED)])
    pod = fleet.start("wrong", "--slots", "2", **wrong)
    fleet.wait_running("ended")
    pid = fleet.wait_running("killed")
    pod.kill()
    os.killpg(pid, 9)
    (fleet.root / "go").touch()
    fleet.wait_gone("ended")
    assert fleet.start("right", "--until-empty", poll="0.2").end() == 0
    record = fleet.record("ended")
    began, ended = parse_time(record.started_at), parse_time(record.finished_at)
    assert began is not None and ended is not None and 0 <= ended - began < 600
    lost = next(line for line in fleet.history("killed") if line.event == "auto_requeued")
    claimed = next(line for line in fleet.history("killed") if line.event == "claimed")
    seen, begun = parse_time((lost.data or {}).get("last_seen_at")), parse_time(claimed.at)
    assert seen is not None and begun is not None and 0 <= seen - begun < 600


def test_a_clock_that_is_set_while_a_job_runs(fleet: Fleet) -> None:
    """The wrapper counts the time itself: the record begins that long before its end."""
    fleet.write_manifest([shell("a", f"{GATED}; sleep 1")])
    pod = fleet.start("pod")
    fleet.wait_running("a")
    pod.kill()
    (fleet.root / "go").touch()
    fleet.wait_gone("a")
    document = fleet.exit_file("a")
    # As it would be had the clock been set back by six hours meanwhile.
    before_s = (parse_time(document["ended_at"]) or 0.0) - HOURS_S
    fleet.attempt("a").exit.write_text(json.dumps({**document, "ended_at": now_text(before_s)}) + "\n")
    assert fleet.start("pod", "--until-empty", poll="0.2").end() == 0
    record = fleet.record("a")
    assert (parse_time(record.finished_at) or 0.0) - (parse_time(record.started_at) or 0.0) == pytest.approx(
        document["ran_s"], abs=0.01
    )
