"""Jobs held to the memory and the CPUs that they ask for, in a kernel with cgroup version 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .fixtures import skip_without
from .guest import run_in_guest

TRIAL = Path(__file__).with_name("cgroup_trial.py")


@pytest.mark.slow
def test_a_job_that_takes_too_much_memory_is_killed_and_its_neighbour_lives() -> None:
    skip_without("guest")
    status, log = run_in_guest(TRIAL, limit_s=240)
    assert status == 0, log
    found = json.loads(log.splitlines()[-1])
    jobs = found["jobs"]
    assert (jobs["greedy"]["state"], jobs["greedy"]["reason"]) == ("failed", "out of memory"), log
    assert found["greedy"]["exit_code"] == 137
    assert "killed by its memory limit, 32M" in jobs["greedy"]["error"]
    assert (jobs["neighbour"]["state"], jobs["neighbour"]["attempt"]) == ("done", 1), log
    assert found["logs"]["neighbour"] == ["200000 100000"], "its cpu.max"
    assert found["pod"] == "0::/lab/dispatcher"
    assert found["logs"]["unlimited"] == ["/lab/dispatcher"]
    assert found["notes"] == found["notes_again"] == [], "nothing is said not to be enforced"
    assert found["limit_again"] == str(32 << 20), "the limit holds without its dispatcher"
    assert found["left"] == [], log
    why, own, *left = found["shared"]
    assert why.startswith("/sys/fs/cgroup/shared has other processes in it (pid "), why
    assert (own, left) == ("0::/shared", []), "it is where it was, and has left nothing"
