"""A pod with two outlets at once: its own slots and a batch queue, in the loop that people run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import commands
import pytest
import queue_outlet
from fleet import COMMAND, MAIN, PATIENCE_S, Dispatcher, Fleet, shell, wait_until
from queue_outlet import QueueOutlet

from dispatcher.base.host import host_name
from dispatcher.config import load_config
from dispatcher.outlets.base import (
    CANNOT_START,
    Ended,
    Key,
    Orphan,
    Pending,
    Placement,
    Report,
    Slot,
    Unknown,
)
from dispatcher.outlets.context import PodContext
from dispatcher.pod.recover import Recovery
from dispatcher.pod.running_attempts import RunningAttempts
from dispatcher.run_state.liveness import read_pod
from dispatcher.run_state.observer import Observer

TESTS = Path(queue_outlet.__file__).parent
WITH_QUEUE = (
    f"import sys; sys.path.insert(0, {os.fspath(TESTS)!r}); import queue_outlet; queue_outlet.register(); {MAIN}"
)
GATED = "echo begun >>begun; until [ -e go ]; do sleep 0.02; done"


@pytest.fixture
def queue(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a queue that dispatchers of this fleet have besides their own slots."""
    for name, value in queue_outlet.install(tmp_path / "programs").items():
        monkeypatch.setenv(name, value)
    fleet.command = [sys.executable, "-P", "-c", WITH_QUEUE]
    return tmp_path / "programs" / "queue"


def begun(fleet: Fleet) -> int:
    path = fleet.root / "begun"
    return len(path.read_text().splitlines()) if path.exists() else 0


def notes(fleet: Fleet, pod: str = "pod") -> list[str]:
    info = read_pod(fleet.layout, pod)
    return [] if info is None else info.notes


def noted(fleet: Fleet, pod: str = "pod") -> bool:
    pattern = r"outlet queue: there unknown: q(submit|stat) has failed \(since 20\S+Z\)"
    return any(re.fullmatch(pattern, note) for note in notes(fleet, pod))


def start(fleet: Fleet, pod: str = "pod", *words: str) -> Dispatcher:
    return fleet.start(pod, *words, poll="0.2")


def test_each_entry_runs_where_it_asks_to(fleet: Fleet, queue: Path) -> None:
    fleet.write_manifest(
        [
            shell("here", "true", outlet="local"),
            shell("there", "echo said; exit 3", outlet="queue"),
            shell("either", "true", needs=["here"]),
        ]
    )
    pod = start(fleet, "pod", "--until-empty")
    assert pod.end() == 1
    records = fleet.records()
    assert {job: record.state for job, record in records.items()} == {
        "here": "done",
        "there": "failed",
        "either": "done",
    }
    assert (records["here"].outlet, records["there"].outlet) == ("local", "queue")
    there = records["there"]
    assert (there.exit_code, there.reason, there.host) == (3, "exit 3", host_name())
    assert (there.handle, there.code) == ("1", "0123456789ab+dirty 0123456789ab")
    assert records["here"].code is None
    assert fleet.output("there") == "said\n"
    assert "submit there (attempt 1) to queue" in pod.said
    assert "start here (attempt 1) on cpu, pid " in pod.said


def test_a_pod_without_slots_of_its_own(fleet: Fleet, queue: Path) -> None:
    """What it needs is an outlet, not a GPU or a CPU slot."""
    fleet.write_manifest([shell("there", "true", outlet="queue"), shell("here", "true", outlet="local")])
    pod = start(fleet, "pod", "--until-empty", "--slots", "0")
    assert pod.end() == 1
    assert "1 job left that this pod cannot run: asks for outlet local, this pod offers queue" in pod.said
    assert {job: record.state for job, record in fleet.records().items()} == {"there": "done", "here": "queued"}
    assert "200 submissions to the queue; " in pod.said
    fleet.command = COMMAND
    refused = start(fleet, "other", "--slots", "0")
    assert refused.end() == 2
    assert "a pod needs slots: --gpus 0,1,2,3 for GPUs" in refused.said


def test_a_submitted_entry_is_pending_before_it_runs(fleet: Fleet, queue: Path) -> None:
    (queue / "hold").touch()
    fleet.write_manifest([shell("there", GATED, outlet="queue"), shell("here", "true", outlet="local")])
    pod = start(fleet, "pod", "--until-empty")
    fleet.wait_for("there", "submitted")
    wait_until(lambda: fleet.record("there").handle == "1", "the handle is recorded")
    assert fleet.record("there").state == "submitted"
    assert fleet.record("there").pid is None
    fleet.wait_for("here", "done")
    (queue / "hold").unlink()
    assert fleet.wait_for("there", "running").host == host_name()
    (fleet.root / "go").touch()
    assert pod.end() == 0
    assert fleet.record("there").state == "done"
    events = fleet.events("there")
    assert events[:3] == ["queued", "claimed", "submitted"]
    assert events[-2:] == ["started", "done"]


