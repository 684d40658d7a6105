"""The Job as data: golden files, values that Kubernetes or YAML might read as something else, and Volcano's schemas.

DISPATCHER_WRITE_GOLDEN=1 in the environment writes the golden files anew: read their changes before they are committed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from beds.volcano_schema import RELEASES, check
from hypothesis import given
from hypothesis import strategies as st
from volcano_jobs import NAME, make_host, make_submission

from dispatcher.outlets.base import Request
from dispatcher.outlets.batch.scheduler import Submission
from dispatcher.outlets.remote.operations import Run
from dispatcher.outlets.volcano.manifest import TASK, job_name
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout

GOLDEN = Path(__file__).parent.parent / "golden"
ALL_KEYS: dict[str, Any] = {
    "namespace": "training",
    "queue": "lab",
    "gpus_per_node": 8,
    "cpu": "32",
    "memory": "256Gi",
    "shm_size": "64Gi",
    "priority_class": "high",
    "service_account": "trainer",
    "rdma": True,
    "rdma_per_node": 4,
    "node_selector": {"gpu": "h100"},
    "tolerations": ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": "60"},),
    "labels": {"team": "speech", "switch": "no"},
    "env": {"NCCL_DEBUG": "WARN", "PRICE": "$5 $(HOME) $$ ${X}"},
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "volcano_cpu": ({"cpu_cpu": "500m", "cpu_memory": "2Gi"}, {}),
    "volcano_gpus": (
        {"gpus_per_node": 8},
        {"request": Request(gpus=2, cpus=6, memory_mib=4096), "time_limit_s": 3600.5},
    ),
    "volcano_all_keys": (ALL_KEYS, {"request": Request(gpus=16)}),
}
# What YAML, JSON or Kubernetes has a meaning for.
HOSTILE = (
    "no", "1e3", "0x10", "0o7", "~", "null", "true", ": ", "a: b", "- a", "#", "a\nb", '"', "'", "a'; echo foo", "\\",
    "{{ x }}", "$(HOME)", "$$", "$", "${X}", "$$(X)", "%s", "\t", "2026-11-22", "é\u2028", "*a", "&a", "!!int 3", "|",
    "",
)  # fmt: skip


def jobs(given_: Submission, layout: Path = Path("/nonexistent"), **keys: Any) -> list[dict[str, Any]]:
    """What is sent."""
    operation = VolcanoScheduler(make_host(**keys), Layout(layout), 30).submit(given_)
    assert isinstance(operation, Run)
    sent = json.loads(operation.stdin)
    assert sent.keys() == {"apiVersion", "kind", "items"}
    assert (sent["apiVersion"], sent["kind"]) == ("v1", "List")
    items: list[dict[str, Any]] = sent["items"]
    return items


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["tasks"][0]["template"]["spec"]
    return spec


def expanded(value: str, variables: dict[str, str]) -> str:
    """What the kubelet makes of a value: `$$` is `$`, `$(NAME)` a variable's value where there is one."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[0] == "$$" else variables.get(found[1], found[0]), value
    )


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    keys, words = CASES[case]
    (made,) = jobs(make_submission(**words), **keys)
    golden = GOLDEN / f"{case}.yaml"
    if os.environ.get("DISPATCHER_WRITE_GOLDEN"):
        golden.write_text(yaml.safe_dump(made, sort_keys=False, width=120))
    assert made == yaml.safe_load(golden.read_text())


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", CASES)
def test_it_fits_the_definitions_of_volcano(case: str, release: str) -> None:
    keys, words = CASES[case]
    for made in jobs(make_submission(count=2, **words), **keys):
        check(made, release)


