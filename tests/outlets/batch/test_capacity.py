"""The slots of a batch outlet."""

from __future__ import annotations

from dispatcher.outlets.base import Request, Slot
from dispatcher.outlets.batch.capacity import Submissions


def submissions(limit: int = 8) -> Submissions:
    refused = lambda request: "" if (request.gpus or 0) <= 4 else "too many"  # noqa: E731 -- shorter
    return Submissions(limit, refused, packs=False, default_gpus=lambda request: request.nodes)


def test_no_more_than_the_limit() -> None:
    made = submissions(2)
    assert [made.take(Request(1)) for _ in range(3)] == [Slot(), Slot(), None]
    made.release(Slot())
    assert made.take(Request(0)) == Slot()


def test_gpus_that_are_left_open_are_those_of_the_request() -> None:
    given = [submissions().gpus_of(request) for request in (Request(), Request(nodes=2), Request(0), Request(4))]
    assert given == [1, 2, 0, 4]


def test_gpus_that_an_entry_names() -> None:
    """The scheduler chooses, so its variable would be overridden, or would show it those of others."""
    named = Request(1, only=(2, 3))
    assert "env names GPU 2,3 (CUDA_VISIBLE_DEVICES)" in submissions().refuses(named)
    assert submissions().take(named) is None


def test_gpus_that_attempts_wait_for_already() -> None:
    """More of them would only keep jobs from other pods."""
    made = submissions()
    made.gpus_are_taken = True
    assert made.take(Request(1)) is None
    assert made.take(Request()) is None, "it would get a GPU"
    assert made.take(Request(0)) == Slot()
    assert made.refuses_now(Request(1)) == "", "waiting helps"
    made.gpus_are_taken = False
    assert made.take(Request(1)) == Slot()
