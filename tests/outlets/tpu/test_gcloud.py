"""The words of gcloud, and what its answers and failures mean."""

from __future__ import annotations

import json

import pytest

from dispatcher.errors import OutletError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.operations import Failed, Ran
from dispatcher.outlets.tpu import gcloud
from dispatcher.outlets.tpu.gcloud import Endpoint, Failure, GcloudError, Queued

HOST = TpuHost(name="pod", cluster="pod", zone="z", accelerator_type="v4-32", version="v2-tpu")
WORKSPACE = "0123456789ab"
# What is appended to all of them.
COMMON = ["--zone=z", "--format=json", "--quiet"]
HEAD = "ERROR: (gcloud.compute.tpus.tpu-vm.create) "


def host(**settings: object) -> TpuHost:
    base = {"name": "pod", "cluster": "pod", "zone": "z", "accelerator_type": "v4-32", "version": "v"}
    # Without the timer, which is metadata.
    return TpuHost(**{**base, "dead_after_s": None, **settings})


def test_every_option_of_a_host_is_given() -> None:
    places = {"project": "p", "network": "n", "subnetwork": "s"}
    made = host(**places, spot=True, service_account="a@b", internal_ip=True, metadata={"k": "v"})
    shape = [
        "--accelerator-type=v4-32", f"--labels=dispatcher-workspace={WORKSPACE}", "--spot", "--network=n",
        "--subnetwork=s", "--service-account=a@b", "--internal-ips", "--metadata=^,^k=v",
    ]  # fmt: skip
    common = ["--zone=z", "--project=p", "--format=json", "--quiet"]
    vm, queued = ["gcloud", "compute", "tpus", "tpu-vm"], ["gcloud", "compute", "tpus", "queued-resources"]
    assert gcloud.create(made, WORKSPACE) == [*vm, "create", "pod", "--version=v", *shape, *common]
    name = f"d-{WORKSPACE}-pod"
    assert gcloud.create_queued(made, WORKSPACE) == [
        *queued, "create", name, "--node-id=pod", "--runtime-version=v", *shape, "--valid-until-duration=86400s",
        "--async", *common,
    ]  # fmt: skip
    assert gcloud.describe(HOST) == [*vm, "describe", "pod", *COMMON]
    assert gcloud.delete(HOST) == [*vm, "delete", "pod", *COMMON]
    assert gcloud.delete_queued(HOST, name) == [*queued, "delete", name, "--force", *COMMON]


def test_preemptible_vms_cannot_be_queued_for_and_spot_ones_are_instead() -> None:
    made = host(preemptible=True)
    assert "--preemptible" in gcloud.create(made, WORKSPACE)
    assert "--spot" not in gcloud.create(made, WORKSPACE)
    assert "--spot" in gcloud.create_queued(made, WORKSPACE)


@pytest.mark.parametrize("command", [gcloud.create, gcloud.create_queued])
def test_a_vm_without_a_version_is_not_created(command: object) -> None:
    with pytest.raises(OutletError, match=r"hosts\.pod\.version is missing.*versions list --zone=z"):
        command(host(version=None), WORKSPACE)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["Pod", "1pod", "pod_1", "pod.1", "pod-", "p" * 64])
def test_names_that_no_vm_can_have(name: str) -> None:
    assert f"hosts.{name}: " in gcloud.name_problem(host(name=name))


@pytest.mark.parametrize("name", ["pod", "p", "pod-1", "p" * 63])
def test_the_request_of_a_host_has_one_name_that_google_takes(name: str) -> None:
    assert gcloud.name_problem(host(name=name)) == ""
    queued = gcloud.queued_id(WORKSPACE, name)
    assert gcloud.name_problem(host(name=queued)) == ""
    assert queued == gcloud.queued_id(WORKSPACE, name) != gcloud.queued_id("f" * 12, name)


NO_CAPACITY = json.dumps({"code": 8, "message": 'There is no more capacity in the zone "z"; try another'}, indent=2)


