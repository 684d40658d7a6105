"""What holds for every outlet: the seam's promises, for the local outlet and for a batch queue."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import forks
import pytest
import queue_outlet
from fleet import PATIENCE_S, wait_until

from dispatcher.base import host
from dispatcher.config import Config, Method
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import (
    CANNOT_START,
    Bundle,
    Ended,
    Key,
    Orphan,
    Outlet,
    Pending,
    Placement,
    Report,
    Request,
    Running,
    Slot,
    Unknown,
)
from dispatcher.outlets.bundle import Assignment, render
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.kinds import OUTLET_KINDS
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.outlets.local import processes
from dispatcher.run_state.liveness import is_held
from dispatcher.run_state.observer import Observer
from dispatcher.workspace import AttemptPaths, Layout

LONG = "echo begun >>begun; sleep 600"
GATED = "echo begun >>begun; until [ -e go ]; do sleep 0.02; done; exit 3"
# So many are in flight at once in one test; the local outlet starts a process for each.
MANY = 200
QUEUE = queue_outlet.NAME


class Place:
    """A workspace and the pods that run attempts in it through one kind of outlet."""

    def __init__(self, root: Path, kind: str) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        self.kind = kind
        self.config = Config(
            layout=Layout(root),
            matrix=root / "m.json",
            methods={"m": Method(name="m", template=root / "none.py")},
            kill_grace_s=1.0,
            # So that wrappers look for `superseded` every second.
            lost_after_s=4.0,
        )
        # The directory of the queue that starts attempts; the local outlet starts them itself.
        self.queue = root.parent / "queue"
        self._made: list[Outlet] = []
        self.outlet = self.restarted()

    def restarted(self, pod: str = "pod") -> Outlet:
        """The outlet of a dispatcher that has just started."""
        observer = Observer(self.config.layout, self.config.lost_after_s, lambda: True)
        context = PodContext(pod=pod, config=self.config, observer=observer, log=print, cpu_slots=MANY)
        make = queue_outlet.QueueOutlet if self.kind == QUEUE else OUTLET_KINDS[self.kind].make
        made = make(context)
        assert made is not None
        self._made.append(made)
        return made

    def paths(self, key: Key) -> AttemptPaths:
        return self.config.layout.attempt(key.job_id, key.number)

    def claim(self, job: str, script: str, **words: Any) -> Bundle:
        """Claim a job that runs this script, and render it; it takes a slot."""
        key = Key(job, 1)
        self.paths(key).directory.mkdir(parents=True)
        self.paths(key).claimant.write_text(f"pod\n{host.here()}\n")
        slot = self.outlet.capacity.take(Request(0))
        assert slot is not None
        entry = Entry(job_id=job, method="m", command=("bash", "-c", script), **words)
        assigned = Assignment(
            entry=entry,
            key=key,
            pod="pod",
            request=Request(0),
            slot=slot,
        )
        return render(self.config, assigned, self.outlet.site(slot))

    def submit(self, job: str, script: str, **words: Any) -> Key:
        bundle = self.claim(job, script, **words)
        self.outlet.submit([bundle])
        return bundle.key

    def wait(self, keys: Sequence[Key], what: type, outlet: Outlet | None = None) -> dict[Key, Report]:
        """Poll as the loop does, woken by the outlet alone, until all of these have such a status."""
        outlet = outlet or self.outlet
        end_s = time.monotonic() + PATIENCE_S
        while True:
            reports = dict(outlet.poll(keys))
            assert set(reports) == set(keys)
            if all(isinstance(report.status, what) for report in reports.values()):
                return reports
            assert time.monotonic() < end_s, f"not {what.__name__} within {PATIENCE_S:g} s: {reports}"
            due_s = outlet.due_in_s()
            select.select(outlet.wait_fds(), [], [], PATIENCE_S if due_s is None else due_s)

    def end(self, key: Key, outlet: Outlet | None = None) -> Ended:
        status = self.wait([key], Ended, outlet)[key].status
        assert isinstance(status, Ended)
        return status

    def begun(self) -> list[str]:
        """One line for each attempt that has begun."""
        with contextlib.suppress(FileNotFoundError):
            return (self.root / "begun").read_text().splitlines()
        return []

    def wait_begun(self, key: Key) -> None:
        """Until the attempt runs and has said so."""
        self.wait([key], Running)
        wait_until(self.begun, f"{key} has begun")

    def orphan(self, key: Key, *, is_unwanted: bool = False, **placement: Any) -> Orphan:
        return Orphan(key=key, pod="dead", placement=Placement(**placement), is_unwanted=is_unwanted)

    def recover(self, outlet: Outlet, orphan: Orphan) -> Ended:
        """What another pod finds in the end."""

        def ended() -> Ended | None:
            status = outlet.recover([orphan])[orphan.key].status
            return status if isinstance(status, Ended) else None

        found = wait_until(ended, "the end of the orphan is found")
        assert isinstance(found, Ended)
        return found

    def close(self) -> None:
        for directory in self.config.layout.jobs_dir.glob("*/*"):
            for pid in processes.of_attempt(directory):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for outlet in self._made:
            outlet.close()


@pytest.fixture(params=[LOCAL, QUEUE])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == QUEUE:
        for name, value in queue_outlet.install(tmp_path).items():
            monkeypatch.setenv(name, value)
    made = Place(tmp_path / "a'; echo foo", request.param)
    try:
        yield made
    finally:
        made.close()
        assert ctypes.CDLL(None).prctl(36, 0, 0, 0, 0) == 0


# For what only an outlet has whose attempts are started by another program.
only_queue = pytest.mark.parametrize("place", [QUEUE], indirect=True)


@pytest.mark.parametrize(
    ("script", "status"), [("true", 0), ("exit 3", 3), ("exit 75", 75), ("kill -SEGV $$", 139), ("kill -9 $$", 137)]
)
def test_how_one_ends(place: Place, script: str, status: int) -> None:
    key = place.submit("a", f"echo said; {script}")
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (status, "")
    assert ended.ended_at is not None
    assert place.paths(key).log.read_text() == "said\n", "its directory is complete when its end is reported"


def test_many_with_one_call(place: Place) -> None:
    bundles = [place.claim(f"job{number}", f"exit {number}") for number in range(5)]
    place.outlet.submit(bundles)
    reports = place.wait([bundle.key for bundle in bundles], Ended)
    codes = [report.status.exit_code for report in reports.values() if isinstance(report.status, Ended)]
    assert codes == [0, 1, 2, 3, 4]


def test_where_it_runs_is_told_while_it_runs(place: Place) -> None:
    key = place.submit("a", GATED)
    report = place.wait([key], Running)[key]
    assert report.placement is not None
    assert report.placement.host == host.host_name()
    wait_until(lambda: (found := place.outlet.poll([key])[key].placement) and found.pid, "the wrapper's pid is known")
    (place.root / "go").touch()
    assert place.end(key).exit_code == 3


def test_an_end_stays_known_until_it_is_forgotten(place: Place) -> None:
    key = place.submit("a", "exit 3")
    ended = place.end(key)
    assert place.outlet.poll([key])[key].status == ended

    def is_at_rest() -> bool:
        return bool(place.outlet.poll([key])) and not place.outlet.wait_fds() and place.outlet.due_in_s() is None

    wait_until(is_at_rest, "the outlet has nothing to wait for")
    place.outlet.forget([key])


@pytest.mark.parametrize("reason", ["", "preempted"])
def test_cancel_while_it_runs(place: Place, reason: str) -> None:
    key = place.submit("a", LONG)
    place.wait_begun(key)
    place.outlet.cancel([key], reason=reason)
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (143, reason)


@only_queue
@pytest.mark.parametrize("reason", ["", "preempted"])
def test_cancel_before_it_runs(place: Place, reason: str) -> None:
    (place.queue / "hold").touch()
    key = place.submit("a", LONG)
    place.wait([key], Pending)
    place.outlet.cancel([key], reason=reason)
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (None, reason)
    (place.queue / "hold").unlink()
    place.outlet.submit([])
    assert place.begun() == []


def test_cancel_at_once_after_the_submission(place: Place) -> None:
    key = place.submit("a", LONG)
    place.outlet.cancel([key])
    assert place.end(key).exit_code in (None, 143)


def test_by_force(place: Place) -> None:
    key = place.submit("a", "trap '' TERM; echo begun >>begun; sleep 600 & wait; sleep 600")
    place.wait_begun(key)
    place.outlet.cancel([key], force=True)
    assert place.end(key).exit_code is None
    wait_until(lambda: not processes.of_attempt(place.paths(key).directory), "nothing of it is left")


def test_the_time_limit(place: Place) -> None:
    key = place.submit("a", LONG, time_limit_s=1.0)
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (143, "time limit")


def test_what_cannot_be_delivered_has_ended(place: Place) -> None:
    """No exception, and not the entry's fault."""
    bundle = place.claim("a", "true")
    place.paths(bundle.key).entry.mkdir()
    place.outlet.submit([bundle])
    ended = place.end(bundle.key)
    assert (ended.exit_code, ended.exit_reason, ended.blames_host) == (None, CANNOT_START, True)
    assert os.fspath(place.paths(bundle.key).directory) in (ended.error or "")


