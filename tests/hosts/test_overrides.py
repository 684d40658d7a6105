"""Keys of hosts that the command line changes."""

from __future__ import annotations

import pytest

from dispatcher.errors import UsageError
from dispatcher.hosts.overrides import HostOverrides
from dispatcher.hosts.types import Hosts, PlainHost, TpuHost, VolcanoHost

K8S = VolcanoHost(name="k", cluster="k", image="i", pvc_name="p", pvc_mount_path="/p", namespace="lab")
TPU = TpuHost(name="t", cluster="t", zone="z", accelerator_type="v4-8", version="v1")
OTHER = TpuHost(name="u", cluster="u", zone="z", accelerator_type="v4-8", version="v1")
HOSTS = Hosts(hosts={host.name: host for host in (K8S, TPU, OTHER, PlainHost(name="w", cluster="w", ssh="w"))})


def test_nothing_given_changes_nothing() -> None:
    assert HostOverrides().over(HOSTS, ["k", "t"]) == HOSTS
    assert HostOverrides().over(HOSTS, []) == HOSTS


def test_what_is_given_counts_for_the_hosts_that_are_meant() -> None:
    given = HostOverrides(volcano_image="j", tpu_version="v2")
    found = given.over(HOSTS, ["k", "t", "w"]).hosts
    k8s, tpu = found["k"], found["t"]
    assert isinstance(k8s, VolcanoHost) and (k8s.image, k8s.namespace) == ("j", "lab")
    assert isinstance(tpu, TpuHost) and tpu.version == "v2"
    assert (found["u"], found["w"]) == (OTHER, HOSTS.hosts["w"])
    elsewhere = HostOverrides(volcano_namespace="team").over(HOSTS, ["k"]).hosts["k"]
    assert isinstance(elsewhere, VolcanoHost) and (elsewhere.image, elsewhere.namespace) == ("i", "team")


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        ({}, {"tpu_spot": True}, (True, False)),
        ({"spot": True}, {"tpu_spot": False}, (False, False)),
        ({"preemptible": True}, {"tpu_spot": False}, (False, False)),
        ({"preemptible": True}, {"tpu_spot": True}, (True, False)),
        ({"spot": True}, {"tpu_preemptible": True}, (False, True)),
        ({"preemptible": True}, {"tpu_preemptible": False}, (False, False)),
        ({"spot": True}, {"tpu_preemptible": False}, (True, False)),
        ({"spot": True}, {"tpu_version": "v2"}, (True, False)),
    ],
)
def test_spot_preemptible_and_neither(
    before: dict[str, bool], given: dict[str, object], after: tuple[bool, bool]
) -> None:
    host = TpuHost(name="t", cluster="t", zone="z", accelerator_type="v4-8", **before)
    found = HostOverrides(**given).over(Hosts(hosts={"t": host}), ["t"]).hosts["t"]  # type: ignore[arg-type]
    assert isinstance(found, TpuHost) and (found.spot, found.preemptible) == after


@pytest.mark.parametrize("given", [{"tpu_spot": True}, {"tpu_preemptible": True}])
def test_what_google_may_preempt_is_not_of_a_reservation(given: dict[str, bool]) -> None:
    host = TpuHost(name="t", cluster="t", zone="z", accelerator_type="v4-8", reserved=True, reservation="r")
    hosts = Hosts(hosts={"t": host})
    changed = HostOverrides(**given).over(hosts, ["t"]).hosts["t"]  # type: ignore[arg-type]
    assert isinstance(changed, TpuHost) and (changed.reserved, changed.reservation) == (False, None)
    for kept in (HostOverrides(tpu_spot=False), HostOverrides(tpu_version="v2")):
        same = kept.over(hosts, ["t"]).hosts["t"]
        assert isinstance(same, TpuHost) and (same.reserved, same.reservation) == (True, "r")


@pytest.mark.parametrize(
    ("given", "meant", "why"),
    [
        (HostOverrides(volcano_image="j"), ["t"], "--volcano-image is for hosts of type volcano, and none is meant"),
        (HostOverrides(volcano_namespace="j"), [], "--volcano-namespace is for hosts of type volcano"),
        (HostOverrides(tpu_spot=False), ["k"], "--tpu-on-demand is for hosts of type tpu"),
        (HostOverrides(tpu_preemptible=False), ["unknown"], "--tpu-no-preemptible is for hosts of type tpu"),
        (HostOverrides(tpu_preemptible=True, tpu_spot=True), ["t"], "--tpu-preemptible and --tpu-spot exclude"),
        (HostOverrides(tpu_preemptible=True, tpu_spot=False), ["t"], "--tpu-preemptible and --tpu-on-demand exclude"),
    ],
)
def test_what_cannot_be_is_refused(given: HostOverrides, meant: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        given.over(HOSTS, meant)
