"""Which events give a Job of Volcano which phase: all that is known of Volcano 1.5, and in what later ones differ."""

from __future__ import annotations

import json

import pytest

from .bed import BedError, wait_for
from .kubernetes.api import ApiError
from .volcano import VolcanoBed
from .volcano_jobs import job, on, pod_spec, shell

SLEEP = ("sleep", "300")
FAIL = shell("exit 3")


def phases(volcano: VolcanoBed, name: str) -> list[str]:
    """All that a Job has been in, in order."""
    return [each["status"] for each in volcano.job(name)["status"]["conditions"]]


def wait_for_pod(volcano: VolcanoBed, name: str) -> None:
    volcano.wait_for_phase(name, "Running")


def test_a_job_of_two_pods_completes(volcano: VolcanoBed) -> None:
    volcano.create(job("a", replicas=2))
    status = volcano.wait_for_job("a", "Completed")["status"]
    assert (status["succeeded"], status["minAvailable"]) == (2, 2)
    assert status["taskStatusCount"] == {"w": {"phase": {"Succeeded": 2}}}
    assert set(volcano.pods("a")) == {"a-w-0", "a-w-1"}
    # What ended has no PodGroup any more.
    wait_for(lambda: volcano.podgroup("a") is None, "the PodGroup is gone")


def test_a_pod_that_fails_fails_its_job(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *shell('exit "$VC_TASK_INDEX"'), replicas=2, plugins={"env": []}))
    status = volcano.wait_for_job("a", "Failed")["status"]
    assert (status["succeeded"], status["failed"]) == (1, 1)
    assert volcano.pods("a")["a-w-1"]["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 1


def test_restarting_a_job_uses_up_its_retries(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *FAIL, policies=[on("PodFailed", "RestartJob")], maxRetry=2))
    status = volcano.wait_for_job("a", "Failed")["status"]
    assert status["retryCount"] == 2
    seen = [phase for phase in phases(volcano, "a") if phase != "Running"]
    assert seen == ["Pending", "Restarting", "Pending", "Restarting", "Failed"]
    # The pods of the last try stay, those before are gone.
    assert [pod["metadata"]["annotations"]["volcano.sh/job-version"] for pod in volcano.pods("a").values()] != ["0"]


def test_retries_can_be_used_up_while_pods_still_run(volcano: VolcanoBed) -> None:
    stubborn = shell("trap '' TERM; while :; do sleep 0.1; done")
    policies = [on("PodFailed", "RestartJob")]
    volcano.create(job("a", *stubborn, replicas=2, grace_s=60, policies=policies, maxRetry=1))
    for index in range(2):
        wait_for_pod(volcano, f"a-w-{index}")
    volcano.oom_kill("a-w-1")
    volcano.wait_for_job("a", "Failed")
    going = volcano.pod("a-w-0")
    assert going["status"]["phase"] == "Running"
    assert "deletionTimestamp" in going["metadata"]


POLICIES = {
    "abort": (on("PodFailed", "AbortJob"), "Aborting", "Aborted"),
    "terminate": (on("PodFailed", "TerminateJob"), "Terminating", "Terminated"),
    "any": (on("*", "TerminateJob"), "Terminating", "Terminated"),
    "complete": (on("PodFailed", "CompleteJob"), "Completing", "Completed"),
    "code": ({"exitCode": 3, "action": "TerminateJob"}, "Terminating", "Terminated"),
    "events": ({"events": ["PodEvicted", "PodFailed"], "action": "AbortJob"}, "Aborting", "Aborted"),
    "other-code": ({"exitCode": 4, "action": "TerminateJob"}, "Running", "Failed"),
    "other-event": (on("PodEvicted", "TerminateJob"), "Running", "Failed"),
}


def test_what_a_policy_makes_of_a_failed_pod(volcano: VolcanoBed) -> None:
    volcano.create(*(job(name, *FAIL, policies=[policy]) for name, (policy, _, _) in POLICIES.items()))
    for name, (_, way, end) in POLICIES.items():
        volcano.wait_for_job(name, end)
        assert phases(volcano, name)[-2:] == [way, end]


def test_a_task_has_policies_of_its_own(volcano: VolcanoBed) -> None:
    made = job("a", *shell("exit 0"), policies=[on("TaskCompleted", "AbortJob")])
    made["spec"]["tasks"][0]["policies"] = [on("TaskCompleted", "CompleteJob")]
    made["spec"]["tasks"].append({"name": "other", "replicas": 1, "template": {"spec": pod_spec(*SLEEP)}})
    volcano.create(made)
    volcano.wait_for_job("a", "Completed")
    assert phases(volcano, "a")[-2:] == ["Completing", "Completed"]


