"""How Volcano's scheduler places gangs, and what it says of those that it cannot place.

The cluster has two nodes with eight GPUs each; as installed, Volcano promises a Queue at most what the cluster has.
"""

from __future__ import annotations

from typing import Any

import pytest

from .bed import wait_for
from .volcano import VolcanoBed
from .volcano_jobs import SOON_EVICTED, job, shell

SLEEP = ("sleep", "300")


def wait_for_reason(volcano: VolcanoBed, name: str, words: str) -> None:
    wait_for(lambda: words in volcano.unschedulable(name), lambda: f"{words!r} to be said: {volcano.tell(name)}")


def wait_for_scheduled(volcano: VolcanoBed, pod: str, key: str, words: str) -> dict[str, Any]:
    """A pod's condition PodScheduled, as soon as these words are in a value of it: pods are told after their group."""
    found: dict[str, Any] = {}

    def is_told() -> bool:
        conditions = volcano.pod(pod)["status"].get("conditions", [])
        found.update(next((each for each in conditions if each["type"] == "PodScheduled"), {}))
        return words in found.get(key, "")

    wait_for(is_told, lambda: f"PodScheduled of {pod} with {key} {words!r}: {found}")
    return found


def test_a_gang_that_is_too_large_for_the_cluster_has_no_pods(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *SLEEP, replicas=3, gpus=8))
    wait_for_reason(volcano, "a", "3/0 tasks in gang unschedulable: pod group is not ready, 3 minAvailable")
    assert volcano.job_phase("a") == "Pending"
    assert volcano.pods("a") == {}
    group = volcano.podgroup("a") or {}
    assert group["status"]["phase"] == "Pending"
    assert group["status"]["conditions"][0]["reason"] == "NotEnoughResources"
    words = "0/0 tasks in gang unschedulable: pod group is not ready, 3 minAvailable"
    volcano.wait_for_event("a", "PodGroup", "Unschedulable", words)
    why = "3/0 tasks in gang unschedulable: pod group is not ready, 3 minAvailable"
    told = f"PodGroup {volcano.namespace}:a unschedule,reason: {why}"
    volcano.wait_for_event("a", "Job", "PodGroupPending", told)


def test_a_gang_waits_until_all_of_it_has_room(volcano: VolcanoBed) -> None:
    volcano.create(job("small", *SLEEP, gpus=6))
    volcano.wait_for_job("small", "Running")
    volcano.create(job("a", *SLEEP, replicas=2, gpus=5))
    why = "1/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable; "
    wait_for_reason(volcano, "a", why + "Pending: 1 Schedulable, 1 Unschedulable")
    assert [pod["status"]["phase"] for pod in volcano.pods("a").values()] == ["Pending", "Pending"]
    assert not any("nodeName" in pod["spec"] for pod in volcano.pods("a").values())
    assert (volcano.podgroup("a") or {})["status"]["phase"] == "Inqueue"
    first = wait_for_scheduled(volcano, "a-w-0", "reason", "Schedulable")
    assert first["status"] == "False"
    assert f"Pod {volcano.namespace}/a-w-0 can possibly be assigned to n" in first["message"]
    second = wait_for_scheduled(volcano, "a-w-1", "reason", "Unschedulable")
    assert second["status"] == "False"
    assert second["message"] == "all nodes are unavailable: 2 node(s) resource fit failed."
    volcano.wait_for_event("a-w-1", "Pod", "FailedScheduling", second["message"])
    volcano.lose("small")
    volcano.wait_for_job("a", "Running")
    assert {pod["spec"]["nodeName"] for pod in volcano.pods("a").values()} == {"n1", "n2"}
    volcano.wait_for_event("a", "PodGroup", "Scheduled", "pod group is ready")


def test_a_job_may_begin_with_less_than_all_pods(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *SLEEP, replicas=3, gpus=8, minAvailable=2))
    volcano.wait_for_job("a", "Running")
    placed = [pod["spec"].get("nodeName") for pod in volcano.pods("a").values()]
    assert sorted(map(str, placed)) == ["None", "n1", "n2"]