@given(st.sampled_from(HOSTILE) | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_values_arrive_as_they_were(value: str) -> None:
    submission = make_submission()
    (bundle,) = submission.bundles
    bundle = msgspec.structs.replace(bundle, environment={"DISPATCHER_ATTEMPT_DIR": value})
    (made,) = jobs(msgspec.structs.replace(submission, bundles=(bundle,)), env={"A": value, "HOME": "/root"})
    (container,) = pod_of(made)["containers"]
    env = {each["name"]: each.get("value", "") for each in container["env"]}
    assert expanded(env["A"], {"HOME": "/root", "X": "x"}) == value
    assert expanded(env["DISPATCHER_ATTEMPT_DIR"], {"HOME": "/root", "X": "x"}) == value
    for release in RELEASES:
        check(made, release)


@given(st.sampled_from(HOSTILE) | st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_values_of_the_host_are_data(value: str) -> None:
    keys = {
        "image": value, "queue": value, "priority_class": value, "service_account": value, "shm_size": value,
        "node_selector": {"a": value}, "labels": {"a": value}, "tolerations": ({"key": value},),
    }  # fmt: skip
    (made,) = jobs(make_submission(), **keys)
    pod = pod_of(made)
    assert pod["containers"][0]["image"] == value
    assert (made["spec"]["queue"], made["metadata"]["labels"]["a"]) == (value, value)
    assert pod["nodeSelector"] == {"a": value}
    assert pod["tolerations"] == [{"key": value}]
    assert pod["volumes"][1]["emptyDir"] == {"medium": "Memory", "sizeLimit": value}
    assert made["spec"].get("priorityClassName", "") == value
    assert pod.get("priorityClassName", "") == value
    assert pod.get("serviceAccountName", "") == value


def test_names_are_short_enough_for_what_kubernetes_makes_of_them() -> None:
    # What Volcano calls a pod of the Job.
    longest = f"{job_name(NAME, 999)}-{TASK}-9999"
    assert len(longest) <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", longest)


def test_each_attempt_has_a_job_of_its_own() -> None:
    made = jobs(make_submission(count=3))
    assert [job["metadata"]["name"] for job in made] == [f"{NAME}-{index}" for index in range(3)]
    for index, job in enumerate(made):
        assert job["metadata"]["annotations"] == {"dispatcher/job-id": f"j{index}", "dispatcher/attempt": "1"}
        pod = job["spec"]["tasks"][0]["template"]["metadata"]
        assert pod["labels"] == job["metadata"]["labels"]
        assert pod["labels"]["dispatcher/submission"] == NAME
        assert pod["labels"]["dispatcher/workspace"] == NAME.split("-")[1]


def test_a_gang_begins_as_a_whole_and_ends_as_a_whole() -> None:
    (job,) = jobs(make_submission(request=Request(gpus=12)), gpus_per_node=4)
    (task,) = job["spec"]["tasks"]
    assert (job["spec"]["minAvailable"], task["replicas"]) == (3, 3)
    assert job["spec"]["policies"] == [{"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"}]
    assert pod_of(job)["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_only_pods_with_gpus_get_rdma_devices() -> None:
    """Of a job without GPUs they would keep others from using theirs, and it would wait for a node that has them."""
    keys: dict[str, Any] = {"rdma": True, "rdma_per_node": 4, "gpus_per_node": 8}
    (with_gpus,), (without,) = (jobs(make_submission(request=Request(gpus=n)), **keys) for n in (16, 0))
    (container,) = pod_of(with_gpus)["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/hca": "4"}
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    (container,) = pod_of(without)["containers"]
    assert (container["resources"], "securityContext" in container) == ({}, False)


def test_kubernetes_gives_the_wrapper_its_grace_period_and_its_time() -> None:
    (job,) = jobs(make_submission(time_limit_s=600.0))
    pod = pod_of(job)
    assert pod["terminationGracePeriodSeconds"] > 30
    assert pod["activeDeadlineSeconds"] > 600 + pod["terminationGracePeriodSeconds"]
    assert pod["restartPolicy"] == "Never"
    (without,) = jobs(make_submission())
    assert "activeDeadlineSeconds" not in pod_of(without)