def test_one_pod_that_fails_leaves_the_others_to_end(volcano: VolcanoBed) -> None:
    """The gang is broken then, which only its PodGroup tells."""
    volcano.create(job("a", *shell('[ "$VC_TASK_INDEX" = 0 ] && sleep 300; exit 3'), replicas=2, plugins={"env": []}))
    broken = "pod group is not ready, 1 Failed, 1 Running, 2 minAvailable"
    wait_for(lambda: broken in volcano.unschedulable("a"), lambda: volcano.tell("a"))
    volcano.wait_for_job("a", "Running")
    assert (volcano.podgroup("a") or {})["status"]["phase"] == "Unknown"


def test_a_broken_gang_is_an_event_too(volcano: VolcanoBed) -> None:
    script = '[ "$VC_TASK_INDEX" = 0 ] && sleep 300; exit 3'
    volcano.create(job("a", *shell(script), replicas=2, plugins={"env": []}, policies=[on("Unknown", "AbortJob")]))
    volcano.wait_for_job("a", "Aborted")


def test_an_evicted_pod(volcano: VolcanoBed) -> None:
    """It is made again, with or without the Job's own retries, or is the end of its Job."""
    policies = {
        "none": [],
        "restart": [on("PodEvicted", "RestartJob")],
        "terminate": [on("PodEvicted", "TerminateJob")],
    }
    volcano.create(*(job(name, *SLEEP, policies=given) for name, given in policies.items()))
    before = {}
    for name in policies:
        volcano.wait_for_job(name, "Running")
        before[name] = volcano.pods(name)[f"{name}-w-0"]["metadata"]["uid"]
        volcano.preempt(name)

    def is_another(name: str) -> bool:
        return volcano.pods(name).get(f"{name}-w-0", {}).get("metadata", {}).get("uid", before[name]) != before[name]

    for name in ("none", "restart"):
        wait_for(lambda name=name: is_another(name), lambda name=name: volcano.tell(name))
        wait_for_pod(volcano, f"{name}-w-0")
        volcano.wait_for_job(name, "Running")
    volcano.wait_for_job("terminate", "Terminated")
    retries = {name: volcano.job(name)["status"].get("retryCount", 0) for name in policies}
    assert retries == {"none": 0, "restart": 1, "terminate": 0}
    for name in policies:
        volcano.wait_for_event(f"{name}-w-0", "Pod", "Evict", "Pod is evicted, because of preempt")


def test_a_pod_that_its_node_evicts_has_failed(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *SLEEP))
    wait_for_pod(volcano, "a-w-0")
    volcano.evict("a-w-0")
    volcano.wait_for_job("a", "Failed")
    assert volcano.pod("a-w-0")["status"]["reason"] == "Evicted"


def test_a_job_is_aborted_and_resumed_by_command(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *SLEEP))
    volcano.wait_for_job("a", "Running")
    volcano.command("AbortJob", "a")
    volcano.wait_for_job("a", "Aborted")
    volcano.command("ResumeJob", "a")
    status = volcano.wait_for_job("a", "Running")["status"]
    assert status["retryCount"] == 1
    said = "Start to execute command AbortJob, and clean it up to make sure executed not more than once."
    volcano.wait_for_event("a", "Job", "CommandIssued", said)


def test_a_deleted_job_is_gone_while_its_pod_still_ends(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *shell("trap '' TERM; while :; do sleep 0.1; done"), grace_s=60))
    wait_for_pod(volcano, "a-w-0")
    volcano.lose("a")
    with pytest.raises(ApiError, match="404"):
        volcano.job("a")
    wait_for(lambda: "deletionTimestamp" in volcano.pod("a-w-0")["metadata"], "its pod is told to end")
    assert volcano.pod("a-w-0")["status"]["phase"] == "Running"
    # A new Job of that name has its pod when the old one has ended.
    volcano.create(job("a"))
    volcano.oom_kill("a-w-0")
    volcano.wait_for_job("a", "Completed")


def test_jobs_that_finished_are_deleted_in_time_but_aborted_ones(volcano: VolcanoBed) -> None:
    volcano.create(
        job("done", ttlSecondsAfterFinished=1),
        job("failed", *FAIL, ttlSecondsAfterFinished=1),
        job("aborted", *FAIL, policies=[on("PodFailed", "AbortJob")], ttlSecondsAfterFinished=1),
    )

    def left() -> list[str]:
        listed = json.loads(volcano.kubectl("get", "jobs.batch.volcano.sh", "-o", "json").stdout)["items"]
        return [item["metadata"]["name"] for item in listed]

    wait_for(lambda: left() == ["aborted"], lambda: f"only the aborted Job is left: {left()}", every_s=0.2)
    assert volcano.job_phase("aborted") == "Aborted"
    assert set(volcano.pods("aborted")) == {"aborted-w-0"}


