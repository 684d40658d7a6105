"""Jobs on a real Kubernetes with a stand-in for Volcano, by the scheduler alone: what each event is told as."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds.bed import wait_for
from beds.volcano import VolcanoBed
from volcano_jobs import VolcanoJobs

from dispatcher.outlets.base import CANCELLED, OUT_OF_MEMORY, PREEMPTED, TIME_LIMIT, Request
from dispatcher.outlets.batch.scheduler import Phase

LONG = "echo begun >begun; sleep 600"
# A wrapper that ends by itself when it is told to.
POLITE = "trap 'echo told >told; exit 0' TERM; echo begun >begun; while :; do sleep 0.1; done"


@pytest.fixture
def jobs(volcano: VolcanoBed, tmp_path: Path) -> VolcanoJobs:
    return VolcanoJobs(volcano, tmp_path)


def with_template(jobs: VolcanoJobs, root: Path, pod: str) -> None:
    """What the workspace adds to Kubernetes pods."""
    (root / "templates").mkdir()
    text = f"spec: {{tasks: [{{name: worker, template: {{spec: {pod}}}}}]}}"
    (root / "templates" / "volcano.yaml").write_text(text)


def test_one_that_runs_and_ends(jobs: VolcanoJobs) -> None:
    jobs.submit("until [ -e go ]; do sleep 0.1; done; exit 0")
    state = jobs.wait(Phase.RUNNING)
    assert state.host in jobs.bed.node_names
    assert (state.why, state.was_preempted, state.handle) == ("", False, jobs.job())
    jobs.file("go").touch()
    ended = jobs.wait(Phase.ENDED)
    assert (ended.exit_code, ended.reason, ended.may_still_run) == (0, "", False)


def test_one_that_fails(jobs: VolcanoJobs) -> None:
    jobs.submit("echo said >>output.log; echo 'it is broken' >&2; exit 3")
    ended = jobs.wait(Phase.ENDED)
    assert (ended.exit_code, ended.reason, ended.was_preempted) == (3, "", False)
    detail = jobs.details()
    assert detail.exit_code == 3
    assert "it is broken" in detail.why
    assert "said" in detail.why


def test_one_for_which_there_are_too_few_gpus(volcano: VolcanoBed, tmp_path: Path) -> None:
    jobs = VolcanoJobs(volcano, tmp_path)
    jobs.submit(LONG, request=Request(gpus=1000))
    state = jobs.wait(Phase.PENDING, "tasks in gang unschedulable")
    assert state.host is None


def test_a_gang_of_which_only_one_fits_does_not_begin(volcano: VolcanoBed, tmp_path: Path) -> None:
    """The scheduler's reason is told, and no pod of it runs."""
    jobs = VolcanoJobs(volcano, tmp_path, gpus_per_node=volcano.settings.gpus)
    jobs.submit(LONG, request=Request(gpus=3 * volcano.settings.gpus))
    jobs.wait(Phase.PENDING, "3/0 tasks in gang unschedulable")
    assert not jobs.file("begun").exists()


def test_one_that_the_scheduler_has_not_looked_at(jobs: VolcanoJobs) -> None:
    """As where a resource definition is missing that it needs."""
    with jobs.bed.paused("scheduler"):
        jobs.submit(LONG)
        jobs.wait(Phase.PENDING, "Volcano's scheduler has not looked at it yet")


def test_an_image_that_is_missing(volcano: VolcanoBed, tmp_path: Path) -> None:
    jobs = VolcanoJobs(volcano, tmp_path, image="missing/image:1")
    jobs.submit(LONG)
    state = jobs.wait(Phase.PENDING, "ImagePull")
    assert "missing/image:1" in jobs.wait(Phase.PENDING, "ImagePullBackOff").why
    assert state.host in jobs.bed.node_names


def test_a_volume_that_is_missing(volcano: VolcanoBed, tmp_path: Path) -> None:
    jobs = VolcanoJobs(volcano, tmp_path, pvc_name="other")
    jobs.submit(LONG)
    jobs.wait(Phase.PENDING, 'persistentvolumeclaim "other" not found')