@pytest.mark.parametrize(
    ("status", "err", "failure"),
    [
        (2, "ERROR: (gcloud.x) argument --version: Must be specified.\nUsage: quota", Failure.REFUSED),
        (1, f"{HEAD}NOT_FOUND: Resource 'projects/p/locations/z/nodes/pod' was not found. more", Failure.ABSENT),
        (1, f"{HEAD}NOT_FOUND: Resource 'projects/p/locations/z/queuedResources/q' was not found", Failure.ABSENT),
        # A network that is not there is no absent VM.
        (1, f"{HEAD}NOT_FOUND: Resource 'projects/p/global/networks/n' was not found", Failure.REFUSED),
        (1, f"{HEAD}ALREADY_EXISTS: Resource 'projects/p/locations/z/nodes/pod' already exists", Failure.EXISTS),
        (1, HEAD + NO_CAPACITY, Failure.NO_CAPACITY),
        (1, f'{HEAD}{{\n "code": 8,\n "message": "Insufficient capacity."\n}}', Failure.NO_CAPACITY),
        (1, f'{HEAD}{{\n "code": 9,\n "message": "Insufficient reserved capacity."\n}}', Failure.NO_CAPACITY),
        (1, f"{HEAD}ZONE_RESOURCE_POOL_EXHAUSTED: z does not have enough resources available", Failure.NO_CAPACITY),
        (1, f'{HEAD}{{"code": 8, "message": "no word that is known"}}', Failure.NO_CAPACITY),
        (1, f'{HEAD}{{"code": 8, "message": "Quota limit \'TPUV4PerZone\' has been exceeded"}}', Failure.QUOTA),
        (1, f"{HEAD}RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Requests' per minute", Failure.TRANSIENT),
        (1, f"{HEAD}RESOURCE_EXHAUSTED: made up", Failure.TRANSIENT),
        (1, f"{HEAD}PERMISSION_DENIED: Permission 'tpu.nodes.create' denied on networks/n", Failure.REFUSED),
        (1, f"{HEAD}INVALID_ARGUMENT: cannot connect v4-7 to anything", Failure.REFUSED),
        (1, "ERROR: (gcloud.x) You do not currently have an active account selected.", Failure.REFUSED),
        (1, f"{HEAD}ABORTED: another operation changes it", Failure.TRANSIENT),
        (1, f"{HEAD}INTERNAL: internal error", Failure.TRANSIENT),
        (1, f"{HEAD}UNAVAILABLE: made up", Failure.TRANSIENT),
        (1, f"{HEAD}HTTPError 503: <html>", Failure.TRANSIENT),
        (1, "ERROR: gcloud crashed (TransportError): HTTPSConnectionPool: Max retries ...", Failure.TRANSIENT),
        (-9, "", Failure.TRANSIENT),
    ],
)
def test_classes_of_failures(status: int, err: str, failure: Failure) -> None:
    assert gcloud.failure_of(status, err) is failure


def test_a_failure_is_told_in_gclouds_own_words() -> None:
    with pytest.raises(GcloudError) as told:
        gcloud.check(Ran(exit_code=1, err=f"WARNING: update\n{HEAD}{NO_CAPACITY}\n"))
    assert str(told.value) == 'There is no more capacity in the zone "z"; try another (code 8)'
    with pytest.raises(GcloudError, match=r"^argument --version: Must be specified\.$"):
        gcloud.check(Ran(exit_code=2, err="ERROR: (gcloud.x) argument --version: Must be specified.\nUsage: gcloud"))
    with pytest.raises(GcloudError, match="ended with status 1 and without a message"):
        gcloud.check(Ran(exit_code=1))
    with pytest.raises(GcloudError, match="did not answer in time") as late:
        gcloud.check(Ran(exit_code=None))
    assert late.value.failure is Failure.TRANSIENT
    with pytest.raises(GcloudError, match="no gcloud here"):
        gcloud.check(Failed(error="no gcloud here"))


def test_what_describe_shows() -> None:
    node = {
        "name": "projects/p/locations/z/nodes/pod", "state": "READY", "id": "77", "acceleratorType": "v4-16",
        "labels": {"dispatcher-workspace": WORKSPACE}, "health": "UNHEALTHY_TPU", "healthDescription": "hot",
        "queuedResource": "projects/p/locations/z/queuedResources/q", "createTime": "2026-01-01T00:00:00Z",
        "networkEndpoints": [
            {"ipAddress": "10.0.0.2", "accessConfig": {"externalIp": "1.2.3.4"}}, {"ipAddress": "10.0.0.3"}
        ],
    }  # fmt: skip
    vm = gcloud.read_vm(Ran(exit_code=0, out=json.dumps(node)))
    assert vm is not None
    assert (vm.state, vm.identity, vm.queued_resource) == ("READY", "77", "q")
    assert vm.workers == (Endpoint(address="10.0.0.2", external="1.2.3.4"), Endpoint(address="10.0.0.3"))
    two = gcloud.read_vm(
        Ran(exit_code=0, out=json.dumps({**node, "networkConfigs": [{"network": "a"}, {"network": "b"}]}))
    )
    assert two is not None and two.workers == vm.workers[:1], "a worker has one address in each network"
    assert vm.is_of(WORKSPACE) and not vm.is_of("f" * 12)
    absent = Ran(exit_code=1, err=f"{HEAD}NOT_FOUND: Resource 'projects/p/locations/z/nodes/pod' was not found")
    assert gcloud.read_vm(absent) is None
    with pytest.raises(GcloudError, match="cannot be read"):
        gcloud.read_vm(Ran(exit_code=0, out="<html>"))
    with pytest.raises(GcloudError):
        gcloud.read_vm(Ran(exit_code=1, err=f"{HEAD}INTERNAL: no"))


def test_what_a_queued_resource_shows() -> None:
    failed = {"state": {"state": "FAILED", "failedData": {"error": {"code": 8, "message": "none left"}}}}
    assert gcloud.read_queued(Ran(exit_code=0, out=json.dumps(failed))) == Queued(state="FAILED", why="none left")
    waits = Ran(exit_code=0, out='{"state": {"state": "WAITING_FOR_RESOURCES", "waitingForResourcesData": {}}}')
    assert gcloud.read_queued(waits) == Queued(state="WAITING_FOR_RESOURCES")