def test_pods_know_each_other_by_the_plugins(volcano: VolcanoBed) -> None:
    script = "env | grep ^V[CK]_ | sort; cat /etc/volcano/w.host; echo; hostname; cd ~/.ssh; ls; stat -Lc %a id_rsa"
    volcano.create(job("a", *shell(script), replicas=2, plugins={"env": [], "svc": [], "ssh": []}))
    volcano.wait_for_job("a", "Completed")
    assert volcano.kubectl("logs", "a-w-1").stdout.split() == [
        "VC_TASK_INDEX=1", "VC_W_HOSTS=a-w-0.a,a-w-1.a", "VC_W_NUM=2", "VK_TASK_INDEX=1",
        "a-w-0.a", "a-w-1.a", "a-w-1", "authorized_keys", "config", "id_rsa", "id_rsa.pub", "600",
    ]  # fmt: skip


def test_pods_of_a_job_find_each_other_by_name(volcano: VolcanoBed) -> None:
    volcano.make_volume("data")
    mount = [{"mountPath": "/data", "volumeClaimName": "data"}]
    script = (
        "for host in $(cat /etc/volcano/w.host); do until getent hosts $host; do sleep 0.1; done; done; "
        "touch /data/$VC_TASK_INDEX; until [ -e /data/0 ] && [ -e /data/1 ]; do sleep 0.1; done"
    )
    volcano.create(job("a", *shell(script), replicas=2, plugins={"env": [], "svc": []}, volumes=mount))
    volcano.wait_for_job("a", "Completed", limit_s=60)
    found = [line.split() for line in volcano.kubectl("logs", "a-w-0").stdout.splitlines()]
    assert [address for address, *_ in found] == [
        pod["status"]["podIP"] for _, pod in sorted(volcano.pods("a").items())
    ]


def test_what_belongs_to_a_job_has_its_name(volcano: VolcanoBed) -> None:
    made = job("a", *SLEEP, gpus=2, plugins={"svc": [], "ssh": []})
    made["metadata"] |= {"labels": {"mine": "1"}, "annotations": {"note": "2"}}
    made["spec"]["tasks"][0]["template"]["metadata"] = {"labels": {"inner": "3"}}
    volcano.create(made)
    volcano.wait_for_job("a", "Running")
    pod, group = volcano.pods("a")["a-w-0"], volcano.podgroup("a") or {}
    own = {"volcano.sh/job-name": "a", "volcano.sh/job-namespace": volcano.namespace, "volcano.sh/task-spec": "w",
           "volcano.sh/queue-name": "default"}  # fmt: skip
    assert pod["metadata"]["labels"] == {**own, "inner": "3"}
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "a"
    assert (pod["spec"]["schedulerName"], pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (
        "volcano",
        "a-w-0",
        "a",
    )
    assert (group["metadata"]["name"], group["metadata"]["labels"]) == ("a", {"mine": "1"})
    assert group["spec"]["minMember"] == 1
    assert group["spec"]["minResources"] == {"nvidia.com/gpu": "2"}
    for words in (["service", "a"], ["configmap", "a-svc"], ["secret", "a-ssh"], ["networkpolicy", "a"]):
        assert volcano.get(*words)["metadata"]["ownerReferences"][0]["name"] == "a"
    volcano.lose("a")
    wait_for(lambda: not volcano.pods("a") and volcano.podgroup("a") is None, "all of it is gone")
    with pytest.raises(BedError, match="NotFound"):
        volcano.get("service", "a")


def test_a_service_that_cannot_be_called_so(volcano: VolcanoBed) -> None:
    """Names of services are stricter than those of Jobs, and nobody refuses the Job."""
    volcano.create(job("0a", plugins={"svc": []}))
    volcano.wait_for_event("0a", "Job", "PluginError", 'Service "0a" is invalid')
    assert volcano.job_phase("0a") == "Pending"


def test_a_claim_that_is_not_there_keeps_a_job_waiting(volcano: VolcanoBed) -> None:
    volcano.create(
        job("a", *shell("echo hello >/data/said"), volumes=[{"mountPath": "/data", "volumeClaimName": "data"}])
    )
    why = "pvc data is not found, the job will be in the Pending state until the PVC is created"
    volcano.wait_for_event("a", "Job", "PVCError", f"Failed to create PVC, err: {why}")
    assert volcano.job_phase("a") == "Pending"
    files = volcano.make_volume("data")
    volcano.wait_for_job("a", "Completed")
    with open(f"{files}/said", encoding="ascii") as said:
        assert said.read() == "hello\n"


def test_all_is_as_it_was_when_volcano_comes_back(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *SLEEP), job("b", *SLEEP, policies=[on("PodFailed", "AbortJob")]))
    for name in ("a", "b"):
        volcano.wait_for_phase(f"{name}-w-0", "Running")
        volcano.wait_for_job(name, "Running")
    volcano.stop_volcano()
    volcano.oom_kill("b-w-0")
    volcano.wait_for_phase("b-w-0", "Failed")
    refused = volcano.kubectl("create", "-f", "-", input=json.dumps(job("c")), check=False)
    assert 'failed calling webhook "mutatejob.volcano.sh"' in refused.stderr
    volcano.start_volcano()
    # Nobody has seen the event.
    volcano.wait_for_job("b", "Failed")
    assert volcano.job_phase("a") == "Running"
    assert volcano.job("a")["status"].get("retryCount") is None