def test_the_same_bundle_twice_is_one_submission(place: Place) -> None:
    bundle = place.claim("a", GATED)
    place.outlet.submit([bundle, bundle])
    place.outlet.submit([bundle])
    place.wait_begun(bundle.key)
    # A dispatcher that died before it could record the submission.
    later = place.restarted()
    later.submit([bundle])
    place.wait([bundle.key], Running, later)
    place.wait([bundle.key], Running)
    (place.root / "go").touch()
    assert place.end(bundle.key, later).exit_code == 3
    assert place.end(bundle.key).exit_code == 3
    place.outlet.submit([bundle])
    assert place.end(bundle.key).exit_code == 3
    assert place.begun() == ["begun"]


def test_a_second_wrapper_runs_nothing_and_is_not_the_end(place: Place) -> None:
    """However it came about, and whatever becomes of it."""
    bundle = place.claim("a", GATED)
    place.outlet.submit([bundle])
    place.wait_begun(bundle.key)
    wrapper = ["bash", os.fspath(place.paths(bundle.key).wrapper), "none"]
    twin = subprocess.run(wrapper, env={**os.environ, **bundle.environment}, stderr=subprocess.PIPE, check=False)
    assert twin.returncode == 1
    assert b"not started again" in twin.stderr
    assert isinstance(place.outlet.poll([bundle.key])[bundle.key].status, Running)
    (place.root / "go").touch()
    assert place.end(bundle.key).exit_code == 3
    assert place.begun() == ["begun"]