def test_a_secret_that_is_missing(jobs: VolcanoJobs, tmp_path: Path) -> None:
    secret = "{secretKeyRef: {name: token, key: value}}"
    with_template(jobs, tmp_path, f"{{containers: [{{name: attempt, env: [{{name: T, valueFrom: {secret}}}]}}]}}")
    jobs.submit(LONG)
    state = jobs.wait(Phase.PENDING, "CreateContainerConfigError")
    assert 'secret "token" not found' in state.why


def test_a_node_that_does_not_answer(jobs: VolcanoJobs) -> None:
    """Nothing is concluded, and when it is back the attempt runs as before."""
    jobs.submit(LONG)
    jobs.wait_for_file("begun")
    node = jobs.wait(Phase.RUNNING).host
    assert node is not None
    jobs.bed.node_away(node)
    state = jobs.wait(Phase.UNKNOWN)
    assert (state.host, state.was_preempted) == (node, False)
    assert f"{node} does not answer" in state.why
    jobs.bed.node_back(node)
    jobs.wait(Phase.RUNNING)


def test_preempted_by_volcano(jobs: VolcanoJobs) -> None:
    """Its wrapper is told and may end with 0: that is no success."""
    jobs.submit(POLITE)
    jobs.wait_for_file("begun")
    jobs.bed.preempt(jobs.job())
    ended = jobs.wait(Phase.ENDED)
    assert (ended.reason, ended.was_preempted, ended.may_still_run) == (PREEMPTED, True, False)
    assert jobs.file("told").exists()
    assert "Evict: Pod is evicted, because of preempt" in jobs.details().why


def test_while_it_is_being_preempted(volcano: VolcanoBed, tmp_path: Path) -> None:
    jobs = VolcanoJobs(volcano, tmp_path, grace_s=60)
    jobs.submit("trap '' TERM; echo begun >begun; while :; do sleep 0.1; done")
    jobs.wait_for_file("begun")
    jobs.bed.preempt(jobs.job())
    state = jobs.wait(Phase.RUNNING, "is being evicted")
    assert state.was_preempted


def test_evicted_by_its_node(jobs: VolcanoJobs) -> None:
    jobs.submit(POLITE)
    jobs.wait_for_file("begun")
    jobs.bed.evict(jobs.pod())
    ended = jobs.wait(Phase.ENDED)
    assert (ended.reason, ended.was_preempted) == (PREEMPTED, True)
    assert "Evicted" in ended.why


def test_a_pod_that_somebody_deletes_ends_the_attempt(jobs: VolcanoJobs) -> None:
    """As when its node is drained; no second pod is begun in its place."""
    jobs.submit(f"echo again >>begins; {POLITE}")
    jobs.wait_for_file("begun")
    jobs.bed.kubectl("delete", "pod", jobs.pod(), "--wait=false")
    ended = jobs.wait(Phase.ENDED)
    assert (ended.reason, ended.was_preempted) == (PREEMPTED, True)
    assert jobs.file("begins").read_text() == "again\n"


def test_killed_for_lack_of_memory(jobs: VolcanoJobs) -> None:
    jobs.submit(LONG)
    jobs.wait_for_file("begun")
    jobs.bed.oom_kill(jobs.pod())
    ended = jobs.wait(Phase.ENDED)
    assert (ended.exit_code, ended.reason) == (137, OUT_OF_MEMORY)


def test_longer_than_kubernetes_lets_it_run(jobs: VolcanoJobs, tmp_path: Path) -> None:
    with_template(jobs, tmp_path, "{activeDeadlineSeconds: 1}")
    jobs.submit(LONG)
    ended = jobs.wait(Phase.ENDED)
    assert ended.reason == TIME_LIMIT
    assert "DeadlineExceeded" in ended.why