def test_a_queue_that_is_away_does_not_hold_up_the_own_slots(fleet: Fleet, queue: Path) -> None:
    (queue / "away").touch()
    own = [shell(f"own{number}", "true", outlet="local") for number in range(5)]
    fleet.write_manifest([shell("there", "true", outlet="queue"), *own])
    pod = start(fleet, "pod", "--until-empty")
    for number in range(5):
        fleet.wait_for(f"own{number}", "done")
    assert fleet.record("there").state == "submitted"
    wait_until(lambda: noted(fleet), "the pod's file tells that the queue does not answer")
    (queue / "away").unlink()
    assert pod.end() == 0
    assert fleet.record("there").state == "done"


def test_a_restarted_dispatcher_finds_both_again(fleet: Fleet, queue: Path) -> None:
    fleet.write_manifest([shell("here", GATED, outlet="local"), shell("there", GATED, outlet="queue")])
    first = start(fleet)
    fleet.wait_for("there", "running")
    wait_until(lambda: begun(fleet) == 2, "both have begun")
    first.kill()
    again = start(fleet, "pod", "--until-empty")
    again.says("found here (attempt 1) again")
    again.says("found there (attempt 1) again")
    (fleet.root / "go").touch()
    assert again.end() == 0
    assert {job: (record.state, record.attempt) for job, record in fleet.records().items()} == {
        "here": ("done", 1),
        "there": ("done", 1),
    }
    assert begun(fleet) == 2


def test_only_a_pod_with_the_outlet_recovers_an_attempt(fleet: Fleet, queue: Path) -> None:
    with_queue = fleet.command
    fleet.write_manifest([shell("there", GATED, outlet="queue"), shell("own", "true", outlet="local", needs=["there"])])
    first = start(fleet, "first")
    fleet.wait_for("there", "running")
    wait_until(lambda: begun(fleet) == 1, "it has begun")
    first.kill()
    (fleet.root / "go").touch()
    fleet.wait_gone("there")
    fleet.command = COMMAND
    without = fleet.start("without", poll="0.1").ready()
    fleet.write_manifest([shell("there", GATED, outlet="queue"), shell("other", "sleep 0.5", outlet="local")])
    fleet.wait_for("other", "done")
    assert fleet.record("there").state == "running", "a pod without the queue has recorded its end"
    fleet.command = with_queue
    (queue / "away").touch()
    third = start(fleet, "third")
    wait_until(lambda: noted(fleet, "third"), "the pod's file tells that the queue does not answer")
    (queue / "away").unlink()
    record = fleet.wait_for("there", "done")
    assert (record.pod, record.attempt) == ("first", 1)
    third.says("of pod first, which is gone")
    assert without.is_running()


def test_another_pod_records_that_a_submitted_attempt_has_begun(fleet: Fleet, queue: Path) -> None:
    (queue / "hold").touch()
    fleet.write_manifest([shell("there", GATED, outlet="queue")])
    first = start(fleet, "first")
    fleet.wait_for("there", "submitted")
    wait_until(lambda: fleet.record("there").handle == "1", "the handle is recorded")
    first.kill()
    start(fleet, "second").ready()
    (queue / "hold").unlink()
    assert fleet.wait_for("there", "running").pod == "first"
    (fleet.root / "go").touch()
    assert fleet.wait_for("there", "done").attempt == 1


def test_a_pod_without_slots_of_its_own_recovers_what_ran_on_its_host(fleet: Fleet, queue: Path) -> None:
    fleet.write_manifest([shell("here", GATED, outlet="local"), shell("there", "true", outlet="queue", needs=["here"])])
    first = start(fleet, "first")
    fleet.wait_for("here", "running")
    wait_until(lambda: begun(fleet) == 1, "it has begun")
    first.kill()
    second = start(fleet, "second", "--slots", "0")
    second.says("pod second on")
    assert fleet.record("here").state == "running"
    (fleet.root / "go").touch()
    assert fleet.wait_for("here", "done").pod == "first"
    assert fleet.wait_for("there", "done").pod == "second"
    assert second.stop() == 0


def test_what_waits_too_long_in_a_queue_goes_to_the_next_outlet(fleet: Fleet, queue: Path) -> None:
    (queue / "hold").touch()
    fleet.write_manifest([shell("a", "true", outlet=["queue", "local"], queue_limit="1s")])
    pod = start(fleet, "pod", "--until-empty")
    assert pod.end() == 0
    record = fleet.record("a")
    assert (record.state, record.outlet, record.attempt) == ("done", "local", 2)
    back = next(line for line in fleet.history("a") if line.event == "auto_requeued")
    assert back.set["reason"] == "queue limit"
    assert not {"requeues", "retries", "retry_at", "backoff"} & {key for key, value in back.set.items() if value}
    assert "a (attempt 1) waits too long in the queue of queue: withdrawn" in pod.said
    assert "CANCELLED" in (queue / "1.json").read_text()


