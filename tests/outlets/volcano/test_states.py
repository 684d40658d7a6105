"""What Jobs, PodGroups and Kubernetes pods mean, also in the moments that no bed can be stopped at. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dispatcher.outlets.base import CANCELLED, CANNOT_START, OUT_OF_MEMORY, PREEMPTED, TIME_LIMIT
from dispatcher.outlets.batch.scheduler import JobState, Phase
from dispatcher.outlets.volcano.objects import Event, Job, Pod, PodGroup, read_list
from dispatcher.outlets.volcano.states import PHASES, AttemptObjects, job_state, vanished

NAME = "d-a-b-0"


def read(*items: dict[str, Any]) -> list[Any]:
    return list(read_list(json.dumps({"kind": "List", "items": items})))


def job(phase: str, replicas: int = 1, *, deleted: bool = False, **status: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": NAME, **({"deletionTimestamp": "2026-11-22T00:00:00Z"} if deleted else {})}
    return {
        "kind": "Job", "metadata": meta, "spec": {"minAvailable": replicas},
        "status": {"state": {"phase": phase}, **status},
    }  # fmt: skip


def pod(phase: str, index: int = 0, *, deleted: bool = False, container: Any = None, **status: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": f"{NAME}-worker-{index}"}
    if deleted:
        meta["deletionTimestamp"] = "2026-11-22T00:00:00Z"
    states = [] if container is None else [{"name": "attempt", **container}]
    spec = {"nodeName": f"n{index + 1}"}
    return {
        "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase, "containerStatuses": states, **status}
    }  # fmt: skip


def ended(code: int, at: str = "2026-11-22T00:00:00Z", reason: str = "Error") -> dict[str, Any]:
    return {"state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def condition(type_: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": type_, "status": status, "reason": reason, "message": message}


RUNS = {"ready": True, "state": {"running": {"startedAt": "2026-11-22T00:00:00Z"}}}
READY, UNREADY = condition("Ready", "True"), condition("Ready", "False")


def told(*items: dict[str, Any], events: list[dict[str, Any]] | None = None) -> JobState:
    found = read(*items, *(events or []))
    jobs = [each for each in found if isinstance(each, Job)]
    groups = [each for each in found if isinstance(each, PodGroup)]
    seen = AttemptObjects(
        name=NAME,
        job=jobs[0] if jobs else None,
        pods=tuple(each for each in found if isinstance(each, Pod)),
        group=groups[0] if groups else None,
        events=tuple(each for each in found if isinstance(each, Event)),
    )
    return job_state(seen)


def event(reason: str, message: str, type_: str = "Warning") -> dict[str, Any]:
    return {"kind": "Event", "metadata": {"name": "e"}, "type": type_, "reason": reason, "message": message}


def test_every_phase_of_a_job() -> None:
    expected = {
        "": Phase.PENDING, "Pending": Phase.PENDING, "Restarting": Phase.PENDING, "Running": Phase.RUNNING,
        "Aborting": Phase.RUNNING, "Completing": Phase.RUNNING, "Terminating": Phase.RUNNING, "Aborted": Phase.ENDED,
        "Completed": Phase.ENDED, "Failed": Phase.ENDED, "Terminated": Phase.ENDED,
    }  # fmt: skip
    assert dict(PHASES) == expected
    for phase, meant in expected.items():
        assert told(job(phase)).phase is meant
    unknown = told(job("Dreaming"))
    assert (unknown.phase, unknown.why) == (Phase.UNKNOWN, "phase 'Dreaming', which this version does not know")


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([], "Volcano's scheduler has not looked at it yet"),
        # As the controller makes it.
        ([{"kind": "PodGroup", "metadata": {}, "status": {}}], "Volcano's scheduler has not looked at it yet"),
        ([{"kind": "PodGroup", "metadata": {}, "status": {"phase": "Inqueue"}}], "in queue (PodGroup Inqueue)"),
        (
            [
                {
                    "kind": "PodGroup", "metadata": {},
                    "status": {"conditions": [condition("Unschedulable", "True", "NotEnoughResources", "1/1 tasks")]},
                },
                pod("Pending", conditions=[condition("PodScheduled", "False", "Unschedulable", "0/2 nodes: no gpu")]),
            ],
            "NotEnoughResources: 1/1 tasks; Unschedulable: 0/2 nodes: no gpu",
        ),
        # What a person has to mend comes before that.
        (
            [
                pod("Pending", conditions=[condition("PodScheduled", "False", "Unschedulable", "0/2 nodes")]),
                pod("Pending", 1, container=waiting("ImagePullBackOff", 'Back-off pulling image "x"')),
            ],
            f'{NAME}-worker-1: ImagePullBackOff: Back-off pulling image "x"',
        ),
        ([pod("Pending", container=waiting("ContainerCreating"))], f"{NAME}-worker-0: ContainerCreating on n1"),
        ([pod("Running", container=RUNS), pod("Pending", 1)], "1 of 2 Kubernetes pods run"),
    ],
)  # fmt: skip
def test_why_it_waits(items: list[dict[str, Any]], why: str) -> None:
    state = told(job("Pending", 2), *items)
    assert (state.phase, state.why) == (Phase.PENDING, why)


def test_the_reason_of_the_controller_itself_where_it_tells_one() -> None:
    shown = job("Pending")
    shown["status"]["state"] |= {"reason": "PodGroupPending", "message": "quota"}
    assert told(shown).why == "PodGroupPending: quota"


def test_running_on_several_nodes() -> None:
    state = told(job("Running", 2), *(pod("Running", index, container=RUNS, conditions=[READY]) for index in (0, 1)))
    assert (state.phase, state.host, state.why, state.handle) == (Phase.RUNNING, "n1,n2", "", NAME)


@pytest.mark.parametrize(
    ("shown", "phase"),
    [
        # The control plane sets the condition alone, and the node would have told more.
        ({"container": RUNS, "conditions": [UNREADY]}, Phase.UNKNOWN),
        ({"container": {**RUNS, "ready": False}, "conditions": [UNREADY]}, Phase.RUNNING),
        ({"container": RUNS, "conditions": [READY]}, Phase.RUNNING),
        ({"container": RUNS, "reason": "NodeLost"}, Phase.UNKNOWN),
    ],
)
def test_nodes_that_do_not_answer(shown: dict[str, Any], phase: Phase) -> None:
    state = told(job("Running", 2), pod("Running", 0, container=RUNS, conditions=[READY]), pod("Running", 1, **shown))
    assert state.phase is phase
    assert state.was_preempted is False
    if phase is Phase.UNKNOWN:
        assert state.why == f"n2 does not answer; {NAME}-worker-1 may still run there"


def test_pods_that_the_server_refuses_are_no_preemption() -> None:
    """As of a priority class that does not exist, which Volcano accepts of the Job."""
    refused = event("FailedCreate", "Error creating pods: [... no PriorityClass with name high was found]")
    state = told(job("Terminated"), events=[refused])
    assert (state.phase, state.reason, state.was_preempted) == (Phase.ENDED, CANNOT_START, False)
    assert state.why.startswith("Terminated: its pods could not be made; FailedCreate: Error creating pods")


def test_since_when_a_node_does_not_answer_and_that_the_cluster_has_given_it_up() -> None:
    """The cluster evicts its pods some minutes later, which proves no end: it may still run there."""
    since = {**UNREADY, "lastTransitionTime": "2026-11-22T10:18:12Z"}
    silent = {"container": RUNS, "conditions": [since]}
    state = told(job("Running"), pod("Running", **silent))
    told_since = "n1 does not answer since 2026-11-22T10:18:12Z"
    assert (state.phase, state.why) == (Phase.UNKNOWN, f"{told_since}; {NAME}-worker-0 may still run there")
    evicted = told(job("Terminated"), pod("Running", deleted=True, **silent))
    assert (evicted.phase, evicted.may_still_run, evicted.was_preempted) == (Phase.ENDED, True, False)
    assert evicted.why == f"{told_since}, and the cluster has evicted {NAME}-worker-0"
    both = (pod("Running", deleted=True, **silent), pod("Running", 1, container=RUNS, conditions=[READY]))
    assert told(job("Running", 2), *both).phase is Phase.UNKNOWN


@pytest.mark.parametrize("phase", ["Running", "Terminating", "Terminated"])
@pytest.mark.parametrize(
    "shown",
    [
        {"deleted": True},
        {"conditions": [condition("DisruptionTarget", "True", "PreemptionByScheduler")]},
        {"conditions": [condition("Ready", "False", "Evict", "Pod is evicted, because of preempt")]},
    ],
    ids=["deleted", "disrupted", "evict"],
)
def test_while_a_pod_is_evicted(phase: str, shown: dict[str, Any]) -> None:
    state = told(job(phase, 2), pod("Running", 0, container=RUNS), pod("Running", 1, container=RUNS, **shown))
    assert (state.phase, state.was_preempted) == (Phase.RUNNING, True)
    assert "is being evicted" in state.why


def test_a_pod_that_is_ended_because_another_has_failed_is_not_evicted() -> None:
    state = told(job("Terminating", 2), pod("Running", 0, deleted=True), pod("Failed", 1, container=ended(9)))
    assert (state.phase, state.was_preempted) == (Phase.RUNNING, False)


def test_the_first_pod_that_failed_counts() -> None:
    later = pod("Failed", 0, container=ended(143, "2026-11-22T00:00:09Z"))
    first = pod("Failed", 1, container=ended(9, "2026-11-22T00:00:08Z"))
    state = told(job("Terminated", 2), later, first)
    assert (state.phase, state.exit_code, state.reason, state.was_preempted) == (Phase.ENDED, 9, "", False)
    assert f"{NAME}-worker-1 on n2, exit code 9" in state.why


@pytest.mark.parametrize("code", [9, 137])
def test_one_that_was_stopped_in_the_same_second_is_not_the_first(code: int) -> None:
    reason = "OOMKilled" if code == 137 else "Error"
    first = pod("Failed", 1, container=ended(code, reason=reason))
    for stopped in (
        pod("Failed", 0, container=ended(143)),
        pod("Failed", 0, deleted=True, container=ended(143, "2026")),
    ):
        state = told(job("Terminated", 2), stopped, first)
        assert (state.exit_code, state.was_preempted) == (code, False)


def test_pod_0_passes_on_the_status_of_the_one_that_has_failed() -> None:
    both = [pod("Failed", index, container=ended(9)) for index in (0, 1)]
    assert "worker-1" in told(job("Terminated", 2), *both).why


def test_its_own_container_counts_before_those_beside_it() -> None:
    shown = pod("Failed", container=ended(3))
    shown["status"]["containerStatuses"].insert(0, {"name": "beside", **ended(1)})
    assert told(job("Failed"), shown).exit_code == 3


@pytest.mark.parametrize(
    ("shown", "code", "reason"),
    [
        ({"container": ended(137, reason="OOMKilled")}, 137, OUT_OF_MEMORY),
        ({"container": ended(128, reason="StartError")}, 128, CANNOT_START),
        ({"container": ended(127, reason="ContainerCannotRun")}, 127, CANNOT_START),
        ({"reason": "DeadlineExceeded"}, None, TIME_LIMIT),
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, None, PREEMPTED),
        ({"reason": "OutOfcpu"}, None, PREEMPTED),
        ({"reason": "OutOfnvidia.com/gpu"}, None, PREEMPTED),
        ({"reason": "UnexpectedAdmissionError"}, None, PREEMPTED),
        ({"reason": "Terminated", "container": ended(143)}, 143, PREEMPTED),
        ({"container": ended(143), "conditions": [condition("DisruptionTarget", "True")]}, 143, PREEMPTED),
    ],
)
def test_why_a_pod_failed(shown: dict[str, Any], code: int | None, reason: str) -> None:
    state = told(job("Terminated"), pod("Failed", **shown))
    assert (state.phase, state.exit_code, state.reason) == (Phase.ENDED, code, reason)
    assert state.was_preempted == (reason == PREEMPTED)


@pytest.mark.parametrize(
    ("pods", "preempted"),
    [
        ([], True),
        ([pod("Succeeded", 0, container=ended(0))], True),
        ([pod("Succeeded", 0, container=ended(0)), pod("Succeeded", 1, deleted=True, container=ended(0))], True),
        # Ended with the others, because one was deleted.
        ([pod("Failed", 0, container=ended(143))], True),
        # Failed by itself, and the other was deleted because of that.
        ([pod("Failed", 0, container=ended(9))], False),
        ([pod("Failed", 0, container=ended(137, reason="OOMKilled"))], False),
        ([pod("Succeeded", 0, container=ended(0)), pod("Succeeded", 1, container=ended(0))], False),
    ],
)
@pytest.mark.parametrize("phase", ["Terminated", "Completed", "Failed"])
def test_pods_that_are_missing_were_evicted_or_deleted(phase: str, pods: list[Any], preempted: bool) -> None:
    """A container that is told to end may leave with 0, and its Job then is Completed."""
    assert told(job(phase, 2), *pods).was_preempted is preempted


def test_events_tell_of_an_eviction_too() -> None:
    events = [event("Evict", "Pod is evicted, because of reclaim"), event("Pulled", "Image", "Normal")]
    state = told(job("Failed"), pod("Failed", container=ended(1)), events=events)
    assert (state.reason, state.was_preempted) == (PREEMPTED, True)
    assert state.why.endswith("; Evict: Pod is evicted, because of reclaim")
    waited = [event("Unschedulable", f"{number}/100 tasks in gang unschedulable") for number in range(100)]
    assert "; Evict: Pod is evicted" in told(job("Terminated"), events=[*waited, *events]).why


def test_what_kept_a_gang_waiting_does_not_explain_how_it_ended() -> None:
    events = [event("PodGroupPending", "1/0 tasks in gang"), event("Unschedulable", "0/0 tasks"), event("Odd", "this")]
    state = told(job("Failed"), pod("Failed", container=ended(1)), events=events)
    assert state.why.endswith("exit code 1; Odd: this")
    never_ran = told(job("Failed"), events=events)
    assert never_ran.why.endswith("; PodGroupPending: 1/0 tasks in gang; Unschedulable: 0/0 tasks; Odd: this")


def test_aborted_is_what_somebody_has_done() -> None:
    state = told(job("Aborted"))
    assert (state.phase, state.reason, state.was_preempted) == (Phase.ENDED, CANCELLED, False)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Restarting"])
def test_restarted_by_volcano(phase: str) -> None:
    """Its script refuses a second run: the first one counts."""
    state = told(job(phase, retryCount=2), pod("Running", container=RUNS))
    assert state.was_preempted
    assert f"{phase}: restarted 2 times by Volcano" in state.why


@pytest.mark.parametrize("phase", ["Completed", "Failed", "Terminated", "Aborted"])
def test_a_job_has_not_ended_while_a_pod_of_it_lives(phase: str) -> None:
    state = told(job(phase), pod("Running", deleted=True, container=RUNS))
    assert (state.phase, state.exit_code) == (Phase.RUNNING, None)


@pytest.mark.parametrize("shown", [[], [job("Running", deleted=True)]], ids=["gone", "being deleted"])
def test_a_deleted_job_runs_as_long_as_a_pod_is_left(shown: list[Any]) -> None:
    live = pod("Running", deleted=True, container=RUNS, conditions=[READY])
    assert told(*shown, live).phase is Phase.RUNNING
    lost = pod("Running", 1, deleted=True, container=RUNS, conditions=[UNREADY])
    assert told(*shown, live, lost).phase is Phase.RUNNING
    state = told(*shown, lost)
    assert (state.phase, state.may_still_run, state.was_preempted) == (Phase.ENDED, True, False)
    assert told(*shown, pod("Failed", container=ended(3))).exit_code == 3


def test_what_has_vanished() -> None:
    gone = vanished([])
    assert (gone.phase, gone.exit_code, gone.reason, gone.may_still_run) == (Phase.ENDED, None, "", True)
    (evicted,) = read(event("Evict", "Pod is evicted, because of preempt"))
    assert (vanished([evicted]).reason, vanished([evicted]).was_preempted) == (PREEMPTED, True)