def test_pods_that_were_not_tried_are_undetermined(volcano: VolcanoBed) -> None:
    made = job("a", *SLEEP, replicas=2)
    made["spec"]["tasks"][0]["template"]["spec"]["nodeSelector"] = {"zone": "mars"}
    volcano.create(made)
    why = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable; "
    wait_for_reason(volcano, "a", why + "Pending: 1 Undetermined, 1 Unschedulable")
    undetermined = wait_for_scheduled(volcano, "a-w-1", "reason", "Undetermined")
    assert undetermined["message"] == volcano.unschedulable("a")


def test_a_gang_for_which_too_little_is_left_has_no_pods(volcano: VolcanoBed) -> None:
    volcano.create(job("large", *SLEEP, replicas=2, gpus=7))
    volcano.wait_for_job("large", "Running")
    volcano.create(job("a", *SLEEP, replicas=3, gpus=1))
    wait_for_reason(volcano, "a", "3/0 tasks in gang unschedulable: pod group is not ready, 3 minAvailable")
    assert ((volcano.podgroup("a") or {})["status"]["phase"], volcano.pods("a")) == ("Pending", {})
    volcano.lose("large")
    volcano.wait_for_job("a", "Running")


def test_a_new_podgroup_has_no_phase_before_the_first_session(volcano: VolcanoBed) -> None:
    with volcano.paused("scheduler"):
        volcano.create(job("a", *SLEEP))
        wait_for(lambda: volcano.podgroup("a"), "the PodGroup is there")
        assert (volcano.podgroup("a") or {}).get("status", {}).get("phase", "") == ""
        assert volcano.job_phase("a") == "Pending"
    volcano.wait_for_job("a", "Running")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"nodeSelector": {"zone": "mars"}}, "2 node(s) didn't match Pod's node affinity"),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]}, 'claim "none" not found'),
    ],
    ids=["selector", "claim"],
)
def test_why_no_node_is_right(volcano: VolcanoBed, spec: dict[str, Any], reason: str) -> None:
    made = job("a", *SLEEP)
    made["spec"]["tasks"][0]["template"]["spec"] |= spec
    volcano.create(made)
    wait_for(lambda: "a-w-0" in volcano.pods("a"), lambda: volcano.tell("a"))
    wait_for_scheduled(volcano, "a-w-0", "message", reason)
    assert volcano.job_phase("a") == "Pending"


def test_a_cordoned_cluster_takes_no_pods(volcano: VolcanoBed) -> None:
    volcano.kubectl("cordon", *volcano.node_names)
    try:
        volcano.create(job("a"))
        wait_for(lambda: "a-w-0" in volcano.pods("a"), lambda: volcano.tell("a"))
        full = "all nodes are unavailable: 2 node(s) were unschedulable."
        assert wait_for_scheduled(volcano, "a-w-0", "message", full)["message"] == full
    finally:
        volcano.kubectl("uncordon", *volcano.node_names)
    volcano.wait_for_job("a", "Completed")


def test_a_queue_is_not_used_beyond_its_capability(volcano: VolcanoBed) -> None:
    volcano.make_queue("two", capability={"nvidia.com/gpu": "2"})
    volcano.create(job("a", *SLEEP, gpus=2, queue="two"))
    volcano.wait_for_job("a", "Running")
    volcano.create(job("b", *SLEEP, gpus=1, queue="two"))
    volcano.wait_for_event("b", "PodGroup", "Unschedulable", "0/0 tasks in gang unschedulable")
    assert volcano.job_phase("b") == "Pending"
    assert volcano.pods("b") == {}

    def counts() -> tuple[int, int]:
        status = volcano.queue("two")["status"]
        return status["running"], status["pending"]

    wait_for(lambda: counts() == (1, 1), lambda: f"one runs, one waits: {volcano.queue('two')}")
    volcano.lose("a")
    volcano.wait_for_job("b", "Running")