def test_it_stays_in_the_queue_where_no_other_outlet_has_room(fleet: Fleet, queue: Path) -> None:
    (queue / "hold").touch()
    fleet.write_manifest(
        [
            shell("busy", GATED, outlet="local", priority=1),
            shell("only", "true", outlet="queue", queue_limit="1s"),
            shell("a", "true", outlet=["queue", "local"], queue_limit="1s"),
        ]
    )
    pod = start(fleet, "pod", "--until-empty", "--slots", "1")
    note = "outlet queue: only, a over the queue limit, and no other outlet can take it"
    wait_until(lambda: note in notes(fleet), "it is noted")
    assert fleet.record("a").attempt == 1
    (fleet.root / "go").touch()
    fleet.wait_for("a", "done")
    assert (fleet.record("a").outlet, fleet.record("only").state) == ("local", "submitted")
    (queue / "hold").unlink()
    assert pod.end() == 0


def test_another_pod_takes_what_waits_too_long(fleet: Fleet, queue: Path) -> None:
    (queue / "hold").touch()
    fleet.write_manifest([shell("a", "true", queue_limit="1s")])
    first = start(fleet, "first", "--slots", "0")
    fleet.wait_for("a", "submitted")
    fleet.command = COMMAND
    fleet.start("second", poll="0.2").ready()
    record = fleet.wait_for("a", "done")
    assert (record.pod, record.outlet, record.attempt) == ("second", "local", 2)
    assert first.stop() == 0


def queue_of_another_pod(fleet: Fleet) -> tuple[QueueOutlet, Observer, Orphan]:
    """The queue of a pod without attempts, and an attempt of a dead pod there."""
    config = load_config(fleet.layout)
    observer = Observer(fleet.layout, config.lost_after_s, lambda: True)
    outlet = QueueOutlet(PodContext(pod="other", config=config, observer=observer, log=print))
    return outlet, observer, Orphan(key=Key("there", 1), pod="dead", placement=Placement())


def test_what_an_outlet_asks_for_orphans_is_taken_in_at_once(fleet: Fleet, queue: Path) -> None:
    """Its descriptor would stay readable, and the loop would not rest."""
    outlet, _, orphan = queue_of_another_pod(fleet)
    attempts = RunningAttempts(fleet.layout, {"queue": outlet})
    outlet.recover([orphan])
    assert attempts.wait_fds(), "it asks its queue"
    wait_until(lambda: not attempts.collect() and not attempts.wait_fds(), "the answer is taken in")
    outlet.close()


def test_an_outlet_is_told_when_orphans_need_it_no_longer(fleet: Fleet, queue: Path) -> None:
    """Another pod has recorded the end: it would ask its queue for ever."""
    outlet, observer, orphan = queue_of_another_pod(fleet)
    outlet.recover([orphan])
    assert Recovery(fleet.layout, "other", {"queue": outlet}, observer).find([]) == []
    wait_until(lambda: not outlet.poll([]) and not outlet.wait_fds(), "the last answer is taken in")
    assert outlet.due_in_s() is None
    outlet.close()


def test_a_host_that_is_known_before_the_start_is_not_a_start(fleet: Fleet) -> None:
    """Over ssh the host is chosen first, and the start takes its time or fails."""
    attempt = RunningAttempts(fleet.layout, {}).add(Key("there", 1), "ssh", Slot())
    placement = Placement(host="far")
    for status in (Pending(), Unknown("no answer"), Ended(None, CANNOT_START, blames_host=True)):
        attempt.take_in(Report(status, placement))
        assert not attempt.has_begun
    attempt.take_in(Report(Ended(0), placement))
    assert attempt.has_begun, "it has ended between two polls"


def test_the_log_of_what_is_submitted_is_followed_until_it_ends(fleet: Fleet, queue: Path) -> None:
    (queue / "hold").touch()
    fleet.write_manifest([shell("there", "echo said", outlet="queue")])
    pod = start(fleet, "pod", "--until-empty")
    fleet.wait_for("there", "submitted")
    words = [*COMMAND, "logs", "-f", "there"]
    with commands.Popen(words, cwd=fleet.root, env=fleet.environment(), stdout=subprocess.PIPE, text=True) as follower:
        with pytest.raises(subprocess.TimeoutExpired):
            follower.wait(3)
        (queue / "hold").unlink()
        assert follower.communicate(timeout=PATIENCE_S)[0] == "said\n"
    assert pod.end() == 0


