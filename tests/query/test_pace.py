"""Slots, rate, and the time that is left."""

from __future__ import annotations

import heapq
from random import Random
from typing import Any

import msgspec
import pytest

from dispatcher.base.running_limits import RunningLimit
from dispatcher.cli.status_text import left_words, rate_words
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.limits import Limits
from dispatcher.query.pace import Pace, pace
from dispatcher.query.snapshot import PodStatus, Snapshot
from dispatcher.query.waiting import WaitReason, waits
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import PodInfo, SlotInfo
from dispatcher.run_state.progress import Progress
from dispatcher.run_state.states import BY_HAND, Record, State

NOW_S = 1_800_000_000.0
HOUR_S = 3600.0


def pod(busy: int, size: int, *, is_alive: bool = True, is_draining: bool = False) -> PodStatus:
    slots = [SlotInfo(name=str(n), jobs=[f"x{n}/1"] if n < busy else []) for n in range(size)]
    info = PodInfo(
        pod="p", host="h", boot_id="b", pid_namespace=1, pid=1, start_ticks=1, user="u", started_at="", heartbeat=1,
        heartbeat_s=2.0, lock="flock", slots=slots,
    )  # fmt: skip
    return PodStatus(info, is_alive, is_draining)


def done(ago_s: float, took_s: float = 600.0, **fields: Any) -> Record:
    ended_s = NOW_S - ago_s
    times = {"started_at": now_text(ended_s - took_s), "finished_at": now_text(ended_s)}
    return Record(state=State.DONE, **{**times, "rev": int(1e6 - ago_s), **fields})


def of(records: dict[str, Record], *pods: PodStatus, methods: dict[str, str] | None = None, **rest: Any) -> Pace:
    """The pace of these jobs; all that are queued can run."""
    entries = {job: Entry(job_id=job, method=(methods or {}).get(job, "fft")) for job in records}
    snapshot = Snapshot(records=records, entries=entries, now_s=NOW_S, pods=pods, **rest)
    return pace(snapshot, [WaitReason("waits for a free slot", tuple(snapshot.jobs_in(State.QUEUED)))])


def queued(count: int) -> dict[str, Record]:
    return {f"q{n}": Record(state=State.QUEUED) for n in range(count)}


def test_slots_are_those_of_live_pods_and_a_draining_pod_takes_nothing_more() -> None:
    found = of({}, pod(1, 4), pod(2, 8, is_draining=True), pod(0, 8, is_alive=False))
    assert (found.slots_busy, found.slots) == (3, 6)


@pytest.mark.parametrize(
    ("ages", "window_s", "per_hour"),
    [
        # Enough in the last hour.
        ([n * 240.0 for n in range(60)], HOUR_S, 16.0),
        # Too few in the last hour, so the last six count.
        ([n * 1500.0 for n in range(60)], 6 * HOUR_S, 2.5),
        # Too few in any window: the longest.
        ([n * 20_000.0 for n in range(9)], 24 * HOUR_S, 5 / 24),
    ],
)
def test_the_rate_is_that_of_the_shortest_window_with_enough_jobs(
    ages: list[float], window_s: float, per_hour: float
) -> None:
    found = of({f"d{n}": done(age) for n, age in enumerate(ages)})
    assert found.window_s == window_s
    assert found.done_per_hour == pytest.approx(per_hour)


def test_a_matrix_that_began_a_moment_ago_is_not_averaged_over_a_day() -> None:
    found = of({f"d{n}": done(60.0 * n, took_s=600) for n in range(3)})
    assert found.window_s == pytest.approx(720)
    assert found.done_per_hour == pytest.approx(3 / 720 * HOUR_S)


def test_seconds_make_no_rate_of_an_hour() -> None:
    found = of({f"d{n}": done(0.5 * n, took_s=1) for n in range(20)}, pod(0, 2))
    assert rate_words(found, 0, 0) == ["0 of 2 slots busy"]
    assert (
        rate_words(of({f"d{n}": done(20.0 * n, took_s=1) for n in range(20)}, pod(0, 2)), 0, 0)[1]
        == "189 jobs/h in the last 6m21s"
    )


def test_a_limit_that_binds_makes_the_estimate_a_least_time() -> None:
    jobs = {"d": done(60), "r": Record(state=State.RUNNING, started_at=now_text(NOW_S - 100), attempt=1)} | queued(4)
    per_method = Limits(of_methods={"fft": 1})
    assert left_words(of(jobs, pod(1, 8), limits=per_method)) == ["5 jobs left: at least 48m20s (max_running of fft)"]
    by_value = Limits([RunningLimit(max_running=2, per="job_id", where=("method=fft",))])
    assert left_words(of(jobs, pod(1, 8), limits=by_value)) == ["5 jobs left: about 10m00s"], "none of them is reached"
    everything = Limits([RunningLimit(max_running=2, where=("method=fft",))])
    assert left_words(of(jobs, pod(1, 8), limits=everything)) == [
        "5 jobs left: at least 24m10s (max_running of method=fft)"
    ]
    assert left_words(of(jobs, pod(1, 1), limits=everything)) == ["5 jobs left: about 48m20s"], "the slots are fewer"


