"""How jobs of PBS end, seen through the outlet: each row of the table of states, and what PBS does behind our back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from beds.pbs import NODES, PbsBed
from clocks import UptimeClock
from fleet import printed, wait_until
from outlets.places import GATED, LONG, PbsPlace

from dispatcher.hosts.types import PbsQueue
from dispatcher.outlets.base import (
    CANCELLED,
    CANNOT_START,
    NOT_REACHED,
    PREEMPTED,
    TIME_LIMIT,
    Ended,
    Key,
    Pending,
    Running,
    Unknown,
)
from dispatcher.outlets.context import BatchTimes
from dispatcher.outlets.pbs import programs

pytestmark = pytest.mark.slow

# By TERM, or by KILL on a machine that is so busy that the grace period of a second is over first.
KILLED = (143, 137)
STUBBORN = f"trap '' TERM; {GATED}"


@pytest.fixture
def make_place(
    start_pbs: Callable[..., PbsBed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., PbsPlace]]:
    """Makes a place; words are fields of the host, `bed` those of the server."""
    made: list[PbsPlace] = []

    def make(bed: dict[str, Any] | None = None, nodes: dict[str, Any] = NODES, **settings: Any) -> PbsPlace:
        server = start_pbs(nodes, **(bed or {}))
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        made.append(PbsPlace(tmp_path / "a'; echo foo", server, **settings))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def place(make_place: Callable[..., PbsPlace]) -> PbsPlace:
    return make_place()


def running_job(place: PbsPlace, key: Key) -> str:
    """The id of an attempt's job once the attempt has begun."""
    place.wait_begun(key)
    return job_of(place, key)


def job_of(place: PbsPlace, key: Key) -> str:
    place.wait([key], Running | Pending | Unknown)  # type: ignore[arg-type]
    return wait_until(lambda: (found := place.outlet.poll([key])[key].placement) and found.handle, "its id is known")


def test_a_job_that_somebody_else_deletes(place: PbsPlace) -> None:
    key = place.submit("a", LONG)
    place.bed.run("qdel", running_job(place, key))
    ended = place.end(key)
    assert (ended.exit_reason, ended.told_by_signal) == (CANCELLED, "TERM")
    assert ended.exit_code in KILLED


def test_one_that_does_not_end_when_it_is_deleted(place: PbsPlace) -> None:
    place.bed.configure(kill_delay_s=0.3)
    key = place.submit("a", STUBBORN)
    place.bed.run("qdel", running_job(place, key))
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (137, CANCELLED)


def test_a_job_that_is_held_and_released(place: PbsPlace) -> None:
    with place.holding():
        key = place.submit("a", "exit 3")
        job = job_of(place, key)
        place.bed.run("qhold", job)
        wait_until(lambda: place.outlet.poll([key])[key].status == Pending("held"), "it is held")
    place.bed.run("qrls", job)
    assert place.end(key).exit_code == 3


def test_a_job_that_is_deleted_while_it_is_held(place: PbsPlace) -> None:
    with place.holding():
        key = place.submit("a", LONG)
        job = job_of(place, key)
        place.bed.run("qhold", job)
        place.bed.run("qdel", job)
        ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (None, CANCELLED)
    assert "deleted before it began" in (ended.error or "")


def test_the_walltime_of_the_site(make_place: Callable[..., PbsPlace]) -> None:
    """One that the attempt knows nothing of."""
    place = make_place(pbsbatch_args=("-l", "walltime=00:00:01"))
    ended = place.end(place.submit("a", LONG))
    assert ended.exit_reason == TIME_LIMIT
    assert ended.exit_code in KILLED
    place.bed.configure(kill_delay_s=0.3)
    stubborn = place.end(place.submit("b", STUBBORN))
    assert stubborn.exit_reason == TIME_LIMIT
    assert stubborn.exit_code in (None, 137)


def test_the_walltime_of_an_attempt_with_a_time_limit(make_place: Callable[..., PbsPlace]) -> None:
    place = make_place()
    assert place.end(place.submit("a", "true", time_limit_s=3600)).exit_code == 0
    (words,) = place.bed.calls("qsub")
    assert words[words.index("-l", words.index("-l") + 1) + 1] == "walltime=01:05:00"
    contradicting = make_place(pbsbatch_args=("-l", "walltime=00:10:00"))
    ended = contradicting.end(contradicting.submit("b", "true", time_limit_s=3600))
    assert ended.exit_reason == CANNOT_START
    assert "-l walltime=00:10:00 contradicts" in (ended.error or "")


