"""How a helper is, from objects as API servers show them where the bed cannot bring them about."""

from __future__ import annotations

from typing import Any

from dispatcher.outlets.volcano.helper_state import HelperState, Stage, judge, warnings

NAME = "d-0123456789ab-helper-0123456789ab"


def job(*conditions: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"kind": "Job", "metadata": {"name": NAME, "uid": "u1", **metadata}, "status": {"conditions": conditions}}


def pod(status: dict[str, Any], name: str = "p", owner: str = "u1", **metadata: Any) -> dict[str, Any]:
    owners = [{"kind": "Job", "uid": owner}]
    return {"kind": "Pod", "metadata": {"name": name, "ownerReferences": owners, **metadata}, "status": status}


def container(**state: Any) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": [{"name": "helper", "state": state}]}


READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def test_a_ready_pod_of_this_job_alone_is_used() -> None:
    assert judge(NAME, [job(), pod(READY)]) == HelperState(stage=Stage.READY, pod="p")
    assert judge(NAME, [pod(READY)]).stage is Stage.ABSENT
    assert judge(NAME, [job(), pod(READY, owner="u0")]).stage is Stage.WAITING
    deleted = pod(READY, deletionTimestamp="2026-11-22T16:00:00Z")
    assert judge(NAME, [job(), deleted]).stage is Stage.WAITING
    assert judge(NAME, [job(), deleted, pod(READY, name="q")]).pod == "q"


def test_one_whose_node_does_not_answer_has_to_be_replaced() -> None:
    """The Job makes no other pod before the cluster has given up the node, which takes minutes."""
    runs = {"phase": "Running", "containerStatuses": [{"name": "helper", "ready": True}]}
    lost = pod({**runs, "conditions": [{"type": "Ready", "status": "False"}]})
    lost["spec"] = {"nodeName": "n1"}
    state = judge(NAME, [job(), lost])
    assert (state.stage, state.pod, state.why) == (Stage.ENDED, "p", "node n1 does not answer")


def test_a_job_that_is_being_deleted_is_waited_for() -> None:
    state = judge(NAME, [job(deletionTimestamp="2026-11-22T16:00:00Z"), pod(READY)])
    assert state.stage is Stage.WAITING
    assert "being deleted" in state.why


def test_a_node_that_does_not_answer_has_no_ready_pod() -> None:
    lost = {"type": "Ready", "status": "False", "reason": "NodeNotReady", "message": "node is not ready"}
    state = judge(NAME, [job(), pod({"phase": "Running", "conditions": [lost]})])
    assert state == HelperState(stage=Stage.WAITING, pod="p", why="NodeNotReady: node is not ready")


def test_what_the_image_lacks_is_told() -> None:
    message = (
        'failed to create containerd task: failed to start container: exec: "python3": executable file not found in '
        "$PATH: unknown"
    )
    ended = {"exitCode": 128, "reason": "StartError", "message": message}
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached it"}
    state = judge(NAME, [job(failed), pod({**container(terminated=ended), "phase": "Failed"})])
    assert state.stage is Stage.ENDED
    assert state.why == f"StartError: {message}; status 128"
    assert judge(NAME, [job(failed)]).why == "BackoffLimitExceeded: Job has reached it"


def test_an_evicted_pod_has_ended_with_its_reason() -> None:
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    state = judge(NAME, [job(), pod(evicted)])
    assert state == HelperState(stage=Stage.ENDED, pod="p", why="Evicted: The node was low on resource: memory.")


def test_what_cannot_start_by_itself_is_not_waited_for() -> None:
    for reason in ("InvalidImageName", "CreateContainerConfigError", "ImagePullBackOff"):
        state = judge(NAME, [job(), pod(container(waiting={"reason": reason, "message": "m"}))])
        assert state == HelperState(stage=Stage.BROKEN, pod="p", why=f"{reason}: m")
    creating = judge(NAME, [job(), pod(container(waiting={"reason": "ContainerCreating"}))])
    assert creating == HelperState(stage=Stage.WAITING, pod="p", why="ContainerCreating")


def test_warnings_are_told_once_and_the_last_of_each_reason() -> None:
    events = [
        {"metadata": {}, "reason": "FailedMount", "message": "old", "lastTimestamp": "2026-11-22T16:00:00Z"},
        {"metadata": {}, "reason": "FailedMount", "message": "new\n one", "lastTimestamp": "2026-11-22T16:00:09Z"},
        {"metadata": {}, "reason": "FailedScheduling", "message": "no room", "eventTime": "2026-11-22T16:00:05Z"},
        {"metadata": {"creationTimestamp": "2026-11-22T15:00:00Z"}, "reason": "Odd", "message": None},
    ]
    assert warnings(events, "Unschedulable: no room") == "Odd; FailedMount: new one"