def test_without_its_controller_a_job_has_no_phase(volcano: VolcanoBed) -> None:
    with volcano.paused("controller"):
        volcano.create(job("a"))
        assert volcano.job_phase("a") == ""
    volcano.wait_for_job("a", "Completed")


def restart_task(bed: VolcanoBed) -> str:
    """How a Job ends that does so after a task of it failed once."""
    bed.make_volume("data")
    mount = [{"mountPath": "/data", "volumeClaimName": "data"}]
    fail_once = shell("mkdir /data/tried && sleep 1 && exit 3; exit 0")
    bed.create(job("a", *fail_once, volumes=mount, policies=[on("PodFailed", "RestartTask")]))
    return str(bed.wait_for_job("a", "Failed", "Completed")["status"]["state"]["phase"])


def test_restarting_a_task_does_nothing_yet(volcano: VolcanoBed) -> None:
    assert restart_task(volcano) == "Failed"


def test_restarting_a_task_is_new(new_volcano: VolcanoBed) -> None:
    assert restart_task(new_volcano) == "Completed"


def test_later_releases_name_a_podgroup_by_its_job(new_volcano: VolcanoBed) -> None:
    new_volcano.create(job("a", *SLEEP, gpus=2))
    uid = new_volcano.wait_for_job("a", "Running")["metadata"]["uid"]
    group = new_volcano.podgroup("a") or {}
    assert group["metadata"]["name"] == f"a-{uid}"
    assert group["spec"]["minResources"] == {
        "nvidia.com/gpu": "2", "requests.nvidia.com/gpu": "2", "pods": "1", "count/pods": "1",
    }  # fmt: skip

    def allocated() -> object:
        return new_volcano.queue("default")["status"].get("allocated")

    wait_for(lambda: allocated() == {"nvidia.com/gpu": "2"}, "it is counted")
    new_volcano.lose("a")
    wait_for(lambda: allocated() == {}, "it is given back")


def test_later_releases_name_the_resource_that_is_short(new_volcano: VolcanoBed) -> None:
    # What is not Volcano's own uses GPUs that no Queue knows of.
    other = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}, "spec": pod_spec(*SLEEP, gpus=4)}
    new_volcano.create(other)
    new_volcano.wait_for_phase("other", "Running")
    new_volcano.create(job("a", *SLEEP, gpus=5))
    why = "0/1 nodes are unavailable: 1 Insufficient nvidia.com/gpu."
    text = (
        "1/1 tasks in gang unschedulable: pod group is not ready, 1 Pending, 1 minAvailable; Pending: 1 Unschedulable"
    )
    text += f". Origin reason is a-w-0: {why}"
    wait_for(lambda: new_volcano.unschedulable("a") == text, lambda: new_volcano.tell("a"))
    new_volcano.wait_for_event("a-w-0", "Pod", "FailedScheduling", why)
    new_volcano.make_queue("one", capability={"nvidia.com/gpu": "1"})
    new_volcano.create(job("b", *SLEEP, gpus=2, queue="one"))
    wait_for(lambda: new_volcano.podgroup("b"), lambda: new_volcano.tell("b"))
    group = (new_volcano.podgroup("b") or {})["metadata"]["name"]
    words = "queue resource quota insufficient: insufficient nvidia.com/gpu"
    new_volcano.wait_for_event(group, "PodGroup", "Unschedulable", words)
