"""What the lines of a journal add up to: attempts, slots, idle time and what waits, without files."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from pod_times import HOUR, NOON, Journal, at

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Request
from dispatcher.pod.offers import Offer, Rejection
from dispatcher.query.usage.history import History, SlotUse
from dispatcher.query.usage.ledger import Usage
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.gpu_idle import GpuBusy, GpuIdle
from dispatcher.run_state.facets.pauses import Paused, Unpaused


def hours(usage: Usage, unit: str = "slots") -> dict[str, float]:
    return {kind.value: pytest.approx(getattr(one, unit), abs=1e-6) for kind, one in usage.total.hours.items()}


def adds_up(usage: Usage) -> None:
    assert usage.left_over.slots == pytest.approx(0, abs=1e-6)
    assert usage.left_over.gpus == pytest.approx(0, abs=1e-6)


@pytest.fixture
def journal() -> Journal:
    return Journal()


def test_of_what_lies_across_the_edge_the_part_inside_counts(journal: Journal) -> None:
    journal.pod(-10, "a", gpus=[0, 1])
    journal.claim(-9, "a", "long", gpu=0)
    journal.claim(-9, "a", "before", gpu=1)
    journal.done(-8, "a", "before")
    journal.done(1, "a", "long")
    journal.claim(3, "a", "still", gpu=1)
    journal.end_pod(5, "a", -10)
    usage = journal.account(0, 4)
    assert hours(usage) == {"useful": 1, "running": 1, "idle_waited": 0, "idle": 6}
    assert usage.of_pods.gpus == pytest.approx(8)
    adds_up(usage)


def test_attempts_that_share_a_gpu_split_it(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0], jobs_per_gpu=2)
    journal.claim(0, "a", "x", gpu=0)
    journal.claim(1, "a", "y", gpu=0)
    journal.done(2, "a", "x")
    journal.done(2, "a", "y")
    journal.end_pod(2, "a", 0)
    usage = journal.account(0, 3)
    assert hours(usage) == {"useful": 3, "idle_waited": 0, "idle": 1}
    assert hours(usage, "gpus") == {"useful": 1.5, "idle_waited": 0, "idle": 0.5}
    adds_up(usage)


def test_an_attempt_on_several_gpus_counts_all_and_cpu_slots_have_none(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0, 1, 2, 3], cpu_slots=1, jobs_per_gpu=2)
    journal.claim(0, "a", "wide", gpu=(0, 1, 2))
    journal.claim(0, "a", "cpu")
    for job in ("wide", "cpu"):
        journal.done(2, "a", job)
    journal.end_pod(2, "a", 0)
    usage = journal.account(0, 2)
    assert hours(usage) == {"useful": 12 + 2, "idle_waited": 0, "idle": 4}
    assert hours(usage, "gpus") == {"useful": 6, "idle_waited": 0, "idle": 2}
    adds_up(usage)


def test_idle_gpus_count_until_they_are_used_again_or_the_attempt_ends(journal: Journal) -> None:
    def idle(hours: float, since: float) -> None:
        note = GpuIdle(attempt=1, since=at(since), gpus=2)
        journal.add(hours, "a", note.event, "x", data=note.as_json())

    journal.pod(0, "a", gpus=[0, 1])
    journal.claim(0, "a", "x", gpu=(0, 1))
    idle(2, since=1)
    # A new generation of the journal repeats it.
    idle(2.5, since=1)
    busy = GpuBusy(attempt=1, since=at(1), gpus=2)
    for hours in (3, 3.5):
        journal.add(hours, "a", busy.event, "x", data=busy.as_json())
    idle(6, since=5)
    journal.done(7, "a", "x")
    journal.end_pod(8, "a", 0)
    assert journal.account(0, 8).idle_gpus == pytest.approx(2 * (2 + 2))
    assert journal.account(2, 6).idle_gpus == pytest.approx(2 * (1 + 1))


def test_many_idle_attempts_cost_no_more_each_than_few() -> None:
    """Compared by processor time, the least of three."""

    def taken_s(jobs: int) -> float:
        return min(once_s(jobs) for _ in range(3))

    def once_s(jobs: int) -> float:
        journal = Journal()
        journal.pod(0, "a", gpus=[0])
        for number in range(jobs):
            journal.claim(1, "a", f"job{number}", gpu=0)
            note = GpuIdle(attempt=1, since=at(1), gpus=1)
            journal.add(2, "a", note.event, f"job{number}", data=note.as_json())
        history = History({})
        begun_s = time.process_time()
        history.read(journal.lines)
        assert len(history.idle_gpus) == jobs
        return time.process_time() - begun_s

    assert taken_s(8000) < 8 * max(taken_s(2000), 0.01)


def test_a_dispatcher_without_an_end_counts_until_its_last_line_not_until_the_next_of_its_name(
    journal: Journal,
) -> None:
    """Its disk was full, or its release did not write when it was last there."""
    journal.pod(0, "a", gpus=[0])
    journal.claim(0, "a", "x", gpu=0)
    journal.done(2, "a", "x")
    journal.pod(50, "a", gpus=[0])
    journal.claim(51, "a", "y", gpu=0)
    journal.done(52, "a", "y")
    journal.end_pod(52, "a", 50)
    usage = journal.account(0, 60)
    assert hours(usage) == {"useful": 3, "idle_waited": 0, "idle": 1}
    assert usage.of_pods.slots == pytest.approx(4)
    adds_up(usage)


def test_a_killed_pod_ends_at_its_last_heartbeat_and_its_attempt_when_that_ended(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0])
    journal.claim(0, "a", "x", gpu=0)
    journal.pod(0, "b", gpus=[0])
    # Found by another pod hours after it had ended.
    journal.done(9, "b", "x", finished_at=at(4))
    journal.end_pod(9, "b", 0)
    journal.end_pod(3, "a", 0, was_killed=True)
    usage = journal.account(0, 12, by=("pod",))
    assert {row.values[0]: row.total.slots for row in usage.rows} == pytest.approx({"a": 4, "b": 9})
    assert (usage.of_pods.gpus, usage.without_pod.gpus) == pytest.approx((3 + 9, 1))
    adds_up(usage)


def test_an_end_that_nobody_saw_is_the_last_sign_of_the_attempt_or_its_pod(journal: Journal) -> None:
    for job, seen in (("silent", 1), ("outlived", 5)):
        journal.pod(0, job, gpus=[0])
        journal.claim(0, job, job, gpu=0)
        journal.end_pod(3, job, 0, was_killed=True)
        lost = {"state": "queued", "reason": "lost", "finished_at": None}
        journal.add(20, "b", Event.AUTO_REQUEUED, job, data={"last_seen_at": at(seen)}, **lost)
    usage = journal.account(0, 24)
    assert (hours(usage), usage.unknown_ends) == ({"unknown_end": 3 + 5, "idle_waited": 0, "idle": 0}, 2)
    adds_up(usage)


@pytest.mark.parametrize(
    ("event", "fields", "kind"),
    [
        (Event.DONE, {"state": "done"}, "useful"),
        (Event.PRUNED, {"state": "done", "reason": "pruned"}, "pruned"),
        (Event.FAILED, {"state": "failed", "reason": "exit 1"}, "failed"),
        (Event.FAILED, {"state": "failed", "reason": "time limit"}, "failed"),
        (Event.FAILED, {"state": "failed", "reason": "lost 3 times", "error": "no exit status"}, "lost"),
        (Event.FAILED, {"state": "failed", "reason": "preempted 21 times"}, "preempted"),
        (Event.FAILED, {"state": "failed", "reason": "cancelled"}, "cancelled"),
        (Event.RETRIED, {"state": "queued", "reason": "out of memory"}, "failed"),
        (Event.AUTO_REQUEUED, {"state": "queued", "reason": "preempted"}, "preempted"),
        (Event.AUTO_REQUEUED, {"state": "queued", "reason": "lost", "error": "no exit status after 3 s"}, "lost"),
        (Event.AUTO_REQUEUED, {"state": "queued", "reason": "lost", "error": "superseded"}, "superseded"),
        (Event.STOPPED, {"state": "abandoned", "reason": "stopped on request"}, "cancelled"),
        (Event.STOPPED, {"state": "queued"}, "cancelled"),
    ],
)
def test_what_becomes_of_an_attempt(journal: Journal, event: Event, fields: dict[str, Any], kind: str) -> None:
    journal.pod(0, "a", gpus=[0])
    journal.claim(0, "a", "x", gpu=0)
    # The record of one that is queued again has no end: what is beside it counts.
    journal.add(2.5, "a", event, "x", data={"ended_at": at(2)}, **fields)
    journal.end_pod(2.5, "a", 0)
    usage = journal.account(0, 3)
    assert usage.total.hours[SlotUse(kind)].gpus == pytest.approx(2)
    adds_up(usage)


def test_what_is_booked_stays_booked(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0])
    journal.claim(0, "a", "good", gpu=0)
    journal.done(1, "a", "good")
    journal.add(1, "ada@h", Event.REQUEUED, "good", state="queued", finished_at=None)
    journal.claim(2, "a", "good", gpu=0, number=2)
    journal.add(3, "a", Event.FAILED, "good", state="failed", reason="exit 1", finished_at=at(3))
    journal.add(4, "ada@h", Event.MARKED, "good", state="done", reason="set by hand")
    journal.end_pod(4, "a", 0)
    usage = journal.account(0, 4)
    assert hours(usage) == {"useful": 1, "failed": 1, "idle_waited": 1, "idle": 1}


def test_a_job_that_waits_makes_idle_only_slots_that_it_could_have_had(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0, 1], methods=("m",))
    journal.pod(0, "b", gpus=[0], methods=("other",))
    journal.pod(0, "c", cpu_slots=3)
    journal.queue(1, "on-gpu", gpus=1)
    journal.add(2, "ada@h", Event.HELD, "on-gpu", state="held")
    journal.queue(3, "wide", gpus=2)
    journal.queue(4, "too-wide", gpus=8)
    usage = journal.account(0, 5, by=("pod",))
    waited = {row.values[0]: row.hours[SlotUse.WAITED].slots for row in usage.rows}
    # One GPU for an hour, then both for two.
    assert waited == pytest.approx({"a": 1 + 2 * 2, "b": 0, "c": 0})
    adds_up(usage)


def test_one_job_makes_idle_one_slot_of_one_pod(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0, 1])
    journal.pod(0, "b", gpus=[0, 1], cpu_slots=1)
    journal.queue(0, "x", gpus=1)
    usage = journal.account(0, 1)
    assert usage.total.hours[SlotUse.WAITED].slots == pytest.approx(1)
    journal.queue(0, "either")
    assert journal.account(0, 1).total.hours[SlotUse.WAITED].slots == pytest.approx(2)


def test_a_job_waits_when_its_needs_are_done_and_its_retry_is_due(journal: Journal) -> None:
    journal.pod(0, "a", cpu_slots=4)
    journal.queue(0, "first")
    journal.queue(0, "second", needs=["first"])
    journal.claim(0, "a", "first")
    journal.done(2, "a", "first")
    journal.claim(3, "a", "second")
    again = {"state": "queued", "retry_at": at(6), "finished_at": at(4), "reason": "exit 1"}
    journal.add(4, "a", Event.RETRIED, "second", **again)
    usage = journal.account(0, 7)
    assert usage.total.hours[SlotUse.WAITED].slots == pytest.approx(1 + 1)
    # What it needs is to be done again.
    journal.add(7, "ada@h", Event.REQUEUED, "first", state="queued")
    journal.claim(7, "a", "first", number=2)
    assert journal.account(7, 8).total.hours[SlotUse.WAITED].slots == pytest.approx(0)


def test_slots_are_idle_because_of_a_pause_only_where_no_other_job_waits(journal: Journal) -> None:
    journal.pod(0, "a", cpu_slots=3)
    journal.queue(0, "x")
    journal.note(0, "ada@h", Paused(scope="m", why="by hand"))
    journal.queue(2, "other", method="n")
    journal.note(4, "ada@h", Unpaused(scope="m"))
    usage = journal.account(0, 5)
    assert hours(usage) == {"idle_waited": 2 + 2, "idle_paused": 4, "idle": 2 * 2 + 1 * 2 + 1}


def test_no_job_waits_for_a_paused_method_or_host_or_a_pod_that_drains(journal: Journal) -> None:
    journal.pod(0, "a", cpu_slots=1, host="node")
    journal.queue(0, "x")
    journal.note(1, "ada@h", Paused(scope="m", why="by hand"))
    journal.note(2, "ada@h", Unpaused(scope="m"))
    journal.note(3, "ada@h", Paused(scope="host:node", why="by hand"))
    journal.note(4, "ada@h", Unpaused(scope="host:node"))
    journal.end_pod(9, "a", 0, claimed_until=at(6))
    usage = journal.account(0, 10)
    assert hours(usage) == {"idle_waited": 4, "idle_paused": 2, "idle": 3}


def test_a_clock_that_is_ahead_changes_no_sum(journal: Journal) -> None:
    ahead = 20 / HOUR
    journal.pod(0, "a", gpus=[0])
    journal.pod(1 + ahead, "b", gpus=[0])
    for pod, begun, end in (("a", 1.0, 2.0), ("b", 1 + ahead, 2 + ahead)):
        journal.claim(begun, pod, f"of-{pod}", gpu=0)
        journal.done(end, pod, f"of-{pod}")
    journal.end_pod(2, "a", 0)
    journal.end_pod(2 + ahead, "b", 1 + ahead)
    usage = journal.account(0, 4)
    assert hours(usage) == {"useful": 2, "idle_waited": 0, "idle": 1}
    adds_up(usage)


def test_a_clock_that_was_set_back_while_a_pod_ran_leaves_attempts_with_their_pod(journal: Journal) -> None:
    """The order of lines says who has claimed; by the times it was before the pod began, or the pod before it."""
    journal.pod(0, "a", gpus=[0, 1], jobs_per_gpu=2, user="eve")
    journal.end_pod(1, "a", 0)
    journal.pod(4, "a", gpus=[0, 1], jobs_per_gpu=2)
    journal.claim(1.5, "a", "x", gpu=0)
    journal.done(3.5, "a", "x")
    journal.end_pod(6, "a", 4)
    usage = journal.account(0, 8, by=["user"])
    found = {row.values[0]: {kind.value: one.gpus for kind, one in row.hours.items()} for row in usage.rows}
    assert found["ada"]["useful"] == pytest.approx(1), "two share a GPU"
    assert "useful" not in found["eve"]
    adds_up(usage)


def test_attempts_on_a_host_count_from_when_they_ran_with_what_they_asked_for(journal: Journal) -> None:
    journal.pod(0, "login", user="bob")
    fields = {"state": "submitted", "outlet": "slurm", "host": None, "data": {"gpus": 4}}
    journal.claim(0, "login", "x", **fields)
    journal.claim(0, "login", "queued", **fields)
    journal.add(2, "login", Event.STARTED, "x", state="running", host="node7", handle="17")
    journal.done(5, "login", "x")
    usage = journal.account(0, 6, by=("outlet", "user", "host"))
    assert [row.values for row in usage.rows] == [("slurm", "bob", "node7")]
    assert hours(usage, "gpus") == {"useful": 12}
    assert usage.on_hosts.slots == pytest.approx(12)
    adds_up(usage)


def test_the_user_is_who_has_submitted_the_job_or_else_started_the_pod(journal: Journal) -> None:
    journal.pod(0, "a", cpu_slots=2, user="ada")
    journal.add(0, "bob@h", Event.QUEUED, "submitted", state="queued")
    journal.queue(0, "listed")
    for job in ("submitted", "listed"):
        journal.claim(0, "a", job)
        journal.done(1, "a", job)
    journal.end_pod(1, "a", 0)
    usage = journal.account(0, 1, by=("user",))
    assert {row.values[0] for row in usage.rows if SlotUse.USEFUL in row.hours} == {"ada", "bob"}


def test_a_pod_of_which_nothing_is_left_ended_with_its_last_line(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0])
    journal.claim(1, "a", "x", gpu=0)
    journal.done(2, "a", "x")
    journal.running.clear()
    journal.add(9, "b", Event.QUEUED, "y", state="queued")
    assert journal.account(0, 10).of_pods.slots == pytest.approx(2)


def test_more_attempts_than_slots_do_not_add_up(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0])
    for job in ("x", "y"):
        journal.claim(0, "a", job, gpu=0)
        journal.done(1, "a", job)
    journal.end_pod(1, "a", 0)
    assert journal.account(0, 1).left_over.gpus == pytest.approx(1)


def test_before_pods_were_recorded_attempts_count_and_nothing_is_idle(journal: Journal) -> None:
    journal.claim(0, "a", "old", gpu=0)
    journal.done(1, "a", "old")
    journal.pod(2, "a", gpus=[0])
    usage = journal.account(0, 3)
    assert hours(usage) == {"useful": 1, "idle_waited": 0, "idle": 1}
    assert usage.slots_since_s == NOON + 2 * HOUR
    adds_up(usage)


def test_a_journal_that_was_cut_begins_with_records(journal: Journal) -> None:
    record = {"pod": "a", "outlet": "local", "attempt": 1, "host": "host-of-a", "gpu": 0}
    journal.add(1, "a", Event.SNAPSHOT, "r", state="running", started_at=at(0.5), **record)
    journal.add(1, "a", Event.SNAPSHOT, "d", state="done", started_at=at(0), finished_at=at(0.25), **record)
    journal.add(1, "a", Event.SNAPSHOT, "q", state="queued")
    journal.done(2, "a", "r")
    assert hours(journal.account(0, 3)) == {"useful": 1.75}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_in_slots_adds_up(journal: Journal, seed: int) -> None:
    """Pods come, go and are killed; attempts begin in free slots, end in all ways, and outlive their pods."""
    rng = random.Random(seed)
    wall = 0.0
    for pod in range(rng.randint(1, 4)):
        name, now = f"pod{pod}", rng.uniform(0, 5)
        gpus, share = list(range(rng.randint(0, 3))), rng.randint(1, 3)
        cpus = rng.randint(0 if gpus else 1, 2)
        for session in range(rng.randint(1, 3)):
            begun, end = now, now + rng.uniform(0.5, 6)
            journal.pod(begun, name, gpus=gpus, cpu_slots=cpus, jobs_per_gpu=share)
            wall += (end - begun) * (len(gpus) * share + cpus)
            over = end
            for slot in [*gpus * share, *[None] * cpus]:
                free = begun + rng.random()
                while free < end:
                    job, length = f"{name}-{session}-{slot}-{free}", rng.uniform(0.1, 2)
                    journal.claim(free, name, job, gpu=slot)
                    ended = free + length
                    event, fields = rng.choice(
                        [
                            (Event.DONE, {"state": "done", "finished_at": at(ended)}),
                            (Event.FAILED, {"state": "failed", "finished_at": at(ended), "reason": "exit 1"}),
                            (
                                Event.AUTO_REQUEUED,
                                {"state": "queued", "reason": "lost", "data": {"ended_at": at(ended)}},
                            ),
                        ]
                    )
                    # Recorded late, as by another pod.
                    journal.add(ended + rng.choice([0, 3]), name, event, job, **fields)
                    over = max(over, ended)
                    free = ended + rng.choice([0, rng.random()])
            killed = rng.random() < 0.5
            journal.end_pod(end, name, begun, was_killed=killed)
            now = over + rng.random()
    usage = journal.account(-1, 100)
    adds_up(usage)
    assert usage.of_pods.slots == pytest.approx(wall, abs=1e-3)
    by_pod = journal.account(-1, 100, by=("pod", "user"))
    assert by_pod.total.total.slots == pytest.approx(usage.total.total.slots)
    cut = [journal.account(since, until).total.total.slots for since, until in ((-1, 3), (3, 5.5), (5.5, 100))]
    assert sum(cut) == pytest.approx(usage.total.total.slots)
    by_day = journal.account(-1, 100, by=("day", "pod"))
    adds_up(by_day)
    for kind, one in usage.total.hours.items():
        assert by_day.total.hours[kind].slots == pytest.approx(one.slots), kind
        assert by_day.total.hours[kind].gpus == pytest.approx(one.gpus), kind


def test_an_attempt_counts_for_each_of_its_days_and_what_is_idle_for_its_own(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0, 1])
    journal.claim(6, "a", "long", gpu=0)
    journal.done(40, "a", "long")
    journal.end_pod(48, "a", 0)
    usage = journal.account(0, 60, by=("day",))
    days = {row.values[0]: {kind.value: one.gpus for kind, one in row.hours.items()} for row in usage.rows}
    assert days == {
        "2026-09-21": pytest.approx({"useful": 6, "idle_waited": 0, "idle": 18}),
        "2026-09-22": pytest.approx({"useful": 24, "idle_waited": 0, "idle": 24}),
        "2026-09-23": pytest.approx({"useful": 4, "idle_waited": 0, "idle": 20}),
    }
    assert usage.pods == 1
    adds_up(usage)


def test_while_a_pod_drained_for_some_time_nothing_could_be_claimed(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0])
    journal.queue(0, "x", gpus=1)
    journal.end_pod(10, "a", 0, claimed_until=at(8), drained=((at(1), at(3)), (at(4), at(5))))
    usage = journal.account(0, 12)
    # It claimed from 0 to 1, 3 to 4 and 5 to 8.
    assert hours(usage) == {"idle_waited": 1 + 1 + 3, "idle": 10 - 5}
    adds_up(usage)


def test_attempts_that_outlive_their_pod_have_its_share_of_a_gpu_not_that_of_the_next(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0], jobs_per_gpu=4)
    journal.claim(0, "a", "x", gpu=0)
    journal.end_pod(1, "a", 0, was_killed=True)
    journal.add(3, "b", Event.DONE, "x", state="done", finished_at=at(3), exit_code=0)
    journal.pod(5, "a", gpus=[0], jobs_per_gpu=1)
    journal.end_pod(6, "a", 5)
    usage = journal.account(0, 7)
    assert (usage.without_pod.slots, usage.without_pod.gpus) == pytest.approx((2, 2 / 4))
    adds_up(usage)


def test_pods_that_take_the_same_are_asked_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    refusal = Offer.refusal

    def counted(offer: Offer, entry: Entry, request: Request) -> Rejection | None:
        asked.append(offer.pod)
        return refusal(offer, entry, request)

    monkeypatch.setattr(Offer, "refusal", counted)
    for night in range(50):
        journal.pod(night, "a", gpus=[0], where=("lang=de",))
        journal.end_pod(night + 0.5, "a", night)
        journal.pod(night, "b", gpus=[0], where=("lang=en",))
        journal.end_pod(night + 0.5, "b", night)
    for number in range(20):
        journal.queue(0, f"job{number}", gpus=1, lang="de")
    usage = journal.account(0, 60, by=("pod",))
    assert len(asked) == 2 * 20
    waited = {row.values[0]: row.hours[SlotUse.WAITED].slots for row in usage.rows}
    assert waited == pytest.approx({"a": 25, "b": 0})
    adds_up(usage)


@pytest.mark.parametrize("jobs_per_gpu", [1, 3])
def test_attempts_that_share_a_gpu_by_memory_count_the_part_that_they_ask_for(
    journal: Journal, jobs_per_gpu: int
) -> None:
    journal.pod(0, "a", gpus=[0, 1], jobs_per_gpu=jobs_per_gpu)
    journal.claim(0, "a", "x", gpu=0, data={"gpu_share": 0.25})
    journal.claim(1, "a", "y", gpu=0, data={"gpu_share": 0.5})
    journal.done(2, "a", "x")
    note = GpuIdle(attempt=1, since=at(2), gpus=1)
    journal.add(3, "a", note.event, "y", data=note.as_json())
    # Its pod is killed, and the attempt runs on.
    journal.end_pod(3, "a", 0, was_killed=True)
    journal.done(4, "a", "y")
    usage = journal.account(0, 5)
    useful = 2 * 0.25 + 3 * 0.5
    assert hours(usage, "gpus") == {"useful": useful, "idle_waited": 0, "idle": 6 - useful + 0.5}
    assert usage.without_pod.gpus == pytest.approx(0.5)
    assert usage.idle_gpus == pytest.approx(2 * 0.5)
    adds_up(usage)


def test_several_that_wait_for_parts_wait_for_them_once(journal: Journal) -> None:
    """Three times an eightieth is more than three eightieths, in floating point."""
    for pod in ("a", "b"):
        journal.pod(0, pod, gpus=[0], local={"gpu_memory_mib": {"0": 40960}})
    for job in ("x", "y", "z"):
        journal.queue(0, job, gpus=1, gpu_memory="512M")
    for pod in ("a", "b"):
        journal.end_pod(4, pod, 0)
    usage = journal.account(0, 4)
    waited = 4 * 3 * (512 * 4096 // 40960) / 4096
    assert hours(usage, "gpus") == {"idle_waited": waited, "idle": 8 - waited}
    adds_up(usage)


def test_what_waits_for_a_part_of_a_gpu_waits_for_no_more(journal: Journal) -> None:
    journal.pod(0, "a", gpus=[0, 1], local={"gpu_memory_mib": {"0": 40960, "1": 40960}})
    journal.queue(0, "x", gpus=1, gpu_memory="10G")
    journal.end_pod(4, "a", 0)
    usage = journal.account(0, 4)
    assert hours(usage, "gpus") == {"idle_waited": 1, "idle": 7}
    adds_up(usage)