def test_a_job_that_pbs_starts_again(place: PbsPlace) -> None:
    """Although it was submitted with -r n: an administrator, a hook or a server that restarts."""
    key = place.submit("a", LONG)
    job = running_job(place, key)
    place.bed.rerun(job)
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (None, PREEMPTED)
    assert place.begun() == ["a"]
    assert place.bed.wait_for(job, "F")["Exit_status"] in (91, None)


def test_one_that_is_put_back_and_does_not_begin_again(place: PbsPlace) -> None:
    """It is not waited for: the job of the dispatcher goes on elsewhere, and the one in the queue is deleted."""
    key = place.submit("a", LONG)
    job = running_job(place, key)
    place.bed.stop_queue()
    place.bed.rerun(job)
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (None, PREEMPTED)
    assert place.bed.jobs()[job]["job_state"] == "F"


def test_an_attempt_that_ends_with_the_status_of_a_refusal(place: PbsPlace) -> None:
    key = place.submit("a", "exit 91")
    assert place.end(key).exit_code == 91


@pytest.mark.parametrize("script", [LONG, STUBBORN])
def test_preempted_by_deletion(place: PbsPlace, script: str) -> None:
    place.bed.configure(kill_delay_s=0.3)
    key = place.submit("a", script)
    place.bed.preempt(running_job(place, key), by="delete")
    assert place.end(key).exit_reason == PREEMPTED


def test_preempted_by_suspension(place: PbsPlace) -> None:
    key = place.submit("a", GATED)
    job = running_job(place, key)
    for _ in range(3):
        place.bed.preempt(job, by="suspend")
        wait_until(lambda: place.is_stopped(key), "all of it is stopped")
        assert isinstance(place.outlet.poll([key])[key].status, Running)
        place.bed.resume(job)
        wait_until(lambda: not place.is_stopped(key), "it goes on")
    place.let_go()
    assert place.end(key).exit_code == 3


def test_a_lost_node(place: PbsPlace) -> None:
    key = place.submit("a", LONG)
    running_job(place, key)
    place.bed.lose_node("node1")
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (None, "")
    assert "its node was lost" in (ended.error or "")


def test_a_node_that_only_seems_lost(place: PbsPlace) -> None:
    """What still runs there finds out that it was given up, and ends before the job may begin again."""
    key = place.submit("a", LONG)
    running_job(place, key)
    place.bed.lose_node("node1", kill=False)
    ended = place.end(key)
    assert place.paths(key).superseded.exists()
    assert (ended.exit_code, ended.exit_reason) == (143, "superseded")
    assert place.is_gone(key)


def test_a_job_that_moves_to_another_server(place: PbsPlace) -> None:
    key = place.submit("a", GATED)
    job = running_job(place, key)
    place.bed.move(job)
    place.wait([key], Unknown)
    place.let_go()
    assert place.end(key).exit_code == 3


def test_a_request_that_can_never_be_met(make_place: Callable[..., PbsPlace]) -> None:
    place = make_place(nodes={"node1": {"ncpus": 0}})
    key = place.submit("a", "true")

    def why() -> str:
        status = place.outlet.poll([key])[key].status
        return status.why if isinstance(status, Pending) else ""

    wait_until(lambda: why().startswith("Can Never Run"), "PBS says so")


def test_what_the_server_refuses(make_place: Callable[..., PbsPlace]) -> None:
    place = make_place(queues=(PbsQueue("nowhere"),))
    ended = place.end(place.submit("a", "true"))
    assert (ended.exit_reason, ended.blames_host) == (CANNOT_START, True)
    assert ended.error == "qsub: Unknown queue (exit status 170)"


def test_a_job_that_cannot_be_deleted_beside_one_that_has_ended(place: PbsPlace) -> None:
    """The status of qdel is that of its last complaint."""
    with place.holding():
        theirs, ended = (job_of(place, place.submit(name, "true")) for name in "ab")
        place.bed.give_away(theirs)
        place.bed.run("qdel", ended)
        words = programs.cancel([theirs, ended], (), force=False).words
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (159, f"qdel: Unauthorized Request {theirs}\n")


