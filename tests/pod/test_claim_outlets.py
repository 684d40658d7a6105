"""Which of a pod's outlets a job is claimed for."""

from __future__ import annotations

import math

import pytest
from claim_queues import NOW, entry, made, placed, queue_of
from submissions import Submissions

from dispatcher.config import Config
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Capacity, Request, Slot
from dispatcher.outlets.local.capacity import LocalCapacity
from dispatcher.pod.offers import request_of
from dispatcher.pod.waiting import SLOT
from dispatcher.workspace import Layout


def test_the_entrys_outlets_are_an_order_of_preference() -> None:
    either, other_way = entry("a", outlet=("batch", "local")), entry("b", 1, outlet=("local", "elsewhere", "batch"))
    capacities: dict[str, Capacity] = {"local": LocalCapacity([], 1), "batch": Submissions(1)}
    queue = queue_of(made(other_way, either, entry("c", 2), entry("d", 3)), capacities)
    assert placed(queue.choose(NOW)) == {"a": "batch", "b": "local"}
    capacities["batch"].release(Slot())
    assert placed(queue.choose(NOW)) == {"c": "batch"}, "the pod's preferred outlet is full"
    capacities["local"].release(Slot())
    assert placed(queue.choose(NOW)) == {"d": "local"}


def test_an_entry_goes_to_the_outlet_that_can_run_it() -> None:
    capacities: dict[str, Capacity] = {"local": LocalCapacity([0], 0), "batch": Submissions(2, most_gpus=4)}
    queue = queue_of(made(entry("big", 0, gpus=4), entry("huge", 1, gpus=16), entry("one", 2, gpus=1)), capacities)
    assert placed(queue.choose(NOW)) == {"big": "batch", "one": "local"}
    assert queue.refused() == ["huge"]
    why = queue.waiting(NOW).why("huge").text
    assert why == "local: asks for 16 GPUs, this pod has 1; batch: no node has 16 GPUs"


def test_what_waits_for_one_outlet_keeps_nothing_of_another() -> None:
    capacities: dict[str, Capacity] = {"local": LocalCapacity([0, 1], 0), "batch": Submissions(9)}
    assert capacities["local"].take(Request(1))
    entries = made(
        entry("pair", 0, gpus=2, outlet=("local",)), entry("one", 1, gpus=1), entry("c", 2, outlet=("local",))
    )
    queue = queue_of(entries, capacities)
    assert placed(queue.choose(NOW)) == {"one": "batch"}


def test_an_outlet_in_trouble_is_why_its_entries_wait() -> None:
    batch = Submissions(9)
    queue = queue_of(made(entry("a", outlet=("batch",))), {"batch": batch})
    batch.problem = "sbatch: connection refused"
    assert queue.choose(NOW) == [] and queue.waiting(NOW).why("a").text == batch.problem
    batch.problem = ""
    assert queue.waiting(NOW).why("a").text == SLOT
    assert placed(queue.choose(NOW)) == {"a": "batch"}


class Foreseen(LocalCapacity):
    """Room whose outlook is given: see Capacity.outlook."""

    def __init__(self, outlook: float | None) -> None:
        super().__init__((), cpu_slots=9)
        self.given = outlook

    def outlook(self, request: Request) -> float | None:
        return self.given


@pytest.mark.parametrize(
    ("outlooks", "outlet", "expected"),
    [
        ({"a": 0.0, "b": 0.0}, (), "a"),
        ({"a": None, "b": 0.0}, (), "b"),
        ({"a": 0.5, "b": 0.0}, (), "b"),
        ({"a": 0.5, "b": 0.25}, (), "b"),
        ({"a": None, "b": None}, (), None),
        ({"a": math.inf, "b": 0.0}, (), None),
        ({"a": 0.0, "b": math.inf}, (), "a"),
        ({"a": 0.5, "b": math.inf}, (), None),
        ({"a": 0.5, "b": 0.0}, ("a", "b"), "a"),
        ({"a": None, "b": 0.5}, ("a", "b"), "b"),
        ({"a": 0.0, "b": 0.5}, ("b", "a"), "b"),
        ({"a": math.inf, "b": 0.0}, ("b",), None),
    ],
)
def test_the_outlook_decides_among_outlets(
    outlooks: dict[str, float | None], outlet: tuple[str, ...], expected: str | None
) -> None:
    queue = queue_of(made(entry("x", gpus=0, outlet=outlet)), {name: Foreseen(out) for name, out in outlooks.items()})
    assert placed(queue.choose(NOW)) == ({"x": expected} if expected else {})


def test_an_entry_that_cannot_be_placed_now_is_placed_later() -> None:
    rooms = {"a": Foreseen(None)}
    queue = queue_of(made(entry("x", gpus=0)), rooms)
    assert not queue.choose(NOW)
    rooms["a"].given = 0.0
    assert placed(queue.choose(NOW)) == {"x": "a"}


def test_gpus_that_an_entry_names_count_whatever_a_command_asks_for() -> None:
    layout = Layout("/nonexistent")
    config = Config(layout=layout, matrix=layout.default_matrix)
    entry = Entry(job_id="a", method="m", env={"CUDA_VISIBLE_DEVICES": "2,3"})
    assert request_of(config, entry) == Request(1, only=(2, 3))
    assert request_of(config, entry, Request(2, chip="h100")) == Request(2, chip="h100", only=(2, 3))
