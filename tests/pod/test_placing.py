"""Which outlet a job goes to after it was let down, and while its checkpoint is in one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from claim_queues import change, placed
from fleet import Fleet, shell
from submissions import Submissions

from dispatcher.config import load_config
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import CANNOT_START, LOST, PREEMPTED, QUEUE_LIMIT, WORKSPACE, Capacity, Request
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.pod.claim import ClaimQueue
from dispatcher.pod.offers import Offer, offers_of
from dispatcher.pod.placing import RESTART, STAY, Home, home_of, in_order, that_see, vanishing
from dispatcher.pod.waiting import SLOT, Facts, Waiting
from dispatcher.run_state.states import Record, State
from dispatcher.workspace import Layout

NOW, SOON, LATER = "2026-06-17T23:00:00.000Z", "2026-06-17T23:01:00.000Z", "2026-06-17T23:02:00.000Z"
HPC, BIG, STORE = "cluster hpc", "cluster big", "gs://lab/checkpoints"


def record(**fields: Any) -> Record:
    return Record(state=State.QUEUED, attempt=1, **fields)


@pytest.mark.parametrize("reason", [PREEMPTED, QUEUE_LIMIT, CANNOT_START, LOST])
def test_what_was_let_down_goes_to_the_next_one_first(reason: str) -> None:
    outlets = ("a", "b", "c")
    assert in_order(outlets, record(outlet="a", reason=reason)) == ("b", "c", "a")
    assert in_order(outlets, record(outlet="b", reason=reason)) == ("c", "a", "b")
    assert in_order(outlets, record(outlet="c", reason=reason)) == ("a", "b", "c")
    assert in_order(outlets, record(outlet="elsewhere", reason=reason)) == outlets
    assert in_order(("a",), record(outlet="a", reason=reason)) == ("a",)


def test_other_ends_change_no_preference() -> None:
    assert in_order(("a", "b"), record(outlet="a", reason="exit 1")) == ("a", "b")
    assert in_order(("a", "b"), record()) == ("a", "b")


def entry(job_id: str = "a", **fields: Any) -> Entry:
    return Entry(job_id=job_id, method="m", **fields)


def test_a_checkpoint_in_an_object_store_is_seen_by_all() -> None:
    at_hpc = record(checkpoint_at=HPC, furthest_checkpoint=1200.0)
    assert home_of(entry(), at_hpc) == Home(HPC, 1200.0)
    assert home_of(entry(params={"output_dir": "runs/x"}), at_hpc) == Home(HPC, 1200.0)
    assert home_of(entry(params={"checkpoints": "s3://lab/x"}), at_hpc) is None
    assert home_of(entry(params={"output_dir": "gs://lab/x"}), at_hpc) is None
    assert home_of(entry(), record()) is None


def test_only_outlets_that_see_the_checkpoint_take_it_unless_it_may_start_anew() -> None:
    places = {"local": WORKSPACE, "hpc-a": HPC, "hpc-b": HPC, "unknown": ""}
    names = tuple(places)
    assert that_see(names, places, None, STAY) == names
    assert that_see(names, places, Home(HPC), STAY) == ("hpc-a", "hpc-b")
    assert that_see(names, places, Home(STORE), STAY) == ()
    assert that_see(names, places, Home(HPC), RESTART) == ("hpc-a", "hpc-b", "local", "unknown")


def queue_of(
    capacities: Mapping[str, Capacity], records: Mapping[str, Record], on_move: str = STAY, **fields: Any
) -> ClaimQueue:
    entries = {job: entry(job, order=number, **fields) for number, job in enumerate(records)}
    offer = Offer(pod="pod", outlets=offers_of(capacities))
    facts = Facts(
        records=records,
        entries=entries,
        now="",
        request_of=lambda one: Request(one.gpus),
        on_move=lambda _: on_move,
        offers=(offer,),
    )
    queue = ClaimQueue(facts, capacities)
    for job in records:
        queue.update(job)
    return queue


def test_a_preempted_job_takes_the_next_outlet_with_room() -> None:
    capacities = {"a": Submissions(5), "b": Submissions(1), "c": Submissions(1)}
    preempted = record(outlet="a", reason=PREEMPTED)
    queue = queue_of(capacities, {"x": preempted, "y": preempted, "z": preempted, "new": record()})
    assert placed(queue.choose(NOW)) == {"x": "b", "y": "c", "z": "a", "new": "a"}


def test_an_entrys_own_order_counts() -> None:
    capacities = {"a": Submissions(5), "b": Submissions(5), "c": Submissions(5)}
    queue = queue_of(capacities, {"x": record(outlet="c", reason=PREEMPTED)}, outlet=("c", "a"))
    assert placed(queue.choose(NOW)) == {"x": "a"}


def test_a_job_changes_its_class_with_its_record() -> None:
    capacities = {"a": Submissions(1), "b": Submissions(1)}
    queue = queue_of(capacities, {"x": record()})
    for reason, expected in [(PREEMPTED, "b"), ("exit 1", "a"), (PREEMPTED, "b")]:
        change(queue, "x", record(outlet="a", reason=reason))
        assert queue.has_ready(NOW)
        (choice,) = queue.choose(NOW)
        assert choice.outlet == expected
        assert queue.choose(NOW) == [], "chosen once"
        capacities[choice.outlet].release(choice.slot)
        queue.put_back("x")
    # The heaps of both classes still have its rank.
    (choice,) = queue.choose(NOW)
    assert choice.outlet == "b"
    assert queue.choose(NOW) == [] and not queue.has_ready(NOW)


def test_a_job_stays_with_the_cluster_that_has_its_checkpoint() -> None:
    hpc = Submissions(1, place=HPC)
    capacities: dict[str, Capacity] = {"local": LocalCapacity([], 9), "hpc": hpc}
    saved = record(outlet="hpc", reason=PREEMPTED, checkpoint_at=HPC, furthest_checkpoint=1200.0)
    queue = queue_of(capacities, {"x": saved, "y": saved, "fresh": record(outlet="hpc", reason=PREEMPTED)})
    assert placed(queue.choose(NOW)) == {"x": "hpc", "fresh": "local"}
    assert queue.waiting(NOW).why("y").text == "waits for cluster hpc: its checkpoint of step 1200 is there"
    assert not queue.is_finished(NOW)


def test_a_pod_that_does_not_see_the_checkpoint_leaves_the_job_alone() -> None:
    capacities = {"local": LocalCapacity([], 9)}
    queue = queue_of(capacities, {"x": record(checkpoint_at=HPC)})
    assert not queue.has_ready(NOW) and queue.choose(NOW) == []
    why = queue.waiting(NOW).why("x")
    assert (why.text, why.needs_person) == ("waits for cluster hpc: its checkpoint is there", True)
    assert queue.is_finished(NOW)
    change(queue, "x", record())
    assert placed(queue.choose(NOW)) == {"x": "local"}


def test_where_the_policy_says_so_it_starts_anew() -> None:
    hpc = Submissions(1, place=HPC)
    capacities: dict[str, Capacity] = {"local": LocalCapacity([], 9), "hpc": hpc}
    saved = record(checkpoint_at=HPC)
    queue = queue_of(capacities, {"x": saved, "y": saved}, on_move=RESTART)
    why = queue.waiting(NOW).why("y").text
    assert why == f"{SLOT}; it resumes on cluster hpc, elsewhere it starts anew (on_move: restart)"
    choices = {choice.entry.job_id: (choice.outlet, choice.starts_anew) for choice in queue.choose(NOW)}
    assert choices == {"x": ("hpc", False), "y": ("local", True)}


def test_an_outlet_that_was_not_reached_yet_may_turn_out_to_see_it() -> None:
    hpc = Submissions(1, place="")
    queue = queue_of({"hpc": hpc}, {"x": record(checkpoint_at=HPC)})
    assert not queue.has_ready(NOW)
    assert not queue.is_finished(NOW)
    hpc.place = HPC
    assert queue.has_ready(NOW)
    assert placed(queue.choose(NOW)) == {"x": "hpc"}


def test_what_waited_too_long_is_left_to_others_for_a_while() -> None:
    waited = record(outlet="a", reason=QUEUE_LIMIT, finished_at=NOW)
    queue = queue_of({"a": Submissions(1)}, {"x": waited})
    assert queue.choose(SOON) == []
    assert queue.next_retry(SOON) == "2026-06-17T23:01:30.000Z"
    assert placed(queue.choose(LATER)) == {"x": "a"}
    with_another = queue_of({"a": Submissions(1), "b": Submissions(1)}, {"x": waited})
    assert placed(with_another.choose(NOW)) == {"x": "b"}


def offer_at(pod: str, place: str, problem: str = "") -> Offer:
    capacity = Submissions(1, place=place)
    capacity.problem = problem
    return Offer(pod=pod, outlets={pod: capacity.offer()})


@pytest.mark.parametrize(
    ("offers", "text"),
    [
        ([offer_at("hpc", HPC)], SLOT),
        ([offer_at("big", BIG), offer_at("hpc", HPC)], "waits for cluster hpc: its checkpoint of step 1200 is there"),
        ([offer_at("big", BIG)], "waits for cluster hpc: its checkpoint of step 1200 is there (pod big)"),
        ([offer_at("hpc", HPC, "hpc: down")], "hpc: down (pod hpc)"),
    ],
)
def test_status_says_which_place_a_job_waits_for(offers: list[Offer], text: str) -> None:
    known = {"x": record(checkpoint_at=HPC, furthest_checkpoint=1200.0)}
    facts = Facts(records=known, entries={"x": entry("x")}, now=NOW, request_of=lambda _: Request(), offers=offers)
    assert Waiting(facts).why("x").text == text


VANISHING = """
clusters: {mounted: {root: /data, mount: "redis://db/1"}, stored: {checkpoints: "gs://bucket/lab"}}
hosts:
  ws1: {ssh: ws1}
  bare: &tpu {type: tpu, zone: z, accelerator_type: v4-8}
  on-mount: {<<: *tpu, cluster: mounted}
  in-store: {<<: *tpu, cluster: stored}
  by-variable: {<<: *tpu, env: {DISPATCHER_CHECKPOINTS_OVERRIDE: "s3://bucket"}}
  beside: {<<: *tpu, cluster: mounted, env: {DISPATCHER_CHECKPOINTS_OVERRIDE: /ckpt}}