OPEN = {"enabled": True, "started": True}


@pytest.mark.parametrize(
    "first",
    [{**OPEN, "enabled": False}, {**OPEN, "max_queued": 0}, {**OPEN, "max_walltime_s": 60}, {**OPEN, "started": False}],
)
def test_a_queue_that_does_not_take_it(make_place: Callable[..., PbsPlace], first: dict[str, Any]) -> None:
    """The next one does; one that starts no jobs is the last that is tried."""
    queues = {"workq": OPEN, "gpu": first, "slow": OPEN}
    place = make_place(queues=(PbsQueue("gpu"), PbsQueue("slow")), bed={"queues": queues})
    key = place.submit("a", "exit 3", time_limit_s=60)
    assert place.end(key).exit_code == 3
    assert [job["queue"] for job in place.bed.jobs().values()] == ["slow"]


def test_queues_that_all_refuse_it(make_place: Callable[..., PbsPlace]) -> None:
    """It waits if one of them may take it later, and each is named with its reason."""
    place = make_place(
        queues=(PbsQueue("gpu"), PbsQueue("nowhere")),
        bed={"queues": {"workq": OPEN, "gpu": {**OPEN, "enabled": False}}},
    )
    key = place.submit("a", "true")
    wait_until(lambda: place.outlet.poll([key]) and place.outlet.slot_infos()[0].note, "the outlet shows why")
    note = place.outlet.slot_infos()[0].note
    assert "gpu: qsub: Queue is not enabled nowhere: qsub: Unknown queue (exit status 173)" in note
    assert isinstance(place.outlet.poll([key])[key].status, Pending)


@pytest.mark.parametrize("shows_first_only", [True, False])
def test_several_jobs_whichever_version_of_qstat(make_place: Callable[..., PbsPlace], shows_first_only: bool) -> None:
    place = make_place(bed={"shows_first_only": shows_first_only})
    with place.holding():
        keys = [place.submit(f"a{number}", f"exit {number + 3}") for number in range(3)]
        gone = place.submit("gone", LONG)
        place.bed.run("qdel", job_of(place, gone))
        for key in keys:
            place.bed.run("qhold", job_of(place, key))
        wait_until(
            lambda: {one.status for one in place.outlet.poll(keys).values()} == {Pending("held")}, "all are seen"
        )
        place.bed.purge()
    for key in keys:
        place.bed.run("qrls", job_of(place, key))
    assert [place.end(key).exit_code for key in keys] == [3, 4, 5]


def test_a_limit_of_jobs_in_the_queue(make_place: Callable[..., PbsPlace]) -> None:
    """The attempt waits here until the server takes it."""
    place = make_place(times=BatchTimes(refusal_pause_s=0.2))
    place.bed.configure(max_queued=0)
    key = place.submit("a", "exit 3")

    def note() -> str:
        place.outlet.poll([key])
        return place.outlet.slot_infos()[0].note

    wait_until(lambda: "per-user limit" in note(), "the outlet shows why")
    assert isinstance(place.outlet.poll([key])[key].status, Pending)
    place.bed.configure(max_queued=None)
    assert place.end(key).exit_code == 3


def test_a_host_that_refuses_everything(make_place: Callable[..., PbsPlace]) -> None:
    """After some refusals it is left alone for a while; then one submission is the test."""
    queues = {"workq": {"enabled": True, "started": True}}
    place = make_place(queues=(PbsQueue("later"),), bed={"queues": queues}, times=BatchTimes(refusal_pause_s=0.5))
    for number in range(3):
        assert place.end(place.submit(f"a{number}", "true")).exit_reason == CANNOT_START
    assert place.outlet.capacity.is_full
    assert "Unknown queue" in place.outlet.slot_infos()[0].note
    place.bed.configure(queues={name: {"enabled": True, "started": True} for name in ("workq", "later")})
    wait_until(place.has_room, "it may be tried again")
    assert place.end(place.submit("b", "exit 3")).exit_code == 3
    assert not place.outlet.slot_infos()[0].note


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_server_without_history(make_place: Callable[..., PbsPlace], is_killed: bool) -> None:
    """A finished job is unknown at once: its own exit status tells how it ended, or that it was told to end."""
    place = make_place(bed={"history": False, "kill_delay_s": 0.1})
    key = place.submit("a", STUBBORN)
    job = running_job(place, key)
    if is_killed:
        place.bed.run("qdel", job)
        wait_until(lambda: job not in place.bed.jobs(), "it is forgotten")
        ended = place.end(key)
        assert (ended.exit_code, ended.exit_reason) == (None, PREEMPTED)
        assert place.paths(key).superseded.exists()
    else:
        place.let_go()
        assert place.end(key).exit_code == 3


