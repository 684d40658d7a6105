"""A project's own parts of the Job: merged as data, and refused where they break what the dispatcher relies on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from beds.volcano_schema import RELEASES, check
from outlets.volcano.test_manifest import jobs, pod_of
from volcano_jobs import make_host, make_submission

from dispatcher.errors import ConfigError
from dispatcher.outlets.base import Request
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout

POD = "spec: {tasks: [{name: worker, template: {spec: %s}}]}"


def with_template(root: Path, text: str, gpus: int = 0, **keys: Any) -> dict[str, Any]:
    (root / "templates").mkdir(exist_ok=True)
    (root / "templates" / "volcano.yaml").write_text(text)
    (made,) = jobs(make_submission(request=Request(gpus=gpus)), root, **keys)
    for release in RELEASES:
        check(made, release)
    return made


def test_mappings_are_merged_and_lists_of_names_by_name(tmp_path: Path) -> None:
    text = """
metadata: {labels: {cost-center: "0x10"}, annotations: {note: "no"}}
spec:
  queue: other
  minSuccess: 1
  tasks:
  - name: worker
    template:
      spec:
        hostNetwork: true
        containers:
        - name: attempt
          env: [{name: EXTRA, value: "1e3"}, {name: A, value: "yes: no"}]
          volumeMounts: [{name: scratch, mountPath: /scratch}]
        - name: beside
          image: side
        volumes: [{name: scratch, emptyDir: {}}]
"""
    made = with_template(tmp_path, text, env={"A": "1"}, labels={"team": "x"})
    assert made["metadata"]["labels"]["cost-center"] == "0x10"
    assert made["metadata"]["labels"]["team"] == "x"
    assert made["metadata"]["annotations"]["note"] == "no"
    assert (made["spec"]["queue"], made["spec"]["minSuccess"]) == ("other", 1)
    pod = pod_of(made)
    assert pod["hostNetwork"] is True
    own, beside = pod["containers"]
    assert (own["image"], beside["image"]) == ("img", "side")
    env = {each["name"]: each.get("value") for each in own["env"]}
    assert (env["EXTRA"], env["A"], env["DISPATCHER_VOLCANO_MODE"]) == ("1e3", "yes: no", "1")
    assert [each["mountPath"] for each in own["volumeMounts"]] == ["/data", "/scratch"]
    assert [each["name"] for each in pod["volumes"]] == ["dispatcher", "scratch"]


def test_null_removes_and_other_lists_are_replaced(tmp_path: Path) -> None:
    text = POD % (
        "{tolerations: [{key: b}], containers: [{name: attempt, securityContext: null,"
        " resources: {limits: {rdma/hca: null, rdma/other: 2}}}]}"
    )
    with_rdma = with_template(tmp_path, text, tolerations=({"key": "a"},), rdma=True, gpus=1)
    pod = pod_of(with_rdma)
    assert pod["tolerations"] == [{"key": "b"}]
    (container,) = pod["containers"]
    assert "securityContext" not in container
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "rdma/other": 2}
    # Of a Job that has none of it, too.
    (container,) = pod_of(with_template(tmp_path, text))["containers"]
    assert "securityContext" not in container
    assert container["resources"]["limits"] == {"rdma/other": 2}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("metadata: {name: x}", 'metadata.name = "x"'),
        ("metadata: {namespace: x}", 'metadata.namespace = "x"'),
        ("metadata: {labels: {dispatcher/submission: x}}", 'labels of the Job: dispatcher/submission = "x"'),
        ("metadata: {labels: null}", "labels of the Job: dispatcher/workspace"),
        ("spec: {minAvailable: 0}", "spec.minAvailable = 0"),
        ("spec: {maxRetry: 5}", "spec.maxRetry = 5"),
        ("spec: {policies: []}", "spec.policies = []"),
        ("spec: {schedulerName: default-scheduler}", "spec.schedulerName"),
        ("spec: {tasks: null}", "names of spec.tasks"),
        ("spec: {tasks: [{name: more}]}", 'names of spec.tasks = ["worker", "more"]'),
        ("spec: {tasks: [{name: worker, replicas: 3}]}", "spec.tasks[worker].replicas = 3"),
        (POD % "{restartPolicy: OnFailure}", "restartPolicy"),
        (POD % "{containers: [{name: attempt, command: [sh]}]}", 'containers[attempt].command = ["sh"]'),
        (POD % "{containers: [{name: attempt, args: [sh]}]}", 'containers[attempt].args = ["sh"]'),
        (POD % "{containers: [{name: attempt, env: [{name: DISPATCHER_X, value: x}]}]}", "env[DISPATCHER_X]"),
        (POD % "{containers: [{name: attempt, env: null}]}", "DISPATCHER_VOLCANO_MODE"),
        ("spec: 3", "spec.schedulerName"),
        ("- a", "holds [\"a\"]: expected parts of a Volcano Job"),
        ("a: [", "line 1, column"),
        ("a: b\na: c", "line 2"),
    ],
)  # fmt: skip
def test_what_the_dispatcher_relies_on_cannot_be_changed(tmp_path: Path, text: str, place: str) -> None:
    """It is an error when the dispatcher starts, with the file, the place and the value."""
    path = tmp_path / "templates" / "volcano.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        VolcanoScheduler(make_host(), Layout(tmp_path), 30)
    assert str(raised.value).startswith(f"{path}: ")
    assert place in str(raised.value)


def test_a_template_that_json_cannot_say(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "volcano.yaml").write_text("spec: {minSuccess: .nan}")
    with pytest.raises(ConfigError, match="cannot be sent"):
        VolcanoScheduler(make_host(), Layout(tmp_path), 30)
