"""`dispatcher pods` and `status` where pods have more than one outlet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from submissions import SubmissionsOffer

from dispatcher.outlets import kinds
from dispatcher.outlets.base import Request
from dispatcher.run_state import liveness

LOCAL = {"gpus": [0, 1], "cpu_slots": 0, "unusable": {}}
BATCH = {"limit": 8, "most_gpus": 4, "problem": ""}


@pytest.fixture
def live_pods(lab: Any) -> Iterator[Any]:
    """A function that makes a pod look alive to others: its file is there and its lock is held."""
    descriptors = []

    def add(pod: str, **fields: Any) -> None:
        info = liveness.PodInfo(
            pod=pod, host="host-b", boot_id="another", pid_namespace=0, pid=1, start_ticks=1, user="alice",
            started_at="2026-06-17T22:00:00.000Z", heartbeat=1, heartbeat_s=2, lock="flock", **fields,
        )  # fmt: skip
        os.makedirs(lab.layout.pods_dir, exist_ok=True)
        liveness.write_pod(lab.layout, info)
        descriptors.append(liveness.take(lab.layout.pod_lock(pod)))

    yield add
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def batch_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_offer(published: Any) -> SubmissionsOffer:
        return msgspec.convert(published, SubmissionsOffer)

    def refused_by_all(request: Request, offers: Any) -> str:
        return f"no cluster has {request.gpus} GPUs on one node"

    batch = kinds.OutletKind(read_offer, refused_by_all, lambda mine, theirs, same: "")
    monkeypatch.setitem(kinds.OUTLET_KINDS, "batch", batch)


def slot(name: str, outlet: str, *jobs: str) -> liveness.SlotInfo:
    return liveness.SlotInfo(name=name, outlet=outlet, jobs=list(jobs))


def test_slots_are_shown_without_the_outlet_where_a_pod_has_one(lab: Any, live_pods: Any) -> None:
    live_pods("one", outlets={"local": LOCAL}, slots=[slot("gpu0", "local", "base/1"), slot("gpu1", "local")])
    rows = lab.run("pods").out.splitlines()
    assert "1/2 busy" in rows[2]
    assert [row.split()[:3] for row in (rows[-4], *rows[-2:])] == [
        ["pod", "slot", "job"],
        ["one", "gpu0", "base/1"],
        ["one", "gpu1", "free"],
    ]


def test_slots_are_shown_with_the_outlet_where_a_pod_has_several(lab: Any, live_pods: Any) -> None:
    live_pods("one", outlets={"local": LOCAL}, slots=[slot("gpu0", "local")])
    live_pods(
        "two", outlets={"local": LOCAL, "batch": BATCH}, slots=[slot("gpu1", "local", "a/2"), slot("1", "batch", "b/1")]
    )
    rows = [row.split() for row in lab.run("pods").out.splitlines()[-5:]]
    assert [rows[0][:4], rows[2], rows[3][:4], rows[4][:4]] == [
        ["pod", "outlet", "slot", "job"],
        ["one", "gpu0", "free"],
        ["two", "local", "gpu1", "a/2"],
        ["two", "batch", "1", "b/1"],
    ]
    shown = {pod["pod"]: pod for pod in lab.run("pods", "--json").json}
    assert [(row["outlet"], row["slot"], row["job"]) for row in shown["two"]["slots"]] == [
        ("local", "gpu1", "a/2"),
        ("batch", "1", "b/1"),
    ]


def why(lab: Any) -> str:
    """Why the job `a` waits."""
    (row,) = [row for row in lab.run("status", "--json").json["jobs"] if row["job"] == "a"]
    return str(row["why"])


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"gpus": 2}, "waits for a free slot"),
        ({"gpus": 4, "outlet": "batch"}, "waits for a free slot"),
        ({"gpus": 4}, "waits for a free slot"),
        ({"gpus": 4, "outlet": "local"}, "asks for 4 GPUs, no live pod has more than 2"),
        (
            {"gpus": 9, "outlet": "batch"},
            "no live pod takes it: one: asks for outlet batch, this pod offers local; two: no node has 9 GPUs",
        ),
        (
            {"gpus": 9},
            "local: asks for 9 GPUs, no live pod has more than 2; batch: no cluster has 9 GPUs on one node",
        ),
        (
            {"outlet": ["slurm", "pbs"]},
            "asks for outlet slurm or pbs, which no live pod offers (offered: batch, local)",
        ),
    ],
)
@pytest.mark.usefixtures("batch_is_known")
def test_why_a_job_waits(lab: Any, live_pods: Any, asked: dict[str, Any], text: str) -> None:
    (lab.root / "templates").mkdir(exist_ok=True)
    lab.write_manifest([{"job_id": "a", "method": "m", "command": "true", **asked}])
    live_pods("one", outlets={"local": LOCAL})
    live_pods("two", outlets={"batch": BATCH, "local": LOCAL})
    assert why(lab) == text


def test_what_another_release_publishes_is_left_out(lab: Any, live_pods: Any) -> None:
    lab.write_manifest([{"job_id": "a", "method": "m", "command": "true", "gpus": 4}])
    live_pods("odd", outlets={"local": {"gpus": "all"}})
    assert why(lab) == "no live pod has an outlet that is known here"
    live_pods("newer", outlets={"local": LOCAL, "volcano": {"queues": 3}})
    assert why(lab) == "asks for 4 GPUs, no live pod has more than 2"