@only_queue
def test_a_queue_that_starts_a_job_again_by_itself(place: Place) -> None:
    """What it tells of the second run is not told of the attempt."""
    key = place.submit("a", GATED)
    place.wait_begun(key)
    (file,) = place.queue.glob("[0-9]*.json")
    file.write_text(file.read_text().replace("STARTED", "PENDING"))
    wait_until(lambda: "COMPLETED" in qstat(), "the queue says that it has ended")
    place.wait([key], Running)
    (place.root / "go").touch()
    assert place.end(key).exit_code == 3
    assert place.begun() == ["begun"]


def qstat() -> str:
    return subprocess.check_output(["qstat"], text=True, timeout=PATIENCE_S)


def test_many_in_flight_with_one_poll(place: Place) -> None:
    is_queue = place.kind == QUEUE
    if is_queue:
        (place.queue / "hold").touch()
    bundles = [place.claim(f"job{number}", "sleep 600") for number in range(MANY)]
    assert place.outlet.capacity.is_full
    place.outlet.submit(bundles)
    keys = [bundle.key for bundle in bundles]
    place.wait(keys, Pending if is_queue else Running)
    if is_queue:
        wait_until(lambda: all(one.placement for one in place.outlet.poll(keys).values()), "the queue has named all")
        calls = (place.queue / "calls").read_text().splitlines()
        assert len([call for call in calls if call.startswith("qsubmit")]) == 1
    place.outlet.cancel(keys, force=True)
    assert len(place.wait(keys, Ended)) == MANY


def test_a_descriptor_tells_the_end(place: Place) -> None:
    """Or the outlet wants to be asked after a time: the loop has no other way to learn of it."""
    key = place.submit("a", GATED)
    place.wait([key], Running)
    assert place.outlet.wait_fds() or place.outlet.due_in_s() is not None
    (place.root / "go").touch()
    assert place.end(key).exit_code == 3


@only_queue
def test_nothing_waits_for_a_program_that_hangs(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_outlet, "PROGRAM_LIMIT_S", 1.0)
    for name in ("qsubmit", "qstat", "qcancel"):
        (tmp_path / "bin" / name).write_text("#!/bin/bash\nexec sleep 600\n")
    begun_s = time.monotonic()
    key = place.submit("a", "true")
    place.outlet.cancel([key])
    report = place.outlet.poll([key])[key]
    assert time.monotonic() - begun_s < 5
    assert isinstance(report.status, Pending | Unknown)
    # It is ended after its time, and the queue is asked what has come of it.
    place.wait([key], Unknown)


@only_queue
def test_an_answer_that_is_lost(place: Place) -> None:
    """The submission has worked although its program has failed: it is found, and not made again."""
    (place.queue / "lossy").touch()
    key = place.submit("a", GATED)
    place.wait([key], Running)
    (place.root / "go").touch()
    assert place.end(key).exit_code == 3
    assert place.begun() == ["begun"]
    assert len(list(place.queue.glob("[0-9]*.json"))) == 1


