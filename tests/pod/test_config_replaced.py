"""dispatcher.yaml is corrected, broken and replaced while pods run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fleet import Fleet, wait_until
from told_notices import configure, keeping, told

from dispatcher.config import load_config
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.workspace import Layout

HOLDS = "echo begun; until [ -e go ]; do sleep 0.02; done"


def config(text: str, **more: object) -> str:
    keys = "".join(f", {key}: {value}" for key, value in more.items())
    return f"methods:\n  m: {{gpus: 0, command: [sh, -c, '{text}']{keys}}}\n"


def test_a_corrected_command_and_interpreter_are_used_without_a_restart(fleet: Fleet) -> None:
    fleet.write_manifest([{"job_id": "a"}, {"job_id": "b", "method": "py"}])
    missing = "  py: {gpus: 0, command: ['{python}', -c, 'print(1)'], python: envs/missing}\n"
    fleet.write_config(config("exit 3") + missing)
    fleet.start("pod", poll="600").says("envs/missing")
    fleet.wait_for("a", "failed")
    # The requeue may be seen before the kernel has told of the file.
    fleet.write_config(config("echo fixed") + missing.replace("envs/missing", sys.executable))
    fleet.run("requeue", "a")
    fleet.wait_for("a", "done", attempt=2)
    assert "fixed" in fleet.output("a", 2)
    fleet.wait_for("b", "done")


def test_limits_and_retries_are_those_of_the_file_as_it_is(fleet: Fleet) -> None:
    fleet.write_manifest([{"job_id": name} for name in "abc"])
    fleet.write_config(config(HOLDS, max_running=1))
    fleet.start("pod", "--slots", "3", poll="600")
    wait_until(lambda: list(fleet.states().values()).count("running") == 1, "one of three runs")
    fleet.write_config(config(HOLDS, max_running=2))
    wait_until(lambda: list(fleet.states().values()).count("running") == 2, "the limit was raised")
    fleet.write_config(config("exit 3", retries=1, backoff="0.1s", max_fails=1))
    (fleet.root / "go").touch()
    wait_until(lambda: "failed" in fleet.states().values(), "the last job ran with the new command")
    job = next(job for job, state in fleet.states().items() if state == "failed")
    assert fleet.record(job).attempt == 2
    assert [line.event for line in fleet.history() if line.event == "paused"], "max_fails does not count"


def test_a_broken_file_keeps_the_last_one_and_what_cannot_change_is_named(fleet: Fleet) -> None:
    fleet.write_manifest([{"job_id": "a"}])
    fleet.write_config(config("echo one"))
    pod = fleet.start("pod", poll="600")
    fleet.wait_for("a", "done")
    fleet.write_config(config("echo two", retrys=1))
    pod.says("dispatcher.yaml: the previous configuration is kept: ")
    fleet.run("requeue", "a")
    fleet.wait_for("a", "done", attempt=2)
    assert "one" in fleet.output("a", 2)
    wait_until(lambda: "the previous configuration is kept" in fleet.run("pods"), "`pods` says so")
    fleet.run("drain", "pod")
    fleet.run("undrain", "pod")
    assert "one" in fleet.run("logs", "a")
    fleet.write_config("status_file: elsewhere.json\nkill_grace: 1s\n" + config("echo two"))
    pod.says("restart the pod for the change of kill_grace, status_file in dispatcher.yaml")
    fleet.write_config(config("echo two"))
    fleet.run("requeue", "a")
    fleet.wait_for("a", "done", attempt=3)
    assert "two" in fleet.output("a", 3) and not (fleet.root / "elsewhere.json").exists()
    assert pod.said.count("is kept") == 1
    wait_until(lambda: "dispatcher.yaml" not in fleet.run("pods"), "nothing is wrong any more")


def test_who_is_told_changes_while_the_pod_runs(fleet: Fleet) -> None:
    fleet.write_manifest([{"job_id": "a"}, {"job_id": "b"}])
    fleet.write_config(config("exit 3"))
    fleet.start("pod", poll="600")
    fleet.wait_for("a", "failed")
    kept = fleet.root / "told"
    configure(fleet, {"chat": {"command": keeping(kept)}}, config("exit 4"))
    fleet.run("requeue", "a")
    fleet.wait_for("a", "failed", attempt=2)
    wait_until(lambda: any("a" in event["jobs"] for one in told(kept) for event in one["events"]), "chat is told")


@pytest.fixture
def lab(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.config_file.write_text("hosts: {one: {type: plain, ssh: x}, two: {type: plain, ssh: x}}\n")
    return layout


def test_an_emptied_or_removed_file_is_no_configuration(lab: Layout) -> None:
    said: list[str] = []
    current = CurrentConfig(load_config(lab), said.append)
    assert not current.follow() and not current.has_changed()
    lab.config_file.write_text("")
    assert current.has_changed() and not current.follow() and not current.has_changed()
    lab.config_file.unlink()
    assert not current.follow() and len(said) == 2
    assert "is empty" in said[0] and "is missing" in said[1] and len(current.notes()) == 1
    lab.config_file.write_text("max_requeues: 3\n")
    assert current.follow() and current.now.max_requeues == 3 and current.notes() == []


def test_hosts_that_are_in_use_stay_as_they_were(lab: Layout) -> None:
    current = CurrentConfig(load_config(lab), lambda _: None, lambda: ["one"])
    assert not current.follow()
    text = lab.config_file.read_text()
    lab.config_file.write_text(text.replace("two: {type: plain, ssh: x}", "three: {type: plain, ssh: x}"))
    assert current.follow() and list(current.now.hosts.hosts) == ["one", "three"] and current.notes() == []
    lab.config_file.write_text(text.replace("one: {type: plain, ssh: x}", "one: {type: plain, ssh: y}"))
    assert not current.follow() and list(current.now.hosts.hosts) == ["one", "three"]
    assert current.notes() == ["restart the pod for the change of hosts.one in dispatcher.yaml"]
