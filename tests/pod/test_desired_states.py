"""What people want of entries, also of those that run: by an editor, by a script, by command."""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

import pytest
from fleet import Fleet, shell, wait_until

from dispatcher.query.changes import what_happened
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import Record, State

LONG = "echo begun; sleep 600"
# Only KILL ends it.
STUBBORN = "trap '' TERM; echo begun; while :; do sleep 0.05; done"


def edit(fleet: Fleet, job: str, how: str = "dump", **fields: Any) -> None:
    """Change a line as people do: the lab's snippet word for word, or an editor that renames."""
    file = fleet.layout.status_file
    found = json.load(open(file))  # noqa: SIM115 - as the lab writes it
    found[job].update(fields)
    if how == "dump":
        json.dump(found, open(file, "w"))  # noqa: SIM115
    else:
        temporary = file.with_name("matrix_status.json~")
        temporary.write_text(json.dumps(found, indent=2))
        os.replace(temporary, file)


@pytest.mark.parametrize("how", ["dump", "rename"])
@pytest.mark.parametrize(("state", "then"), [("queued", "running"), ("abandoned", "abandoned"), ("held", "held")])
def test_a_running_entry_is_stopped_by_hand_at_once(fleet: Fleet, how: str, state: str, then: str) -> None:
    fleet.write_manifest([shell("a", LONG)])
    fleet.start("pod", poll="600")
    pid = fleet.wait_running("a")
    wait_until(lambda: fleet.status()["a"].get("pid") == pid, "the status file shows the pid")
    edit(fleet, "a", how, state=state)
    if state == "queued":
        fleet.wait_running("a", 2)
    # Long before the poll interval is over.
    record = fleet.wait_for("a", then)
    assert record.desired is None
    fleet.wait_gone("a", 1)
    assert record.attempt == (2 if state == "queued" else 1)
    assert fleet.exit_file("a", 1)["exit_code"] == 143
    if then == "running":
        fleet.run("cancel", "a")


@pytest.mark.parametrize(("verb", "then"), [("requeue", "running"), ("cancel", "abandoned"), ("hold", "held")])
def test_a_running_entry_is_stopped_by_command(fleet: Fleet, verb: str, then: str) -> None:
    fleet.write_manifest([shell("a", LONG), shell("b", "true")])
    fleet.start("pod", "--max-jobs", "3", poll="600")
    fleet.wait_running("a")
    fleet.run(verb, "a")
    if verb == "requeue":
        fleet.wait_running("a", 2)
        fleet.run("cancel", "a")
        then = "abandoned"
    fleet.wait_for("a", then)
    # Its slot is free again.
    fleet.wait_for("b", "done")


@pytest.mark.parametrize("was_asked_before", [True, False])
def test_a_running_entry_is_killed_by_command(fleet: Fleet, was_asked_before: bool) -> None:
    fleet.write_config("kill_grace: 1h")
    fleet.write_manifest([shell("a", STUBBORN)])
    fleet.start("pod", poll="600")
    fleet.wait_running("a")
    if was_asked_before:
        fleet.run("cancel", "a")
        assert not fleet.record("a").force
    assert fleet.run("cancel", "--force", "a") == "a: stop requested\n"
    record = fleet.wait_for("a", "abandoned")
    assert (record.reason, record.exit_code, record.desired, record.force) == ("stopped on request", None, None, False)
    fleet.wait_gone("a", 1)


