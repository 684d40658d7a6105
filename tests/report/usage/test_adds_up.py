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


class Stopwatch:
    """When pods ran, by the clock of this test."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.slot_s = 0.0
        self._begun: dict[int, tuple[float, int]] = {}
        # Processes that were killed cannot write when they ended.
        self.killed: dict[tuple[str, int], float] = {}

    def start(self, pod: str, slots: int, *words: str) -> Dispatcher:
        dispatcher = self.fleet.start(pod, *(words or ("--slots", str(slots))), poll="1").ready()
        self._begun[dispatcher.pid] = time.time(), slots
        return dispatcher

    def stop(self, dispatcher: Dispatcher, *, kill: bool = False) -> None:
        if kill:
            dispatcher.kill()
        else:
            dispatcher.stop()
        begun_s, slots = self._begun.pop(dispatcher.pid)
        self.slot_s += slots * (time.time() - begun_s)

    def kill_job(self, job: str, number: int = 1) -> None:
        """End all processes of an attempt at once, as when its host dies."""
        directory = os.fspath(self.fleet.attempt(job, number).directory)
        self.killed[job, number] = time.time()
        for pid in self.fleet.pids():
            with contextlib.suppress(OSError):
                if f"DISPATCHER_ATTEMPT_DIR={directory}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    def ran_s(self, job: str, number: int = 1) -> float:
        """For how long an attempt ran by its own account."""
        text = (self.fleet.attempt(job, number).directory / "witness").read_text()
        times = {what: float(at) for what, at in (line.split() for line in text.splitlines())}
        return times.get("ended", self.killed.get((job, number), 0.0)) - times["begun"]


# How the attempts of the night end.
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
            timed("outlives", 12, priority=6),
            timed("failed", 6, then="end 3"),
            timed("useful", 8),
        ]
    )
    watch = Stopwatch(fleet)
    first = watch.start("first", 3)
    for job in ("preempted", "cancelled", "lost"):
        fleet.wait_running(job)
    second = watch.start("second", 2)
    fleet.wait_running("outlives")
    time.sleep(3)
    watch.kill_job("lost")
    fleet.run("cancel", "cancelled")
    # Its job ends by itself, and another pod finds that.
    watch.stop(second, kill=True)
    fleet.wait_for("outlives", "done")
    fleet.wait_for("cancelled", "abandoned")
    fleet.wait_for("preempted", "done")
    fleet.wait_running("lost", 2)
    # The host dies, and with it the pod and the job.
    watch.kill_job("lost", 2)
    watch.stop(first, kill=True)
    third = watch.start("third", 2)
    fleet.wait_running("lost", 3)
    fleet.run("cancel", "lost")
    fleet.wait_for("lost", "abandoned")
    wait_until(lambda: {"failed", "useful"} <= {j for j, s in fleet.states().items() if s in ("done", "failed")}, "all")
    watch.stop(third)

    found = account(fleet)
    total, check = seconds(found["total"]), seconds(found["check"])
    witnessed: dict[str, float] = defaultdict(float)
    for line in fleet.history():
        if line.event == "claimed":
            number = line.set["attempt"]
            witnessed[KINDS[f"{line.job}/{number}"]] += watch.ran_s(str(line.job), number)
    for kind, ran_s in witnessed.items():
        assert total[kind] == pytest.approx(ran_s, rel=0.01, abs=0.5), (kind, total, dict(witnessed))
    assert check["pods"] == pytest.approx(watch.slot_s, rel=0.01, abs=5.0)
    assert check["without_pod"] == pytest.approx(0, abs=20)
    assert check["left_over"] == pytest.approx(0, abs=0.01 * total["total"])
    parts = sum(value for kind, value in total.items() if kind != "total")
    assert parts == pytest.approx(check["pods"] + check["without_pod"], rel=0.01)
