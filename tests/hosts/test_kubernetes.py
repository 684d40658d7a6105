"""What Kubernetes takes as names, labels, resources and tolerations, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import load_config
from dispatcher.errors import ConfigError
from dispatcher.hosts.types import VolcanoHost
from dispatcher.workspace import Layout

SMALLEST = "hosts: {k: {type: volcano, image: i, pvc_name: p, pvc_mount_path: /p%s}}"


def read(root: Path, keys: str) -> VolcanoHost:
    (root / "dispatcher.yaml").write_text(SMALLEST % f", {keys}")
    host = load_config(Layout(root)).hosts.hosts["k"]
    assert isinstance(host, VolcanoHost)
    return host


@pytest.mark.parametrize(
    ("keys", "field", "expected"),
    [
        ("namespace: team-1", "namespace", "team-1"),
        ("queue: team.a", "queue", "team.a"),
        ("gpu_resource_key: amd.com/gpu", "gpu_resource_key", "amd.com/gpu"),
        ("rdma_resource_key: nvidia.com/hostdev", "rdma_resource_key", "nvidia.com/hostdev"),
        ("labels: {team: '1e3', a.b/c: ''}", "labels", {"team": "1e3", "a.b/c": ""}),
        ("node_selector: {kubernetes.io/arch: amd64}", "node_selector", {"kubernetes.io/arch": "amd64"}),
        ("tolerations: [{operator: Exists}]", "tolerations", ({"operator": "Exists"},)),
        (
            "tolerations: [{key: a, value: b, effect: NoExecute, tolerationSeconds: 60}]",
            "tolerations",
            ({"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": "60"},),
        ),
        ("helper_resources: {cpu: 100m, memory: 1Gi}", "helper_resources", {"cpu": "100m", "memory": "1Gi"}),
    ],
)
def test_what_can_be_used(tmp_path: Path, keys: str, field: str, expected: Any) -> None:
    assert getattr(read(tmp_path, keys), field) == expected


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("namespace: a.b", "hosts.k.namespace = \"a.b\": expected at most 63 small letters, digits and '-'"),
        ("queue: Lab", "hosts.k.queue = \"Lab\": expected small letters, digits, '-' and '.', beginning and ending"),
        ("priority_class: a_b", 'hosts.k.priority_class = "a_b": expected small letters'),
        ("service_account: -x", 'hosts.k.service_account = "-x": expected a name'),
        (f"queue: {'q' * 254}", "hosts.k.queue = "),
        ("gpu_resource_key: gpu", 'hosts.k.gpu_resource_key = "gpu": expected a resource with its domain'),
        ("rdma_resource_key: a/b/c", 'hosts.k.rdma_resource_key = "a/b/c": expected a key such as'),
        ("labels: {a b: c}", 'hosts.k.labels.a b = "a b": expected a name without blanks'),
        ("labels: {a: b c}", 'hosts.k.labels.a = "b c": expected at most 63 letters'),
        ("labels: {dispatcher/x: y}", 'hosts.k.labels.dispatcher/x = "dispatcher/x": labels of dispatcher/ are set by'),
        ("labels: [a]", 'hosts.k.labels = ["a"]: expected names and values such as'),
        ("tolerations: [{effect: NoShedule}]", "(did you mean 'NoSchedule'?)"),
        ("tolerations: [{keys: a}]", "hosts.k.tolerations[0].keys: unknown key (did you mean 'key'?)"),
        ("tolerations: [{tolerationSeconds: soon}]", 'hosts.k.tolerations[0].tolerationSeconds = "soon": expected'),
        ("helper_resources: {cpu: lots}", 'hosts.k.helper_resources.cpu = "lots": expected an amount'),
        ("shm_size: 64Gb", 'hosts.k.shm_size = "64Gb": expected an amount'),
    ],
)
def test_what_cannot(tmp_path: Path, keys: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, keys)
    assert message in str(raised.value)


@pytest.mark.parametrize("path", ["data", "~/data", "$HOME/data", "/a/../b", "/a:b", "/"])
def test_a_volume_is_mounted_at_one_absolute_path(tmp_path: Path, path: str) -> None:
    (tmp_path / "dispatcher.yaml").write_text(
        f"hosts: {{k: {{type: volcano, image: i, pvc_name: p, pvc_mount_path: '{path}'}}}}"
    )
    with pytest.raises(ConfigError, match=r"hosts.k.pvc_mount_path = .*: expected an absolute path"):
        load_config(Layout(tmp_path))