def test_where_a_pod_shows_no_sign_of_life_its_slots_do_not_count() -> None:
    silent = msgspec.structs.replace(pod(1, 8), silent_s=65.0)
    found = of({"d": done(60)} | queued(2), silent)
    assert (found.slots, found.silent, found.remaining_s) == (0, ("p",), None)
    running = {"r": Record(state=State.RUNNING, pod="p", started_at=now_text(NOW_S), attempt=1)}
    other = PodStatus(msgspec.structs.replace(pod(0, 1).info, pod="q"), is_alive=True)
    assert of({"d": done(60)} | running | queued(2), silent, other).remaining_s == pytest.approx(1800)


def test_more_jobs_than_are_looked_at_shorten_the_window() -> None:
    found = of({f"d{n}": done(n, took_s=1) for n in range(1_500)})
    assert found.done_per_hour == pytest.approx(HOUR_S, rel=0.01)


def test_what_a_person_marked_as_done_did_not_run() -> None:
    found = of({f"d{n}": done(n * 10.0, reason=BY_HAND) for n in range(20)} | queued(3), pod(0, 1))
    assert (found.done_per_hour, found.remaining_s) == (None, None)


def test_nothing_is_known_until_a_job_is_done() -> None:
    found = of(queued(3), pod(0, 2))
    assert (found.left, found.remaining_s) == (3, None)
    assert of({"d": done(60)} | queued(3)).remaining_s is None, "no pod is alive"


@pytest.mark.parametrize("pods", [(), (pod(1, 4, is_alive=False),), (pod(1, 4, is_draining=True),)])
def test_no_time_is_told_while_no_pod_claims_what_waits(pods: tuple[PodStatus, ...]) -> None:
    running = {"r": Record(state=State.RUNNING, started_at=now_text(NOW_S - 100), attempt=1)}
    found = of({"d": done(60)} | running | queued(12), *pods)
    assert (found.left, found.remaining_s, found.is_claiming) == (13, None, False)
    assert left_words(found) == ["13 jobs left: time unknown until a pod claims jobs"]
    # What runs goes on without a pod.
    found = of({"d": done(60)} | running, *pods)
    assert found.remaining_s == pytest.approx(500)
    assert left_words(found) == ["1 job left: about 8m20s"]


def test_the_time_is_unknown_where_those_that_are_done_are_of_a_former_manifest() -> None:
    records = {f"d{n}": done(60) for n in range(6)} | queued(2)
    entries = {job: Entry(job_id=job, method="k") for job in queued(2)}
    snapshot = Snapshot(records=records, entries=entries, now_s=NOW_S, pods=(pod(0, 1),))
    assert left_words(pace(snapshot, waits(snapshot))) == ["2 jobs left: time unknown (no k job to go by)"]


def test_the_time_left_is_that_of_the_mean_job_on_all_slots() -> None:
    records = {"d1": done(60, took_s=500), "d2": done(90, took_s=700)} | queued(10)
    assert of(records, pod(0, 4)).remaining_s == pytest.approx(10 * 600 / 4)
    # Slots do not make a single job faster.
    assert of(records, pod(0, 1000)).remaining_s == pytest.approx(600)


def test_running_jobs_count_by_their_progress() -> None:
    running = Record(state=State.RUNNING, started_at=now_text(NOW_S - 300), attempt=1)
    found = of({"d": done(60, took_s=1000), "r": running}, pod(1, 1), progress={"r": Progress(step=30, of=100)})
    assert found.remaining_s == pytest.approx(700)
    assert of({"d": done(60, took_s=1000), "r": running}, pod(1, 1)).remaining_s == pytest.approx(700)


def test_a_stalled_job_does_not_make_the_rest_longer() -> None:
    running = Record(state=State.RUNNING, started_at=now_text(NOW_S - 9000), attempt=1)
    records = {"d": done(60, took_s=1000), "r": running} | queued(1)
    found = of(
        records, pod(1, 2), progress={"r": Progress(step=1, of=100)}, find_stalled=lambda snapshot: {"r": 8000.0}
    )
    assert found.remaining_s == pytest.approx(1000)


def test_methods_that_nothing_is_known_of_are_named() -> None:
    found = of({"d": done(60)} | queued(2), pod(0, 1), methods={"q1": "eval"})
    assert (found.remaining_s, found.unknown_methods) == (pytest.approx(600), ("eval",))


def test_jobs_that_wait_for_a_person_are_not_left_but_stuck() -> None:
    snapshot = Snapshot(records={"d": done(60)} | queued(5), entries={}, now_s=NOW_S, pods=(pod(0, 1),))
    found = pace(
        snapshot, [WaitReason("slot", ("q0",)), WaitReason("paused", ("q1", "q2", "q3", "q4"), needs_person=True)]
    )
    assert (found.left, found.stuck) == (1, 4)


def test_a_job_marked_by_hand_among_the_latest_does_not_lower_the_rate() -> None:
    records = {f"d{n}": done(n, took_s=7200) for n in range(3_000)} | {"m": done(0.5, reason=BY_HAND)}
    assert of(records).done_per_hour == pytest.approx(HOUR_S, rel=0.01)


