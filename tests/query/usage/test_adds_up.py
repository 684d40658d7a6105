"""Real pods and jobs, some of them killed: the account against what a stopwatch beside them says."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from fleet import Dispatcher, Fleet, shell, wait_until

from dispatcher.base.times import parse_time
from dispatcher.run_state import journal
from dispatcher.run_state.journal import Line
from dispatcher.run_state.states import IN_FLIGHT
from dispatcher.run_state.store import Store

pytestmark = pytest.mark.slow

CONFIG = "heartbeat: 1s\nlost_after: 5s\nkill_grace: 5s\n"
# Writes when it began and ended; one that is told to stop ends at once.
TIMED = """
echo go; echo "begun $EPOCHREALTIME" >>"$DISPATCHER_ATTEMPT_DIR/witness"
trap 'kill $!; end 143' TERM
end() {{ echo "ended $EPOCHREALTIME" >>"$DISPATCHER_ATTEMPT_DIR/witness"; exit "$1"; }}
sleep {seconds} & wait $!
{then}
"""


def timed(job: str, seconds: float, then: str = "end 0", **rest: Any) -> dict[str, Any]:
    return shell(job, TIMED.format(seconds=seconds, then=then), **rest)


# How the attempts of the nights end.
KINDS = {
    "preempted/1": "preempted",
    "preempted/2": "useful",
    "cancelled/1": "cancelled",
    "lost/1": "lost",
    "lost/2": "unknown_end",
    "lost/3": "cancelled",
    "outlives/1": "useful",
    "failed/1": "failed",
    "useful/1": "useful",
}

# Between two readings of a clock by two processes.
SLACK_S = 0.5


class Stopwatch:
    """When pods and attempts ran, by the clock of this test: each moment lies between an earlier and a later one.

    A busy machine starts, ends, kills and finds things late: how late is measured, not assumed.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.least_slot_s = self.most_slot_s = 0.0
        self._begun: dict[int, tuple[float, int]] = {}
        # Processes that were killed cannot write when they ended.
        self._killed: dict[tuple[str, int], tuple[float, float]] = {}
        # When pods were last heard of that were killed.
        self._last_heard_s: dict[str, float] = {}

    def start(self, pod: str, slots: int, *words: str) -> Dispatcher:
        dispatcher = self.fleet.start(pod, *(words or ("--slots", str(slots))), poll="1").ready()
        self._begun[dispatcher.pid] = time.time(), slots
        return dispatcher

    def stop(self, dispatcher: Dispatcher) -> None:
        told_s = time.time()
        dispatcher.stop()
        self._stopped(dispatcher, told_s)

    def kill(self, dispatcher: Dispatcher) -> None:
        """It counts until its last heartbeat."""
        dispatcher.kill()
        self._last_heard_s[dispatcher.pod] = self.heartbeat_s(dispatcher)
        self._stopped(dispatcher, self._last_heard_s[dispatcher.pod])

    def heartbeat_s(self, dispatcher: Dispatcher) -> float:
        info = json.loads(self.fleet.layout.pod_file(dispatcher.pod).read_text())
        return parse_time(info["heartbeat_at"]) or 0.0

    def freeze(self, dispatcher: Dispatcher) -> None:
        dispatcher.send(signal.SIGSTOP)
        stat = Path(f"/proc/{dispatcher.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(") ")[2].startswith("T"), f"{dispatcher.pod} is stopped")

    def kill_job(self, job: str, number: int = 1, *, frozen: Dispatcher | None = None) -> None:
        """End all processes of an attempt, as when its host dies; `frozen`: with its pod, which does not find that."""
        directory = os.fspath(self.fleet.attempt(job, number).directory)
        begun_s = time.time() if frozen is None else self.heartbeat_s(frozen)
        for pid in self.fleet.pids():
            with contextlib.suppress(OSError):
                if f"DISPATCHER_ATTEMPT_DIR={directory}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        self.fleet.wait_gone(job, number)
        if frozen is None:
            # Its slot is taken until its pod has found that, as long as that may last on a busy machine.
            wait_until(lambda: not self._in_flight(job, number), f"attempt {number} of {job} is found")
        self._killed[job, number] = begun_s, time.time()

    def ran(self, job: str, number: int = 1) -> tuple[float, float, float]:
        """When an attempt began by its own account, and between which two times it ended."""
        paths = self.fleet.attempt(job, number)
        lines = (paths.directory / "witness").read_text().splitlines()
        times = {what: float(at) for what, at in (line.split() for line in lines)}
        if (job, number) in self._killed:
            return times["begun"], *self._killed[job, number]
        # Its wrapper ends later than its script.
        return times["begun"], times["ended"], paths.exit.stat().st_mtime

    def check(self, total: dict[str, float]) -> None:
        """What attempts used is what they say; from its claim until it begins, one uses its slot, too."""
        least: dict[str, float] = defaultdict(float)
        most: dict[str, float] = defaultdict(float)
        for line in self.claims():
            number = line.set["attempt"]
            kind = KINDS[f"{line.job}/{number}"]
            begun_s, ended_s, gone_s = self.ran(str(line.job), number)
            least[kind] += 0.99 * (ended_s - begun_s) - SLACK_S / 10
            most[kind] += 1.01 * (gone_s - (parse_time(line.at) or 0.0)) + SLACK_S
        for kind, least_s in least.items():
            assert least_s <= total[kind] <= most[kind], (kind, total, least, most)

    def check_alone(self, alone_s: float) -> None:
        """What ran on while its pod did not, which was killed."""
        least_s, most_s = 0.0, SLACK_S
        for line in self.claims():
            heard_s = self._last_heard_s.get(line.set["pod"])
            if heard_s is not None:
                _, ended_s, gone_s = self.ran(str(line.job), line.set["attempt"])
                least_s += max(0.0, 0.99 * (ended_s - heard_s) - SLACK_S)
                most_s += max(0.0, 1.01 * (gone_s - heard_s))
        assert least_s <= alone_s <= most_s

    def claims(self) -> list[Line]:
        return [line for line in self.fleet.history() if line.event == "claimed"]

    def check_pods(self, slot_s: float) -> None:
        """A dispatcher has its slots a moment before it says that it is ready."""
        assert 0.99 * self.least_slot_s <= slot_s <= 1.01 * self.most_slot_s + 4, (self.least_slot_s, self.most_slot_s)

    def _stopped(self, dispatcher: Dispatcher, least_s: float) -> None:
        begun_s, slots = self._begun.pop(dispatcher.pid)
        self.least_slot_s += slots * (least_s - begun_s)
        self.most_slot_s += slots * (time.time() - begun_s)

    def _in_flight(self, job: str, number: int) -> bool:
        record = self.fleet.record(job)
        return record.attempt == number and record.state in IN_FLIGHT


