"""A dispatcher that creates the VM which its jobs need: real gcloud, real workers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
from beds.tpu import VERSION, TpuBed
from beds.tpu_checks import OTHER_PROJECT, PROJECT
from fleet import COMMAND, Dispatcher, Fleet, fleet_at, shell, wait_until

from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.outlets.tpu.gcloud import WORKSPACE_LABEL, queued_id

pytestmark = pytest.mark.slow

# gcloud takes its time, and much more on a machine that does much else.
PATIENCE_S = 240.0


class Lab:
    """A workspace whose host `pod` is a TPU VM that does not exist yet."""

    def __init__(self, fleet: Fleet, bed: TpuBed) -> None:
        self.fleet = fleet
        self.bed = bed
        fleet.variables = bed.env
        self.configure()

    def configure(self, **settings: Any) -> None:
        given = {
            "type": "tpu", "zone": self.bed.zone, "accelerator_type": "v4-8", "version": VERSION, "create": "auto",
            **settings,
        }  # fmt: skip
        lines = "".join(f"    {key}: {value}\n" for key, value in given.items())
        self.fleet.write_config(
            f"code: none\npoll_interval: 2s\nkill_grace: 1s\nlost_after: 20s\nhosts:\n  pod:\n{lines}"
        )

    @property
    def workspace(self) -> str:
        return workspace_id(self.fleet.layout)

    def start(self, *words: str, pod: str = "pod1") -> Dispatcher:
        return self.fleet.start(pod, "--outlet", "pod:4", *words, poll="2")

    def run_all(self) -> str:
        dispatcher = self.start("--until-empty")
        assert dispatcher.end(PATIENCE_S) == 0, dispatcher.said
        return dispatcher.said

    def run(self, *words: str) -> str:
        """What a command tells that creates something, which takes longer than others."""
        done = commands.run(
            [*COMMAND, *words], cwd=self.fleet.root, env=self.fleet.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    def wait_for(self, job: str, *states: str, **rest: Any) -> Any:
        return self.fleet.wait_for(job, *states, timeout_s=PATIENCE_S, **rest)

    def wait_for_log(self, job: str, text: str, number: int = 1) -> None:
        log = self.fleet.attempt(job, number).log
        wait_until(lambda: log.exists() and text in log.read_text(), f"{job} says {text}", PATIENCE_S)


@pytest.fixture
def lab(tmp_path: Path, tpu: TpuBed) -> Iterator[Lab]:
    with fleet_at(tmp_path / "a'; echo foo") as fleet:
        yield Lab(fleet, tpu)


def test_a_vm_is_created_for_a_job_and_outlives_the_dispatcher_with_a_word(lab: Lab) -> None:
    lab.configure(accelerator_type="v4-16", spot="true", metadata='{key: "a, b=c"}')
    lab.fleet.write_manifest(
        [shell("a", "echo $DISPATCHER_TPU_MODE: said by $DISPATCHER_PROCESS_ID of $DISPATCHER_NUM_PROCESSES")]
    )
    said = lab.run_all()
    assert lab.fleet.record("a").state == "done"
    assert lab.fleet.output("a") == "1: said by 0 of 2\n"
    (request,) = lab.bed.requests("nodes.create")
    assert request.body["labels"] == {WORKSPACE_LABEL: lab.workspace}
    assert request.body["metadata"].keys() == {"key", "startup-script"}
    assert request.body["metadata"]["key"] == "a, b=c"
    assert request.body["schedulingConfig"]["spot"] is True
    assert f"creating pod (v4-16, spot, {lab.bed.zone} of {PROJECT}), which costs money" in said
    assert "hosts.pod has `create: auto` without `idle_delete`: its VM costs money until it is deleted" in said
    assert "pod is still up and costs money: `dispatcher outlets delete pod` deletes it" in said
    assert "pod deletes itself after 2h00m without a dispatcher" in said
    assert "hosts.pod has `create: auto` without `idle_delete`" in lab.fleet.try_("doctor").stdout
    # What stands is shown, and goes when a person says so.
    done = lab.fleet.try_("outlets")
    place = f"pod (v4-16 in {lab.bed.zone} of {lab.bed.project}, READY)"
    assert f"{place}: created for this workspace, and may cost money; `dispatcher outlets delete pod`" in done.stderr
    assert "created for this workspace, 2 workers: it may cost money" in lab.fleet.try_("doctor").stdout
    refused = lab.fleet.try_("outlets", "delete", "pod")
    assert "There is no terminal to ask on: add --yes" in refused.stderr
    # It is not forgotten when the host is renamed, or in another zone now.
    lab.fleet.write_config("code: none\n")
    away = f"created for this workspace, and may cost money, but no configured host leads to it; `dispatcher outlets \
delete pod --zone {lab.bed.zone} --project {lab.bed.project}` deletes it"
    assert f"{place}: {away}" in lab.fleet.try_("outlets").stderr
    assert (
        "created for this workspace, and may cost money, but no configured host leads to it"
        in lab.fleet.try_("doctor").stdout
    )
    lab.configure(zone="europe-west4-b")
    assert f"{place}: {away}" in lab.fleet.try_("outlets").stderr
    lab.run("outlets", "delete", "pod", "--yes")
    assert lab.bed.names() == []


def test_a_preempted_vm_is_made_anew_and_its_attempt_goes_on_in_another(lab: Lab) -> None:
    lab.configure(spot="true")
    lab.fleet.write_manifest([shell("a", "echo attempt $DISPATCHER_ATTEMPT; until [ -e ~/go ]; do sleep 0.1; done")])
    dispatcher = lab.start("--until-empty")
    lab.wait_for_log("a", "attempt 1")
    lab.bed.preempt("pod")
    lab.wait_for_log("a", "attempt 2", number=2)
    (worker,) = lab.bed.workers("pod")
    worker.path("go").touch()
    assert dispatcher.end(PATIENCE_S) == 0, dispatcher.said
    record = lab.fleet.record("a")
    assert (record.state, record.attempt) == ("done", 2)
    (ended,) = [line for line in lab.fleet.history("a") if line.event == "auto_requeued"]
    assert ended.set["reason"] == "preempted"
    assert len(lab.bed.requests("nodes.create")) == 2


def test_without_capacity_it_waits_in_the_queue_and_the_request_is_taken_back(lab: Lab) -> None:
    lab.bed.no_capacity()
    lab.bed.queue.wait_s = None
    lab.fleet.write_manifest([shell("a", "true")])
    dispatcher = lab.start()

    dispatcher.ready()
    wait_until(lambda: "WAITING_FOR_RESOURCES" in lab.fleet.run("show", "a"), "it is shown why it waits", PATIENCE_S)
    queued = queued_id(lab.workspace, "pod")
    assert lab.fleet.states() == {"a": "queued"}
    assert dispatcher.stop() == 0
    assert f"pod: its queued resource {queued} was withdrawn" in dispatcher.said
    shown = lab.bed.gcloud("describe", queued, group="queued-resources")
    assert shown.returncode == 1 or "DELETING" in shown.stdout


def test_a_vm_of_another_size_runs_nothing(lab: Lab) -> None:
    lab.bed.create("pod", "v4-8")
    lab.configure(accelerator_type="v4-32")
    lab.fleet.write_manifest([shell("a", "true")])
    dispatcher = lab.start()
    refusal = "the TPU VM pod is a v4-8, and hosts.pod.accelerator_type says v4-32: nothing is started on it"
    wait_until(lambda: refusal in lab.fleet.run("show", "a"), "it is shown why it waits", PATIENCE_S)
    assert lab.fleet.states() == {"a": "queued"}
    assert dispatcher.stop() == 0
    assert refusal in dispatcher.said
    assert refusal in lab.fleet.try_("doctor").stdout


def test_a_vm_is_deleted_with_the_last_job_of_a_dispatcher_that_ends_then(lab: Lab) -> None:
    lab.configure(idle_delete="1h")
    lab.fleet.write_manifest([shell("a", "true")])
    said = lab.run_all()
    assert lab.fleet.record("a").state == "done"
    assert "deleting pod: it is not used any more" in said
    assert "costs money:" not in said
    wait_until(lambda: not lab.bed.names(), "it is deleted", PATIENCE_S)


def test_a_vm_deletes_itself_when_its_dispatcher_was_stopped_and_none_comes(lab: Lab) -> None:
    lab.configure(idle_delete="10s", dead_after="1h")
    lab.fleet.write_manifest([shell("a", "true")])
    dispatcher = lab.start()
    lab.wait_for("a", "done")
    wait_until(
        lambda: "pod deletes itself after 1h00m without" in dispatcher.log.read_text(), "it is armed", PATIENCE_S
    )
    assert dispatcher.stop() == 0
    assert "pod deletes itself in 10s, unless a dispatcher comes before" in dispatcher.said
    assert not lab.bed.requests("nodes.delete")
    wait_until(lambda: not lab.bed.names(), "it is gone", PATIENCE_S)


def test_a_vm_lives_while_its_dispatcher_does_and_deletes_itself_when_that_was_killed(lab: Lab) -> None:
    lab.configure(dead_after="20s")
    lab.fleet.write_manifest([shell("a", "sleep 30")])
    dispatcher = lab.start()
    lab.wait_for("a", "done")
    dispatcher.kill()
    wait_until(lambda: not lab.bed.names(), "it is gone", PATIENCE_S)
    assert not lab.bed.requests("nodes.delete")
    assert lab.bed.api.vm_requests[-1].kind == "nodes.delete"


def test_submit_asks_before_it_creates(lab: Lab) -> None:
    lab.configure(create="ask")
    lab.fleet.write_manifest([shell("a", "true")])
    refused = lab.fleet.try_("submit", "a", "--outlet", "pod")
    assert refused.returncode == 2
    assert f"Create pod (v4-8, on demand, {lab.bed.zone} of {PROJECT})? It costs money." in refused.stderr
    mine, theirs = pty.openpty()
    with commands.Popen([*COMMAND, "submit", "a", "--outlet", "pod"], cwd=lab.fleet.root, stdin=theirs,
                          stdout=subprocess.DEVNULL, stderr=theirs, env=lab.fleet.environment()) as asking:  # fmt: skip
        os.close(theirs)
        os.write(mine, b"n\n")
        asked = b""
        # Reading from a terminal that nobody has open any more is an error.
        with contextlib.suppress(OSError):
            while chunk := os.read(mine, 4096):
                asked += chunk
        assert b"It costs money. [y/N]" in asked
    assert asking.returncode not in (0, 2)
    os.close(mine)
    assert lab.bed.names() == []
    lab.bed.api.vm_may_delete = False
    told = lab.run("submit", "a", "--outlet", "pod", "--yes")
    assert "warning: pod cannot delete itself after 2h00m without a dispatcher, and costs money then: 403 Perm" in told
    assert lab.bed.names() == ["pod"]
    assert lab.wait_for("a", "submitted", "running", "done").outlet == "pod"

    def is_done() -> bool:
        lab.run("poll")
        return lab.fleet.states() == {"a": "done"}

    wait_until(is_done, "it is done", PATIENCE_S)


def test_another_default_project_of_gcloud_neither_loses_an_attempt_nor_pays_twice(lab: Lab) -> None:
    lab.fleet.write_manifest([shell("a", "echo begun; until [ -e ~/go ]; do sleep 0.1; done")])
    first = lab.start()
    lab.wait_for_log("a", "begun")
    lab.wait_for("a", "running")
    file = json.loads(lab.fleet.attempt("a").submission.read_text())
    assert file["location"] == {"parts": {"project": PROJECT, "zone": lab.bed.zone}}
    first.kill()
    # Of one that is started again, which adopts what is its own, and of one with another name.
    lab.fleet.variables = {**lab.bed.env, "CLOUDSDK_CORE_PROJECT": OTHER_PROJECT}
    again, other = lab.start(), lab.start("--until-empty", pod="pod2")
    (worker,) = lab.bed.workers("pod")
    wait_until(lambda: len(lab.bed.requests("nodes.get")) > 20, "both have looked", PATIENCE_S)
    assert lab.fleet.record("a").state == "running"
    worker.path("go").touch()
    assert other.end(PATIENCE_S) == 0, other.said
    again.stop()
    record = lab.fleet.record("a")
    assert (record.state, record.attempt, record.exit_code) == ("done", 1, 0), other.said
    assert len(lab.bed.requests("nodes.create")) == 1


def test_commands_go_to_the_project_in_which_the_vm_was_created(lab: Lab) -> None:
    lab.run("outlets", "create", "pod", "--yes")
    place = f"pod (v4-8 in {lab.bed.zone} of {PROJECT}, READY)"
    lab.fleet.variables = {**lab.bed.env, "CLOUDSDK_CORE_PROJECT": OTHER_PROJECT}
    other = (
        f"hosts.pod names no project: {PROJECT} counts, where this workspace has used it, and not gcloud's own, "
        f"{OTHER_PROJECT}; `project: {OTHER_PROJECT}` of the host would change that"
    )
    shown = lab.fleet.try_("outlets")
    assert f"{place}: created for this workspace, and may cost money; `dispatcher outlets delete pod`" in shown.stderr
    assert other in shown.stderr
    doctor = lab.fleet.try_("doctor").stdout
    assert "READY, created for this workspace, 1 worker" in doctor
    assert other in doctor
    assert "no configured host leads to it" not in shown.stderr + doctor
    # The VM is there already, and no second one is paid.
    assert other in lab.run("outlets", "create", "pod", "--yes")
    assert len(lab.bed.requests("nodes.create")) == 1
    assert other in lab.run("outlets", "delete", "pod", "--yes")
    assert lab.bed.names() == []
    # Also a new one: where a host is, is decided once.
    refused = lab.fleet.try_("outlets", "create", "pod")
    assert f"Create pod (v4-8, on demand, {lab.bed.zone} of {PROJECT})? It costs money." in refused.stderr
    lab.configure(project=OTHER_PROJECT)
    refused = lab.fleet.try_("outlets", "create", "pod")
    assert f"Create pod (v4-8, on demand, {lab.bed.zone} of {OTHER_PROJECT})? It costs money." in refused.stderr
    assert "names no project" not in refused.stderr
