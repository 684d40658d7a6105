"""Whether jobs wait for a host that has to be made."""

from __future__ import annotations

import time

from dispatcher.outlets.batch.provisioning import PendingDemand


def until(demand: PendingDemand, wait_s: float | None) -> None:
    assert wait_s is not None
    time.sleep(wait_s)


def test_two_rounds_of_claims_have_to_ask() -> None:
    demand = PendingDemand(kept_s=60)
    assert demand.due_in_s() is None
    demand.ask()
    assert not demand.is_settled, "another outlet may take the job in this round"
    until(demand, demand.due_in_s())
    demand.ask()
    assert demand.is_settled
    assert demand.due_in_s() is None


def test_a_job_that_asks_once_does_not_keep_the_loop_awake() -> None:
    """It was claimed by another outlet: nobody asks a second time."""
    demand = PendingDemand(kept_s=60)
    demand.ask()
    until(demand, demand.due_in_s())
    assert demand.due_in_s() is None
    assert not demand.is_settled
