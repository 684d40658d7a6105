"""What the commands do with a TPU VM, with real gcloud: nothing of others is deleted, nothing asked for twice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from beds.tpu import VERSION, TpuBed
from beds.tpu_checks import OTHER_PROJECT, PROJECT, ZONES

from dispatcher.errors import StateError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.outlets.tpu import by_hand
from dispatcher.outlets.tpu.gcloud import WORKSPACE_LABEL, queued_id
from dispatcher.outlets.tpu.projects import known_projects, remember_project
from dispatcher.workspace import Layout

pytestmark = pytest.mark.slow

WORKSPACE = "0123456789ab"
QUEUED = queued_id(WORKSPACE, "vm")


@pytest.fixture
def host(tpu: TpuBed, monkeypatch: pytest.MonkeyPatch) -> TpuHost:
    for name, value in tpu.env.items():
        monkeypatch.setenv(name, value)
    return TpuHost(name="vm", cluster="vm", zone=tpu.zone, accelerator_type="v4-8", version=VERSION)


def test_a_vm_of_others_is_used_and_left_alone(host: TpuHost, tpu: TpuBed) -> None:
    tpu.create("vm")
    assert by_hand.create(host, WORKSPACE, print).state == "READY"
    with pytest.raises(StateError, match="was not created for this workspace, so it is left alone"):
        by_hand.delete(host, WORKSPACE, print)
    with pytest.raises(StateError, match="vm is there already: READY, created for others"):
        by_hand.queue(host, WORKSPACE)
    assert tpu.names() == ["vm"]
    assert tpu.requests("nodes.create") == tpu.requests("queuedResources.create") == []


def test_a_request_is_made_once_and_taken_back(host: TpuHost, tpu: TpuBed) -> None:
    tpu.queue.wait_s = None
    assert by_hand.queue(host, WORKSPACE) == QUEUED
    for again in (lambda: by_hand.queue(host, WORKSPACE), lambda: by_hand.create(host, WORKSPACE, print)):
        with pytest.raises(
            StateError, match=rf"queued resource {QUEUED} is .*`dispatcher outlets delete vm` withdraws it"
        ):
            again()
    by_hand.delete(host, WORKSPACE, print)
    found = by_hand.look(host, WORKSPACE)
    assert (found.vm, found.queued) == (None, None)
    assert len(tpu.requests("queuedResources.create")) == 1


def test_a_dead_vm_is_deleted_and_made_anew(host: TpuHost, tpu: TpuBed) -> None:
    before = by_hand.create(host, WORKSPACE, print)
    tpu.preempt("vm", state="TERMINATED")
    after = by_hand.create(host, WORKSPACE, print)
    assert after.state == "READY"
    assert after.identity != before.identity
    assert len(tpu.requests("nodes.delete")) == 1


def test_a_vm_of_another_size_is_not_taken_for_the_one_that_is_asked_for(host: TpuHost, tpu: TpuBed) -> None:
    tpu.create("vm", "v4-16")
    with pytest.raises(StateError, match=r"vm is a v4-16, and hosts\.vm\.accelerator_type says v4-8: nothing is"):
        by_hand.create(host, WORKSPACE, print)


def make(tpu: TpuBed, name: str, zone: str, project: str, label: str, *, queued: bool = False) -> None:
    """As an earlier configuration of the workspace `label` would have made it."""
    own = [f"--zone={zone}", f"--project={project}", f"--labels={WORKSPACE_LABEL}={label}", "--accelerator-type=v4-8"]
    if queued:
        tpu.gcloud(
            "create", queued_id(label, name), f"--node-id={name}", f"--runtime-version={VERSION}", *own,
            group="queued-resources", check=True,
        )  # fmt: skip
    else:
        tpu.gcloud("create", name, f"--version={VERSION}", *own, check=True)


def test_what_was_created_is_found_in_whatever_zone_and_project_it_is(
    host: TpuHost, tpu: TpuBed, tmp_path: Path
) -> None:
    layout = Layout(tmp_path)
    workspace = workspace_id(layout)
    here, elsewhere, third = ZONES
    tpu.queue.wait_s = None
    make(tpu, "vm", here, PROJECT, workspace)
    make(tpu, "vm", elsewhere, PROJECT, workspace)
    make(tpu, "renamed", third, OTHER_PROJECT, workspace)
    make(tpu, "asked", elsewhere, PROJECT, workspace, queued=True)
    make(tpu, "of-others", here, PROJECT, "f" * 12)
    remember_project(layout, "vm", PROJECT)
    remember_project(layout, "renamed", OTHER_PROJECT)
    remember_project(layout, "renamed", OTHER_PROJECT)
    assert known_projects(layout) == [PROJECT, OTHER_PROJECT]
    found = by_hand.all_created([host], layout)
    places = {(one.name, one.zone, one.project) for one in found.vms}
    strays = {("vm", elsewhere, PROJECT), ("renamed", third, OTHER_PROJECT), ("asked", elsewhere, PROJECT)}
    assert places == {("vm", here, PROJECT), *strays}
    assert {(one.name, one.zone, one.project) for one in found.strays([host])} == strays
    # The default of gcloud is another project now, so the host leads to no VM.
    moved = msgspec.structs.replace(host, project=OTHER_PROJECT)
    assert {(one.name, one.zone, one.project) for one in found.strays([moved])} == places
    (asked,) = [one for one in found.vms if one.queued]
    assert asked.text == f"v4-8 in {elsewhere} of {PROJECT}, its queued resource is WAITING_FOR_RESOURCES"
    assert not found.unlisted


def test_a_project_that_cannot_be_listed_is_named(host: TpuHost, tpu: TpuBed, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    remember_project(layout, "vm", "gone-project")
    (line,) = by_hand.all_created([host], layout).unlisted
    assert line.startswith("the project gone-project may have TPU VMs of this workspace, which cannot be listed: ")
    assert "Permission denied" in line
