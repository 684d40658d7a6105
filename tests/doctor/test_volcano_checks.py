"""What `doctor` finds out about a Kubernetes cluster with Volcano, on a real API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from beds.volcano import VolcanoBed

from dispatcher.config import load_config
from dispatcher.doctor import outlet_checks
from dispatcher.doctor.context import Context
from dispatcher.doctor.findings import OK, UNKNOWN, WARNING, WRONG, Finding
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.workspace import Layout

pytestmark = pytest.mark.slow

Examine = Callable[..., list[Finding]]


@pytest.fixture
def examine(volcano: VolcanoBed, tmp_path: Path) -> Examine:
    """The findings about a host `v` with these keys changed."""
    volcano.make_volume("data")

    def examine(**changes: object) -> list[Finding]:
        keys = {
            **{"type": "volcano", "image": "python:3.12", "pvc_name": "data", "pvc_mount_path": "/mnt/volume"},
            **{"kubeconfig": volcano.kubeconfig, "namespace": volcano.namespace, **changes},
        }
        layout = Layout(tmp_path)
        layout.config_file.write_text(yaml.safe_dump({"hosts": {"v": keys}}))
        return list(outlet_checks.hosts(Context(layout, load_config(layout))))

    return examine


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {one.check.removeprefix("host v").strip(): one for one in findings}


def test_a_cluster_that_can_be_used(volcano: VolcanoBed, examine: Examine) -> None:
    volcano.make_queue("team", capability={"nvidia.com/gpu": "8"})
    found = examine(queue="team")
    assert {one.verdict for one in found} == {OK}, found
    told = by_check(found)
    assert any("Kubernetes v1.20" in one.what for one in found)
    assert told["rights"].what == f"all that is needed in namespace {volcano.namespace}"
    assert told["queue"].what == "the Queue team is open, with at most nvidia.com/gpu 8"
    assert told["pvc_name"].what == "the claim data is bound, ReadWriteMany"
    assert told["volume"].what == "/mnt/volume"
    assert told["nodes"].what == "2 nodes with nvidia.com/gpu, at most 8 each"
    assert told["Jobs"].what == "of this workspace: none"
    assert told["helpers"].what == "none is left"
    assert volcano.kubectl("get", "jobs.batch", "-o", "name").stdout == ""


def test_what_is_missing(examine: Examine) -> None:
    told = by_check(examine(queue="nosuch", pvc_name="nodata", service_account="nobody", priority_class="none"))
    for key, name in {
        "queue": "nosuch",
        "pvc_name": "nodata",
        "service_account": "nobody",
        "priority_class": "none",
    }.items():
        assert told[key].verdict == WRONG
        assert f"there is no {name}: Error from server (NotFound)" in told[key].what
        assert told[key].cure


def test_nodes_that_are_smaller_than_the_configuration_says(examine: Examine) -> None:
    told = by_check(examine(chips={"h100": 16}))
    assert told["nodes"].verdict == WARNING
    assert "has 16 nvidia.com/gpu, the largest has 8" in told["nodes"].what
    assert "`chips` and `gpus_per_node` are the GPUs of one node" in told["nodes"].cure


def test_a_user_without_rights(volcano: VolcanoBed, examine: Examine) -> None:
    told = by_check(examine(context="ordinary"))
    assert told["rights"].verdict == WARNING
    wrong = [one for one in examine(context="ordinary") if one.verdict == WRONG and one.check == "host v rights"]
    assert "the user may not create jobs.batch.volcano.sh, get jobs.batch.volcano.sh" in wrong[0].what
    assert "create pods/exec" in wrong[0].what
    assert "RoleBinding" in wrong[0].cure
    assert told["queue"].verdict == UNKNOWN
    assert told["Jobs"].verdict == WRONG


def test_a_cluster_that_cannot_be_asked(examine: Examine) -> None:
    (_, wrong) = examine(context="nosuch")
    assert wrong.verdict == WRONG
    assert 'context "nosuch" does not exist' in wrong.what
    assert "--context=nosuch get pods" in wrong.cure


def test_what_is_left_of_this_workspace(volcano: VolcanoBed, examine: Examine, tmp_path: Path) -> None:
    labels = {"dispatcher/workspace": workspace_id(Layout(tmp_path)), "dispatcher/helper": "h"}
    metadata = {"name": "h", "labels": labels, "annotations": {"dispatcher/owner": "pod-a"}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "helper", "image": "i", "command": ["sleep", "600"]}]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod}}}
    volcano.create(job)
    told = by_check(examine())
    assert told["helpers"].what.startswith("1 helper: h of pod-a;")


def test_an_image_without_what_attempts_need(examine: Examine) -> None:
    wrong = [one for one in examine(image="registry.example/missing:1") if one.verdict == WRONG]
    assert len(wrong) == 1
    assert "registry.example/missing:1" in wrong[0].what