@pytest.mark.parametrize(("command", "state"), [("requeue", "queued"), ("hold", "held"), ("cancel", "abandoned")])
def test_what_people_ask_of_an_attempt_that_cannot_be_told(fleet: Fleet, queue: Path, command: str, state: str) -> None:
    """It is carried out when the queue answers again, also by a dispatcher that was restarted meanwhile."""
    fleet.write_manifest([shell("there", GATED, outlet="queue")])
    first = start(fleet)
    fleet.wait_for("there", "running")
    wait_until(lambda: begun(fleet) == 1, "it has begun")
    (queue / "away").touch()
    wait_until(lambda: noted(fleet), "the pod's file tells that the queue does not answer")
    fleet.run(command, "there")
    wait_until(lambda: fleet.record("there").desired == state, "it is recorded")
    first.kill()
    second = start(fleet, "pod", "--until-empty")
    second.says("found there (attempt 1) again")
    assert (fleet.record("there").state, fleet.record("there").attempt) == ("running", 1)
    (fleet.root / "go").touch() if command == "requeue" else None
    (queue / "away").unlink()
    wait_until(lambda: "stopped" in fleet.events("there"), "the attempt is stopped")
    assert second.end() == 0
    assert fleet.record("there").state == ("done" if command == "requeue" else state)


def test_a_pending_submission_goes_back_as_if_it_had_not_been(fleet: Fleet, queue: Path) -> None:
    (queue / "hold").touch()
    fleet.write_manifest([shell("there", GATED, outlet="queue")])
    pod = start(fleet, "pod", "--on-exit", "stop")
    fleet.wait_for("there", "submitted")
    wait_until(lambda: fleet.record("there").handle == "1", "the handle is recorded")
    assert pod.stop() == 0
    record = fleet.record("there")
    assert (record.state, record.reason, record.requeues, record.retry_at) == ("queued", "preempted", 0, None)


def test_a_person_cancels_what_is_pending(fleet: Fleet, queue: Path) -> None:
    (queue / "hold").touch()
    fleet.write_manifest([shell("there", GATED, outlet="queue")])
    start(fleet)
    fleet.wait_for("there", "submitted")
    wait_until(lambda: fleet.record("there").handle == "1", "the handle is recorded")
    fleet.run("cancel", "there")
    record = fleet.wait_for("there", "abandoned")
    assert record.reason == "stopped on request"
    (queue / "hold").unlink()
    assert begun(fleet) == 0


def test_stopping_a_pod_puts_back_what_it_has_submitted(fleet: Fleet, queue: Path) -> None:
    fleet.write_manifest([shell("there", "echo begun >>begun; sleep 600", outlet="queue")])
    pod = start(fleet, "pod", "--on-exit", "stop")
    fleet.wait_for("there", "running")
    wait_until(lambda: begun(fleet) == 1, "it has begun")
    assert pod.stop() == 0
    record = fleet.record("there")
    assert (record.state, record.reason) == ("queued", "preempted")


def test_an_entry_prefers_the_outlet_that_it_names_first(fleet: Fleet, queue: Path) -> None:
    fleet.write_manifest(
        [
            shell("there", GATED, outlet=["queue", "local"]),
            shell("here", GATED, outlet=["local", "queue"]),
            shell("next", GATED, outlet=["local", "queue"]),
            shell("huge", "true", gpus=16),
        ]
    )
    command = [*fleet.command, "--slots", "1", "--dry-run", "--json"]
    dry = json.loads(subprocess.check_output(command, cwd=fleet.root, env=fleet.environment(), timeout=PATIENCE_S))
    assert {row["job"]: row["slot"] for row in dry} == {
        "there": "queue: submission",
        "here": "local: cpu",
        "next": "queue: submission",
        "huge": "",
    }
    assert dry[-1]["why"] == "local: asks for 16 GPUs, this pod has 0; queue: no node has 16 GPUs"
    pod = start(fleet, "pod")
    wait_until(lambda: begun(fleet) == 3, "all that fit have begun")
    assert {job: record.outlet for job, record in fleet.records().items()} == {
        "there": "queue",
        "here": "local",
        "next": "queue",
        "huge": None,
    }
    wait_until(lambda: "there/1" in fleet.run("pods") and "here/1" in fleet.run("pods"), "`pods` shows what runs")
    slots = json.loads(fleet.run("pods", "--json"))[0]["slots"]
    assert {row["job"]: (row["outlet"], row["slot"]) for row in slots} == {
        "here/1": ("local", "cpu0"),
        "there/1": ("queue", "queue"),
        "next/1": ("queue", "queue"),
    }
    assert any(line.split()[:4] == ["pod", "local", "cpu0", "here/1"] for line in fleet.run("pods").splitlines())
    (fleet.root / "go").touch()
    for job in ("there", "here", "next"):
        fleet.wait_for(job, "done")
    assert pod.stop() == 0