methods: {kept: {env: {DISPATCHER_CHECKPOINTS_OVERRIDE: "s3://bucket"}}}
"""


def test_jobs_whose_checkpoints_vanish_with_a_host_are_named(tmp_path: Path) -> None:
    (tmp_path / "dispatcher.yaml").write_text(VANISHING)
    config = load_config(Layout(tmp_path))
    entries = [
        entry("any", job="a/b"),
        entry("there", job="a/b", outlet=("bare",)),
        entry("script"),
        entry("shell", job="a/b", command="true"),
        entry("elsewhere", job="a/b", outlet=("ws1",)),
        entry("stored", job="a/b", params={"checkpoints": "s3://bucket"}),
        entry("by-variable", job="a/b", env={"DISPATCHER_CHECKPOINTS_OVERRIDE": "s3://bucket"}),
        Entry(job_id="by-method", method="kept", job="a/b"),
    ]
    assert vanishing(config, entries, ["ws1", "local", "on-mount", "in-store", "by-variable"]) == []
    bare, beside = vanishing(config, entries, config.hosts.hosts)
    assert bare.startswith("any, there: on bare checkpoints are on a disk that is deleted with the host")
    assert bare.endswith("set `checkpoints: gs://BUCKET/...` of the cluster bare")
    assert beside.startswith("any: on beside ")
    assert vanishing(config, entries[2:], config.hosts.hosts) == []


def test_a_pod_and_the_check_of_a_manifest_warn_of_a_disk_that_vanishes(fleet: Fleet) -> None:
    fleet.write_config("hosts: {vm: {type: tpu, project: lab, zone: z, accelerator_type: v4-8}}\n")
    fleet.write_manifest([{"job_id": "a", "method": "m", "job": "jobs/none", "outlet": "vm"}, shell("b", "true")])
    text = "warning: a: on vm checkpoints are on a disk that is deleted with the host"
    assert text in fleet.try_("matrix", "check").stderr
    pod = fleet.start("pod", "--outlet", "vm:1")
    pod.says(text)
    assert pod.stop() == 0
    assert pod.said.count(text) == 1