def account(fleet: Fleet, *words: str) -> dict[str, Any]:
    return dict(json.loads(fleet.run("usage", "--since", "1h", "--json", *words)))


def seconds(hours: dict[str, dict[str, float]], unit: str = "slots") -> dict[str, float]:
    return {kind: of[unit] * 3600 for kind, of in hours.items()}


def test_a_night_with_kills_adds_up_to_a_percent(fleet: Fleet) -> None:
    fleet.write_config(CONFIG + "methods: {m: {retries: 0}}\n")
    fleet.write_manifest(
        [
            timed("preempted", 6, then="[[ $DISPATCHER_ATTEMPT == 1 ]] && end 75; end 0", priority=9),
            timed("cancelled", 60, priority=8),
            timed("lost", 60, then="", priority=7),
            timed("outlives", 12, priority=6, method="n"),
            timed("failed", 6, then="end 3", method="n"),
            timed("useful", 8),
        ]
    )
    watch = Stopwatch(fleet)
    first = watch.start("first", 3)
    for job in ("preempted", "cancelled", "lost"):
        fleet.wait_running(job)
    second = watch.start("second", 2, "--slots", "2", "--methods", "n")
    fleet.wait_running("outlives")
    time.sleep(3)
    watch.kill_job("lost")
    fleet.run("cancel", "cancelled")
    # Its job ends by itself, and another pod finds that.
    watch.kill(second)
    fleet.wait_for("outlives", "done")
    fleet.wait_for("cancelled", "abandoned")
    fleet.wait_for("preempted", "done")
    fleet.wait_running("lost", 2)
    # The host dies, and with it the pod and the job.
    watch.freeze(first)
    watch.kill_job("lost", 2, frozen=first)
    watch.kill(first)
    third = watch.start("third", 2)
    fleet.wait_running("lost", 3)
    fleet.run("cancel", "lost")
    fleet.wait_for("lost", "abandoned")
    wait_until(lambda: {"failed", "useful"} <= {j for j, s in fleet.states().items() if s in ("done", "failed")}, "all")
    watch.stop(third)

    found = account(fleet)
    total, check = seconds(found["total"]), seconds(found["check"])
    watch.check(total)
    watch.check_pods(check["pods"])
    watch.check_alone(check["without_pod"])
    assert check["left_over"] == pytest.approx(0, abs=0.01 * total["total"])
    parts = sum(value for kind, value in total.items() if kind != "total")
    assert parts == pytest.approx(check["pods"] + check["without_pod"], rel=0.01)


def test_shared_gpus_a_new_journal_and_the_edge_of_the_window(fleet: Fleet) -> None:
    fleet.write_config(CONFIG)
    fleet.write_manifest([timed(f"shared{number}", 8, gpus=1) for number in range(3)])
    KINDS.update({f"shared{number}/1": "useful" for number in range(3)})
    watch = Stopwatch(fleet)
    pod = watch.start("pod", 2, "--gpus", "0", "--jobs-per-gpu", "2")
    fleet.wait_running("shared0")
    fleet.wait_running("shared1")
    # Two of them wait in the old generation, and end in the new one.
    assert Store(fleet.layout, by="test").rotate()
    for number in range(3):
        fleet.wait_for(f"shared{number}", "done")
    watch.stop(pod)

    found = account(fleet)
    total, gpus = seconds(found["total"]), seconds(found["total"], "gpus")
    watch.check(total)
    assert gpus == pytest.approx({kind: slots / 2 for kind, slots in total.items()})
    watch.check_pods(seconds(found["check"])["pods"])
    assert found["accounted_since"] is None
    begun, ended = (parse_time(line.at) or 0.0 for line in (fleet.history()[0], fleet.history()[-1]))
    middle = journal.now_text((begun + ended) / 2)
    halves = [account(fleet, "--until", middle), account(fleet, "--since", middle)]
    for kind, used_s in total.items():
        assert sum(seconds(half["total"]).get(kind, 0.0) for half in halves) == pytest.approx(used_s, abs=0.01)

    # Older generations may be removed: what is left says so.
    journal.compressed(fleet.layout.journal(1)).unlink()
    assert account(fleet)["accounted_since"] is not None