def test_a_second_request_to_kill_says_what_is_left_and_is_carried_out(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", STUBBORN)])
    first = fleet.start("pod")
    fleet.wait_running("a")
    first.kill()
    assert fleet.run("cancel", "--force", "a").startswith("a: stop requested\n")
    rev = fleet.record("a").rev
    again = fleet.run("cancel", "--force", "a")
    assert re.match(
        r"a: stop requested again: its kill was requested at [0-9:]+ \([0-9]+ s ago\), and no pod has recorded "
        rf"yet that attempt 1 has ended on {re.escape(str(fleet.record('a').host))}\n",
        again,
    )
    assert fleet.record("a").rev > rev
    fleet.start("pod")
    fleet.wait_for("a", "abandoned")
    fleet.wait_gone("a", 1)


def test_what_a_scheduler_has_not_told_is_named() -> None:
    record = Record(state=State.RUNNING, force=True, outlet="hpc", handle="4711", host="n1", pod="pod", attempt=2)
    told = what_happened(Event.REQUESTED, record, now_text(time.time() - 90))
    assert "(1 min ago), and hpc does not report yet that 4711 has ended on n1" in told


def test_what_a_dead_dispatcher_left_is_killed_by_command(fleet: Fleet) -> None:
    fleet.write_config("kill_grace: 1h")
    fleet.write_manifest([shell("a", STUBBORN), shell("b", "true", needs=["a"])])
    first = fleet.start("first")
    fleet.wait_running("a")
    first.kill()
    fleet.run("cancel", "a")
    fleet.start("second", poll="0.3")
    fleet.run("cancel", "--force", "a")
    fleet.wait_for("a", "abandoned")
    fleet.wait_gone("a")
    fleet.run("cancel", "b")


def test_a_held_entry_waits_until_it_is_queued(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), shell("b", "true"), shell("gate", LONG, priority=1)])
    fleet.start("pod", poll="600")
    fleet.wait_running("gate")
    edit(fleet, "a", state="held")
    fleet.wait_for("a", "held")
    fleet.run("cancel", "gate")
    fleet.wait_for("b", "done")
    assert fleet.record("a").attempt == 0
    edit(fleet, "a", state="queued")
    fleet.wait_for("a", "done")


def test_priority_by_hand(fleet: Fleet) -> None:
    fleet.write_manifest([shell("gate", LONG), *(shell(job, "true") for job in "abc")])
    fleet.start("pod", "--max-jobs", "4", poll="600")
    fleet.wait_running("gate")
    edit(fleet, "c", priority=5)
    wait_until(lambda: fleet.record("c").priority == 5, "the priority is taken in")
    fleet.run("cancel", "gate")
    fleet.wait_for("b", "done")
    assert fleet.claimed() == ["gate", "c", "a", "b"]


def test_a_failed_entry_is_queued_by_hand(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "test -e repaired")])
    fleet.start("pod", poll="600")
    fleet.wait_for("a", "failed")
    wait_until(lambda: fleet.status()["a"]["state"] == "failed", "the status file shows it")
    (fleet.root / "repaired").touch()
    edit(fleet, "a", state="queued", note="check LR")
    record = fleet.wait_for("a", "done")
    assert record.extra == {"note": "check LR"}
    wait_until(lambda: fleet.status()["a"].get("note") == "check LR", "the status file keeps the note")


def test_an_edit_that_cannot_be_used_is_refused_and_said(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", LONG)])
    fleet.start("pod", poll="600")
    fleet.wait_running("a")
    wait_until(lambda: fleet.status()["a"].get("pid"), "the status file shows the pid")
    edit(fleet, "a", state="quued")
    wait_until(lambda: any(line.event == "refused" for line in fleet.history()), "the edit is refused")
    said = fleet.try_("status")
    assert "did you mean 'queued'" in said.stdout + said.stderr
    assert fleet.record("a").state == "running"
    assert list(fleet.layout.rejected_dir.iterdir())
    fleet.run("cancel", "a")


def test_a_half_written_file_stops_nothing(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true"), shell("gate", LONG, priority=1)])
    pod = fleet.start("pod", poll="600")
    fleet.wait_running("gate")
    wait_until(lambda: fleet.status()["gate"].get("pid"), "the status file shows the pid")
    whole = fleet.layout.status_file.read_bytes()
    broken = whole[: len(whole) // 2]
    fleet.layout.status_file.write_bytes(broken)
    pod.says("matrix_status.json")
    fleet.run("cancel", "gate")
    fleet.wait_for("a", "done")
    assert fleet.layout.status_file.read_bytes() == broken
    fleet.layout.status_file.write_bytes(whole)
    wait_until(lambda: fleet.status()["a"]["state"] == "done", "the repaired file is brought up to date")


def test_stopping_what_a_dead_dispatcher_left(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", LONG)])
    first = fleet.start("first")
    fleet.wait_running("a")
    first.kill()
    fleet.run("cancel", "a")
    fleet.write_manifest([shell("b", "true")], "other.json")
    fleet.start("second", "--matrix", "other.json", poll="0.3")
    fleet.wait_for("a", "abandoned")
    fleet.wait_gone("a")
