"""`--volcano-image`, `--tpu-spot` and the like: what pods and submissions run with, and where they find it again."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.hosts.types import AnyHost, TpuHost, VolcanoHost

HOSTS = """
hosts:
  k1: {type: volcano, image: i, pvc_name: p, pvc_mount_path: /p, namespace: lab}
  k2: {type: volcano, image: i, pvc_name: p, pvc_mount_path: /p}
  t: {type: tpu, zone: z, accelerator_type: v4-8, version: v1, spot: true}
  w: {ssh: w}
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configuration of every pod that would have run."""
    import dispatcher.pod.run

    found: list[Config] = []
    monkeypatch.setattr(dispatcher.pod.run, "run_pod", lambda _layout, config, _options, log: found.append(config))
    return found


def volcano(host: AnyHost) -> tuple[str, str]:
    assert isinstance(host, VolcanoHost)
    return host.image, host.namespace


def test_a_pod(lab: Any, started: list[Config]) -> None:
    (lab.root / "dispatcher.yaml").write_text(HOSTS)
    words = "--pod p --outlet k1:4 --outlet t:1 --volcano-image j:2 --volcano-namespace team --tpu-on-demand"
    assert lab.run(*words.split()).code == 0
    hosts = started[0].hosts.hosts
    assert (volcano(hosts["k1"]), volcano(hosts["k2"])) == (("j:2", "team"), ("i", "default"))
    assert isinstance(hosts["t"], TpuHost) and not hosts["t"].spot


def test_a_pod_with_variables(lab: Any, started: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.root / "dispatcher.yaml").write_text(HOSTS)
    monkeypatch.setenv("DISPATCHER_VOLCANO_IMAGE", "j")
    monkeypatch.setenv("DISPATCHER_TPU_SPOT", "0")
    assert lab.run("--pod", "p", "--outlet", "k1:4", "--outlet", "t:1").code == 0
    hosts = started[0].hosts.hosts
    assert volcano(hosts["k1"]) == ("j", "lab")
    assert isinstance(hosts["t"], TpuHost) and not hosts["t"].spot


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--pod p --outlet w:1 --volcano-image j", "--volcano-image is for hosts of type volcano, and none is meant"),
        ("--pod p --slots 1 --tpu-spot", "--tpu-spot is for hosts of type tpu, and none is meant here"),
        ("--pod p --outlet t:1 --tpu-spot --tpu-preemptible", "--tpu-preemptible and --tpu-spot exclude each other"),
        ("--pod p --outlet k1:1 --volcano-image -x", "one that begins with '-' would be taken for an option"),
        ("submit --outlet w base --tpu-version v2", "--tpu-version is for hosts of type tpu, and none is meant here"),
        ("submit base --tpu-version v2 --tpu-spot --tpu-preemptible", "exclude each other"),
        ("status --volcano-image j", "--volcano-image"),
    ],
)
def test_what_cannot_be_is_refused(lab: Any, started: list[Config], words: str, why: str) -> None:
    (lab.root / "dispatcher.yaml").write_text(HOSTS)
    outcome = lab.run(*words.split())
    assert outcome.code == 2 and why in outcome.err and started == []