def test_the_older_job_comes_first_and_the_more_important_before(volcano: VolcanoBed) -> None:
    volcano.make_priority("high", 100)
    volcano.make_queue("one", capability={"nvidia.com/gpu": "1"})
    with volcano.paused("scheduler"):
        volcano.create(job("low", *shell("exit 0"), gpus=1, queue="one"))
        volcano.create(job("high", *SLEEP, gpus=1, queue="one", priorityClassName="high"))
        wait_for(lambda: volcano.podgroup("low") and volcano.podgroup("high"), "both have PodGroups")
    volcano.wait_for_job("high", "Running")
    assert volcano.job_phase("low") == "Pending"
    volcano.lose("high")
    volcano.wait_for_job("low", "Completed")


def test_a_more_important_job_takes_the_place_of_others(volcano: VolcanoBed) -> None:
    volcano.make_priority("high", 100)
    # Jobs of the same second have no order but that of their importance.
    volcano.make_priority("middle", 50)
    # It fills one node, the others the second.
    volcano.create(job("full", *SLEEP, gpus=8, priorityClassName="middle"))
    volcano.wait_for_job("full", "Running")
    volcano.create(job("low", *SLEEP, gpus=5), job("other", *SLEEP, gpus=3))
    for name in ("low", "other"):
        volcano.wait_for_job(name, "Running")
    with volcano.preempting():
        volcano.create(job("high", *SLEEP, gpus=4, priorityClassName="high"))
        volcano.wait_for_job("high", "Running")
        # One of two events: the scheduler may lose some, as every recorder of events.
        evicted = [("Pod", "low-w-0", "Pod is evicted, because of preempt"), ("PodGroup", "low", "preempt")]
        wait_for(lambda: any(volcano.has_event(*each) for each in evicted), lambda: volcano.tell("low"), limit_s=90)
        wait_for_reason(volcano, "low", "1 Pending, 1 minAvailable")
    for name in ("full", "other"):
        assert not [reason for _, reason, _ in volcano.events(f"{name}-w-0") if reason == "Evict"]
    # Its phase does not tell.
    assert volcano.job_phase("low") == "Running"
    volcano.lose("high")
    volcano.wait_for_phase("low-w-0", "Running")


def test_a_job_on_a_lost_node_stays_running(volcano: VolcanoBed) -> None:
    made = job("a", *SLEEP)
    made["spec"]["tasks"][0]["template"]["spec"]["tolerations"] = SOON_EVICTED
    volcano.create(made)
    volcano.wait_for_job("a", "Running")
    node = volcano.pod("a-w-0")["spec"]["nodeName"]
    volcano.node_away(node)
    wait_for(lambda: "deletionTimestamp" in volcano.pod("a-w-0")["metadata"], "its pod is to be evicted", every_s=0.2)
    assert volcano.pod("a-w-0")["status"]["phase"] == "Running"
    assert volcano.job_phase("a") == "Running"
    volcano.node_back(node)
    # The pod ends now, and another one takes its place.
    volcano.wait_for_phase("a-w-0", "Running")
    assert volcano.job_phase("a") == "Running"


def test_a_gang_stuck_below_its_minimum_stays_running(volcano: VolcanoBed) -> None:
    volcano.create(job("a", *SLEEP, replicas=2, gpus=8))
    volcano.wait_for_job("a", "Running")
    volcano.kubectl("cordon", *volcano.node_names)
    try:
        volcano.preempt("a", index=1)
        wait_for_reason(volcano, "a", "1/2 tasks in gang unschedulable: pod group is not ready, 1 Pending, 1 Running")
        assert volcano.job_phase("a") == "Running"
        assert (volcano.podgroup("a") or {})["status"]["phase"] == "Unknown"
    finally:
        volcano.kubectl("uncordon", *volcano.node_names)
    volcano.wait_for_phase("a-w-1", "Running")


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.long)])
def test_many_jobs_at_once(volcano: VolcanoBed, count: int) -> None:
    names = [f"a-{number}" for number in range(count)]
    volcano.create(*(job(name) for name in names))
    for name in names:
        volcano.wait_for_job(name, "Completed", limit_s=120)
