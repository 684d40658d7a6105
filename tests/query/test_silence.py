"""A live pod that shows no sign of life is not reported as one at work."""

from __future__ import annotations

import json
import os
import signal
import time

import msgspec
from fleet import Fleet, shell, wait_until

from dispatcher.api import Workspace
from dispatcher.query.silence import silent_for_s
from dispatcher.run_state.liveness import PodInfo, Watch
from dispatcher.web.overview import OverviewPage

INFO = PodInfo(
    pod="p", host="h", boot_id="b", pid_namespace=1, pid=1, start_ticks=1, user="u", started_at="", heartbeat=1,
    heartbeat_s=2.0, lock="flock",
)  # fmt: skip


def test_a_pod_that_hangs_is_not_at_work(fleet: Fleet) -> None:
    fleet.write_manifest([])
    pod = fleet.start("base", "--slots", "3").ready()
    pod.send(signal.SIGSTOP)
    fleet.write_manifest([shell("a", "true")])
    assert " running " in fleet.run("pods"), "it may only be late"
    ago_s = time.time() - 65
    os.utime(fleet.layout.pod_file("base"), (ago_s, ago_s))
    assert "base  no sign of life for 1m0" in fleet.run("pods")
    status = fleet.run("status")
    assert "\n1 pod shows no sign of life\n1 job left: time unknown until a pod claims jobs\n" in status
    assert "pod base shows no sign of life  a" in status
    assert f"see whether its process {pod.pid} on " in " ".join(fleet.try_("status").stderr.split())
    assert json.loads(fleet.run("pods", "--json"))[0]["state"] == "silent"
    seen = Workspace(fleet.layout.root).snapshot()
    assert "silent_pod" in [one["kind"] for one in OverviewPage(fleet.layout).parts(seen, seen)["attention"]]
    pod.send(signal.SIGCONT)
    fleet.write_manifest([shell("a", "true"), shell("b", "true")])
    fleet.wait_for("b", "done")
    wait_until(lambda: "no sign of life" not in fleet.run("status"), "its next heartbeat")


def test_a_reader_that_sees_the_heartbeat_rise_does_not_compare_clocks() -> None:
    now = [0.0]
    watch = Watch(lambda: now[0])
    assert silent_for_s(INFO, 0.0, watch, now_s=3000.0) == 3000.0
    rose = msgspec.structs.replace(INFO, heartbeat=2)
    assert silent_for_s(rose, 0.0, watch, now_s=3000.0) is None, "its host's clock is far ahead"
    now[0] = 61.0
    assert silent_for_s(rose, 0.0, watch, now_s=3000.0) == 61.0
    assert silent_for_s(msgspec.structs.replace(rose, heartbeat_s=30.0), 0.0, watch, now_s=3000.0) is None