def test_suspended_by_somebody(jobs: VolcanoJobs) -> None:
    jobs.submit(LONG)
    jobs.wait_for_file("begun")
    jobs.bed.command("AbortJob", jobs.job())
    ended = jobs.wait(Phase.ENDED)
    assert (ended.reason, ended.was_preempted) == (CANCELLED, False)
    # And begun again by somebody.
    jobs.bed.command("ResumeJob", jobs.job())
    wait_for(lambda: jobs.bed.job_phase(jobs.job()) == "Failed", "its only retry is used up")
    again = jobs.wait(Phase.ENDED)
    assert (again.reason, again.was_preempted) == (PREEMPTED, True)


def test_a_job_that_somebody_deletes(volcano: VolcanoBed, tmp_path: Path) -> None:
    """It runs as long as a pod of it is left; then nothing is known of it but that it is gone."""
    jobs = VolcanoJobs(volcano, tmp_path, grace_s=60)
    ends = "until [ -e go ]; do sleep 0.1; done; exit 9"
    jobs.submit(f"trap '{ends}' TERM; echo begun >begun; while :; do sleep 0.1; done")
    jobs.wait_for_file("begun")
    jobs.bed.lose(jobs.job())
    jobs.wait(Phase.RUNNING, "its Job was deleted")
    jobs.file("go").touch()
    jobs.wait(None)
    detail = jobs.details()
    assert (detail.phase, detail.exit_code, detail.reason, detail.may_still_run) == (Phase.ENDED, None, "", True)
    assert "it was deleted" in detail.why


def test_a_deleted_job_on_a_node_that_does_not_answer(jobs: VolcanoJobs) -> None:
    jobs.submit(LONG)
    jobs.wait_for_file("begun")
    node = jobs.wait(Phase.RUNNING).host
    assert node is not None
    jobs.bed.node_away(node)
    jobs.wait(Phase.UNKNOWN)
    jobs.cancel("j0")
    ended = jobs.wait(Phase.ENDED)
    assert ended.may_still_run
    assert f"{node} does not answer" in ended.why


def test_cancel_tells_the_wrapper(jobs: VolcanoJobs) -> None:
    jobs.submit(POLITE, POLITE)
    jobs.wait_for_file("begun")
    jobs.wait_for_file("begun", "j1")
    jobs.cancel("j0")
    jobs.wait(None)
    assert jobs.file("told").exists()
    jobs.wait(Phase.RUNNING, job="j1")
    jobs.cancel("j0", "j1")
    jobs.wait(None, job="j1")


def test_cancel_by_force(volcano: VolcanoBed, tmp_path: Path) -> None:
    """It does not wait for the grace period of one that does not listen."""
    jobs = VolcanoJobs(volcano, tmp_path, grace_s=600)
    jobs.submit("trap '' TERM; echo begun >begun; while :; do sleep 0.1; done")
    jobs.wait_for_file("begun")
    jobs.cancel("j0", force=True)
    jobs.wait(None)


def test_many_attempts_with_one_call(jobs: VolcanoJobs) -> None:
    jobs.submit(*[f"exit {code}" for code in range(5)])
    for code in range(5):
        assert jobs.wait(Phase.ENDED, job=f"j{code}").exit_code == code
    assert len(jobs.scheduler.query(list(jobs.attempts.values()))) == 1


def test_values_reach_the_attempt_as_they_were(volcano: VolcanoBed, tmp_path: Path) -> None:
    """The workspace's path, too, has what shells and Kubernetes give a meaning."""
    values = {
        "A": "a'; echo foo",
        "B": "$(HOME) $$ ${X}",
        "C": "no",
        "D": "1e3",
        "E": ": ",
        "F": 'x\n"y" \\ é',
        "G": "",
    }
    jobs = VolcanoJobs(volcano, tmp_path, env=values)
    jobs.submit("env -0 >values; exit 0")
    assert jobs.wait(Phase.ENDED).exit_code == 0
    found = dict(item.split("=", 1) for item in jobs.file("values").read_text().split("\0") if item)
    assert {name: found[name] for name in values} == values
    assert found["DISPATCHER_VOLCANO_MODE"] == "1"
