"""A wrapper that stands still (SIGSTOP) keeps no time limit: its dispatcher does."""

from __future__ import annotations

import os
import signal

import pytest
from clocks import UptimeClock
from fleet import Fleet, shell

# In each test no time passes for the wrappers, so that none keeps its limit before it is stopped.
LONG = "echo begun; sleep 600"
# Whoever lets the wrapper go on finds it stopped again.
STUBBORN = """
trap '' TERM
read -r _ wrapper <"$DISPATCHER_ATTEMPT_DIR/taken"
echo begun
while :; do kill -STOP "$wrapper"; sleep 0.01; done
"""


def stop_wrapper(fleet: Fleet, job: str) -> int:
    pid = fleet.wait_running(job)
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_its_time_limit_is_kept(fleet: Fleet) -> None:
    UptimeClock(fleet.layout)
    fleet.write_manifest([shell("a", LONG, time_limit="2s"), shell("b", "true")])
    pod = fleet.start("pod", "--until-empty", poll="600")
    stop_wrapper(fleet, "a")
    assert pod.end() == 1
    record = fleet.record("a")
    assert (record.state, record.reason, record.attempt) == ("failed", "time limit", 1)
    assert fleet.exit_file("a")["reason"] == "time limit"
    assert fleet.record("b").state == "done", "its slot is still taken"
    assert fleet.pids() == {}


def test_a_restarted_dispatcher_knows_the_limit_that_it_was_started_with(fleet: Fleet) -> None:
    UptimeClock(fleet.layout)
    fleet.write_config("methods: {m: {time_limit: 2s}}\n")
    fleet.write_manifest([shell("a", LONG)])
    first = fleet.start()
    stop_wrapper(fleet, "a")
    first.kill()
    fleet.write_config("methods: {m: {time_limit: 10h}}\n")
    fleet.write_manifest([shell("a", LONG, time_limit="10h")])
    second = fleet.start("pod", "--until-empty", poll="600")
    second.says("found a (attempt 1) again")
    assert second.end() == 1
    assert fleet.record("a").reason == "time limit"


def test_one_that_is_stopped_again_and_again_is_killed(fleet: Fleet) -> None:
    UptimeClock(fleet.layout)
    fleet.write_config("kill_grace: 1s\n")
    fleet.write_manifest([shell("a", STUBBORN, time_limit="1s")])
    assert fleet.start("pod", "--until-empty", poll="600").end() == 1
    record = fleet.record("a")
    assert (record.reason, record.exit_code) == ("time limit", 137)
    assert fleet.pids() == {}


@pytest.mark.parametrize("word", ["cancel", "hold"])
def test_what_a_person_asks_for_is_done(fleet: Fleet, word: str) -> None:
    fleet.write_manifest([shell("a", LONG)])
    fleet.start("pod", poll="600")
    stop_wrapper(fleet, "a")
    fleet.run(word, "a")
    fleet.wait_for("a", {"cancel": "abandoned", "hold": "held"}[word])