def test_a_history_that_has_expired(place: PbsPlace) -> None:
    key = place.submit("a", GATED)
    job = running_job(place, key)
    with place.away():
        place.let_go()
        place.wait([key], Unknown)
        place.bed.wait_for(job, "F")
        place.bed.purge()
    assert place.end(key).exit_code == 3


def test_a_job_id_that_is_used_again(place: PbsPlace) -> None:
    """The job of somebody else under the id of ours is not ours."""
    key = place.submit("a", GATED)
    job = running_job(place, key)
    with place.away():
        place.let_go()
        wait_until(place.paths(key).exit.exists, "it has ended")
        place.bed.wait_for(job, "F")
        place.bed.purge()
        place.bed.reuse_ids()
    script = place.root.parent / "other.sh"
    script.write_text("sleep 600")
    assert place.bed.run("qsub", "-N", "other", os.fspath(script)).strip() == job
    assert place.end(key).exit_code == 3
    assert place.bed.jobs()[job]["job_state"] == "R"


def test_environments_that_make_the_answer_invalid(
    make_place: Callable[..., PbsPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD", 'a"b\nc\\')
    place = make_place(pbsbatch_args=("-V",))
    assert place.end(place.submit("a", 'test "$ODD" = "$(printf \'a"b\\nc\\\\\')"')).exit_code == 0


def test_a_batch_script_that_fails(place: PbsPlace) -> None:
    """What it printed is part of the error."""
    with place.holding():
        key = place.submit("a", "true")
        job_of(place, key)
        place.paths(key).wrapper.unlink()
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (127, CANNOT_START)
    assert "job.sh: No such file or directory" in (ended.error or "")


def test_a_job_that_its_node_could_not_start(place: PbsPlace) -> None:
    with place.holding():
        key = place.submit("a", "true")
        job = job_of(place, key)
        place.bed.end_job(job, -1)
    ended = place.end(key)
    assert (ended.exit_reason, ended.blames_host) == (CANNOT_START, True)
    assert "could not be started" in (ended.error or "")


def submit_pack(place: PbsPlace, scripts: dict[str, str], **words: Any) -> list[Key]:
    """Attempts that run in one job, one after the other."""
    bundles = [place.claim(name, script, **words) for name, script in scripts.items()]
    place.outlet.submit([msgspec.structs.replace(bundle, pack=bundles[0].key) for bundle in bundles])
    return [bundle.key for bundle in bundles]


def test_several_attempts_in_one_job(place: PbsPlace) -> None:
    keys = submit_pack(place, {"a": "exit 3", "b": "echo second", "c": "kill -9 $$"}, time_limit_s=3600)
    reports = place.wait(keys, Ended)
    assert [report.status.exit_code for report in reports.values() if isinstance(report.status, Ended)] == [3, 0, 137]
    (words,) = place.bed.calls("qsub")
    assert "walltime=03:15:00" in words
    assert printed(place.paths(keys[1]).log) == "second\n"


def test_those_that_a_job_does_not_come_to(place: PbsPlace) -> None:
    first, second, third = submit_pack(place, {"a": "true", "b": LONG, "c": LONG})
    place.bed.run("qdel", running_job(place, second))
    assert place.end(first).exit_code == 0
    assert place.end(second).exit_reason == CANCELLED
    assert place.end(third).exit_reason == NOT_REACHED
    assert place.begun() == ["b"]


def test_those_for_which_no_time_is_left(place: PbsPlace) -> None:
    clock = UptimeClock(place.config.layout, "pbs.sh.j2")
    first, second = submit_pack(place, {"a": GATED, "b": "true"}, time_limit_s=3600)
    place.wait_begun(first)
    # Each of the two has five minutes for what comes before and after it.
    clock.passes(3600 + 2 * 300 + 1)
    place.let_go()
    assert place.end(first).exit_code == 3
    assert (place.end(second).exit_code, place.end(second).exit_reason) == (143, NOT_REACHED)