@only_queue
def test_an_outlet_that_is_away_and_back(place: Place) -> None:
    """What is not known is not an end."""
    running = place.submit("a", GATED)
    place.wait([running], Running)
    (place.queue / "away").touch()
    place.wait([running], Unknown)
    submitted = place.submit("b", "exit 4")
    (place.root / "go").touch()
    place.wait([running, submitted], Unknown)
    (place.queue / "away").unlink()
    assert place.end(running).exit_code == 3
    assert place.end(submitted).exit_code == 4


STEPS = ["claimed", "submitted", "begun", "ended"]


def live_until(root: Path, kind: str, environment: dict[str, str], bundle: Bundle, step: str) -> None:
    """A dispatcher process that gets as far as this step and is killed."""
    os.environ.update(environment)
    place = Place(root, kind)
    try:
        if step != "claimed":
            place.outlet.submit([bundle])
        if step in ("begun", "ended"):
            place.wait_begun(bundle.key)
        if step == "ended":
            (root / "go").touch()
            place.end(bundle.key)
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        # What failed above would otherwise look like a dispatcher that was killed.
        os._exit(1)


def die_after(place: Place, bundle: Bundle, step: str) -> None:
    status = forks.run(live_until, place.root, place.kind, dict(os.environ), bundle, step)
    assert status == -signal.SIGKILL


@pytest.mark.parametrize("step", STEPS)
def test_a_dispatcher_that_is_killed_and_started_again(place: Place, step: str) -> None:
    bundle = place.claim("a", GATED)
    key = bundle.key
    die_after(place, bundle, step)
    again = place.restarted()
    adopted = again.adopt({key: Placement()})
    (place.root / "go").touch()
    if key in adopted:
        assert adopted == {key: Slot()}
        ended = place.end(key, again)
        again.capacity.release(adopted[key])
    else:
        ended = place.recover(again, place.orphan(key))
    if step == "claimed":
        assert ended.exit_code is None
    else:
        assert ended.exit_code == 3
    assert len(place.begun()) == (step != "claimed")


@pytest.mark.parametrize("step", STEPS)
def test_the_attempt_of_a_dead_dispatcher_is_recovered_by_another(place: Place, step: str) -> None:
    bundle = place.claim("a", GATED)
    key = bundle.key
    die_after(place, bundle, step)
    other = place.restarted("other")
    (place.root / "go").touch()
    ended = place.recover(other, place.orphan(key))
    assert ended.exit_code == (None if step == "claimed" else 3)
    assert len(place.begun()) == (step != "claimed")
    if step == "claimed":
        assert place.paths(key).superseded.exists(), "a copy of it that comes back would run beside the next attempt"


def test_what_a_person_asked_for_is_done_to_the_attempt_of_a_dead_dispatcher(place: Place) -> None:
    bundle = place.claim("a", LONG)
    die_after(place, bundle, "begun")
    ended = place.recover(place.restarted("other"), place.orphan(bundle.key, is_unwanted=True))
    assert ended.exit_code == 143


def test_inspecting_changes_nothing(place: Place) -> None:
    bundle = place.claim("a", GATED)
    die_after(place, bundle, "begun")
    orphan, other = place.orphan(bundle.key, is_unwanted=True), place.restarted("other")
    assert not isinstance(other.inspect([orphan])[bundle.key], Ended)
    (place.root / "go").touch()
    assert place.recover(place.restarted("other"), place.orphan(bundle.key)).exit_code == 3
    status = other.inspect([orphan])[bundle.key]
    assert isinstance(status, Ended)
    assert status.exit_code == 3


def test_a_fenced_attempt_ends_by_itself(place: Place) -> None:
    key = place.submit("a", LONG)
    place.wait_begun(key)
    place.outlet.fence([key])
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (143, "superseded")


def test_a_fenced_attempt_does_not_begin(place: Place) -> None:
    bundle = place.claim("a", LONG)
    place.outlet.fence([bundle.key])
    place.outlet.submit([bundle])
    assert place.end(bundle.key).exit_reason == "superseded"
    assert place.begun() == []


def test_slots_are_shown_while_they_are_in_use(place: Place) -> None:
    key = place.submit("a", GATED)
    place.wait([key], Running)
    infos = place.outlet.slot_infos()
    assert [info for info in infos if str(key) in info.jobs]
    assert {info.outlet for info in infos} == {place.outlet.name}
    (place.root / "go").touch()
    place.end(key)
    assert not [info for info in place.outlet.slot_infos() if str(key) in info.jobs]
    assert is_held(place.paths(key).alive) is False
