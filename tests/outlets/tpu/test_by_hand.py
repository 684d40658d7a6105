"""What the commands do with a TPU VM, with real gcloud: nothing of others is deleted, nothing asked for twice."""

from __future__ import annotations

import pytest
from beds.tpu import VERSION, TpuBed

from dispatcher.errors import StateError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.tpu import by_hand
from dispatcher.outlets.tpu.gcloud import queued_id

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