def test_no_time_is_told_for_methods_of_which_no_job_is_done() -> None:
    found = of({"d": done(60)} | queued(2), pod(0, 1), methods={"q0": "eval", "q1": "eval"})
    assert (found.remaining_s, found.unknown_methods) == (None, ("eval",))


def test_what_no_manifest_lists_is_not_left_to_do() -> None:
    records = {"d": done(60)} | queued(3)
    snapshot = Snapshot(
        records=records, entries={"q0": Entry(job_id="q0", method="fft")}, now_s=NOW_S, pods=(pod(0, 1),)
    )
    found = pace(snapshot, waits(snapshot))
    assert (found.left, found.stuck) == (1, 2)


def test_a_running_job_of_which_nothing_is_known_is_not_left_out_silently() -> None:
    running = Record(state=State.RUNNING, started_at=now_text(NOW_S - 300), attempt=1)
    records = {"d": done(60), "r": running} | queued(1)
    entries = {job: Entry(job_id=job, method="fft") for job in ("d", "q0")}
    snapshot = Snapshot(records=records, entries=entries, now_s=NOW_S, pods=(pod(1, 2),))
    assert pace(snapshot, waits(snapshot)).unknown_methods == ("unlisted",)


def test_the_range_is_as_wide_as_the_times_of_the_jobs_differ() -> None:
    alike = {f"d{n}": done(n * 60.0, 600.0) for n in range(20)}
    unlike = {f"d{n}": done(n * 60.0, 300.0 if n % 2 else 900.0) for n in range(20)}
    found = [of({**jobs, **queued(40)}, pod(0, 4)) for jobs in (alike, unlike)]
    for one in found:
        assert one.remaining_s == 6000.0
        assert one.low_s is not None and one.high_s is not None and one.low_s <= 6000.0 <= one.high_s
    # Jobs that all take the same differ only in when the last one begins.
    assert (found[0].low_s, found[0].high_s) == (6000.0, 6000.0 + 0.75 * 600)
    assert found[1].low_s is not None and found[1].low_s < 6000.0 - 300


def test_one_job_tells_nothing_of_the_range() -> None:
    found = of({"d": done(60.0), **queued(4)}, pod(0, 4))
    assert found.remaining_s == 600.0 and found.low_s is None and found.high_s is None


def test_nine_matrices_in_ten_end_within_the_range() -> None:
    """Jobs of known times, taken by slots as they become free, against what the first of them let one expect."""
    random, within = Random(7), 0
    for _ in range(200):
        times = [random.lognormvariate(6.0, 0.5) for _ in range(90)]
        jobs = {f"d{n}": done(n * 60.0, took_s) for n, took_s in enumerate(times[:30])}
        found = of({**jobs, **queued(60)}, pod(0, 6))
        free_s = [0.0] * 6
        for took_s in times[30:]:
            heapq.heapreplace(free_s, free_s[0] + took_s)
        assert found.low_s is not None and found.high_s is not None
        within += found.low_s <= max(free_s) <= found.high_s
    assert 0.88 <= within / 200 < 1


def test_a_running_job_is_never_over_before_its_time() -> None:
    jobs = {f"d{n}": done(n * 60.0, 600.0) for n in range(20)}
    begun = Record(state=State.RUNNING, pod="p", attempt=1, started_at=now_text(NOW_S - 60))
    found = of({**jobs, "r": begun}, pod(1, 8))
    assert found.low_s == found.remaining_s == found.high_s == 540.0


def test_a_stalled_job_has_no_estimate() -> None:
    running = Record(state=State.RUNNING, started_at=now_text(NOW_S - 3 * HOUR_S))
    records = {"d": done(60), "r": running}
    found = of(records, pod(1, 1), find_stalled=lambda _: {"r": NOW_S - HOUR_S})
    assert (found.left, found.stalled, found.remaining_s) == (1, 1, None)
    assert left_words(found) == ["1 job left: time unknown (1 stalled)"]
    with_more = of(records | queued(1), pod(1, 2), find_stalled=lambda _: {"r": NOW_S - HOUR_S})
    assert left_words(with_more) == ["2 jobs left: at least 10m00s (1 stalled)"]
    # One that has run for longer than any before is not done in 0 s.
    assert left_words(of(records, pod(1, 1))) == ["1 job left: time unknown"]


def test_jobs_that_no_live_pod_takes_have_no_estimate() -> None:
    records = {"d": done(60)} | queued(2)
    entries = {job: Entry(job_id=job, method="fft") for job in records}
    snapshot = Snapshot(records=records, entries=entries, now_s=NOW_S, pods=(pod(0, 1),))
    refused = WaitReason("needs 8 GPUs", ("q0",), is_refused=True)
    assert left_words(pace(snapshot, [refused])) == ["1 job left: time unknown (1 that no live pod can take)"]
    both = pace(snapshot, [refused, WaitReason("waits for a free slot", ("q1",))])
    assert left_words(both) == ["2 jobs left: at least 10m00s (1 that no live pod can take)"]
