"""What holds for every outlet: the seam's promises, for local attempts, schedulers and hosts behind ssh."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forks
import msgspec
import pytest
from fleet import wait_until
from outlets.places import PbsPlace, Place, PlainPlace, SlurmPlace, TpuPlace, VolcanoPlace
from outlets.remote.nvidia_smi import SCRIPT

from dispatcher.outlets.base import (
    CANNOT_START,
    Bundle,
    Ended,
    GpuUse,
    Pending,
    Placement,
    Request,
    Running,
    Slot,
    Unknown,
)
from dispatcher.provenance.record import HostFacts
from dispatcher.run_state.liveness import is_held

LONG = "echo begun >>begun; sleep 600"
GATED = "echo begun >>begun; until [ -e go ]; do sleep 0.02; done; exit 3"

LOCAL, SLURM, PBS, PLAIN, TPU, VOLCANO = "local", "slurm", "pbs", "plain", "tpu", "volcano"
QUEUES: list[Any] = [pytest.param(SLURM, marks=pytest.mark.slurm), PBS, pytest.param(VOLCANO, marks=pytest.mark.k8s)]
KINDS = [LOCAL, *QUEUES, pytest.param(PLAIN, marks=pytest.mark.ssh), pytest.param(TPU, marks=pytest.mark.tpu)]


def make_place(kind: str, root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    if kind == SLURM:
        slurm = request.getfixturevalue("slurm")
        for name, value in slurm.env.items():
            monkeypatch.setenv(name, value)
        return SlurmPlace(root, slurm)
    if kind == PBS:
        pbs = request.getfixturevalue("pbs")
        for name, value in pbs.env.items():
            monkeypatch.setenv(name, value)
        return PbsPlace(root, pbs)
    if kind == PLAIN:
        ssh = request.getfixturevalue("ssh")
        monkeypatch.setenv("DISPATCHER_SSH_CONFIG", os.fspath(ssh.config))
        return PlainPlace(root, ssh)
    if kind == TPU:
        tpu = request.getfixturevalue("tpu")
        for name, value in tpu.env.items():
            monkeypatch.setenv(name, value)
        return TpuPlace(root, tpu)
    if kind == VOLCANO:
        return VolcanoPlace(root, request.getfixturevalue("volcano"))
    return Place(root)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = make_place(request.param, tmp_path / "a'; echo foo", request, monkeypatch)
    try:
        yield made
    finally:
        made.close()
        assert ctypes.CDLL(None).prctl(36, 0, 0, 0, 0) == 0


# For what only an outlet has whose attempts are started by another program, and what only one has that can be away.
only_queues = pytest.mark.parametrize("place", QUEUES, indirect=True)
only_hosts = pytest.mark.parametrize("place", KINDS[1:], indirect=True)


ENDS = {"true": 0, "exit 3": 3, "exit 75": 75, "kill -SEGV $$": 139, "kill -9 $$": 137}


def test_how_they_end(place: Place) -> None:
    """Several that are submitted with one call, each in its own way."""
    bundles = [place.claim(f"job{number}", f"echo said; {script}") for number, script in enumerate(ENDS)]
    place.outlet.submit(bundles)
    reports = place.wait([bundle.key for bundle in bundles], Ended)
    for bundle, status in zip(bundles, ENDS.values(), strict=True):
        ended = reports[bundle.key].status
        assert isinstance(ended, Ended)
        assert (ended.exit_code, ended.exit_reason) == (status, "")
        assert ended.ended_at is not None
        log = place.paths(bundle.key).log.read_text()
        assert log == "said\n", "its directory is complete when its end is reported"


def test_where_it_runs_is_told_while_it_runs(place: Place) -> None:
    key = place.submit("a", GATED)
    report = place.wait([key], Running)[key]
    assert report.placement is not None
    assert report.placement.host in place.node_names
    wait_until(lambda: (found := place.outlet.poll([key])[key].placement) and found.pid, "the wrapper's pid is known")
    place.let_go()
    assert place.end(key).exit_code == 3


@only_hosts
def test_a_host_tells_what_only_it_knows(place: Place) -> None:
    """The entry's `cwd` is below the workspace there."""
    place.there("it's here").mkdir()
    script = f'[[ $PWD == "$DISPATCHER_ROOT/it\'s here" ]] || exit 9; cd ..; {GATED}'
    key = place.submit("a", script, cwd="it's here")
    path = place.paths(key).provenance_host
    place.wait_begun(key)
    wait_until(lambda: place.outlet.poll([key]) and path.exists(), "the host has told")
    place.let_go()
    assert place.end(key).exit_code == 3
    found = msgspec.json.decode(path.read_bytes(), type=HostFacts)
    # The nodes of these two beds share the name of the kernel.
    named = [os.uname().nodename] if isinstance(place, SlurmPlace | PbsPlace) else place.node_names
    assert found.host in named
    assert found.problems == ()


# With Volcano it comes home as it does by ssh, of which tests/outlets/plain/test_hosts.py has a test.
@pytest.mark.parametrize("place", QUEUES[:2], indirect=True)
def test_whether_it_uses_its_gpus_is_told_while_it_runs(place: Place) -> None:
    driver = place.there("driver")
    driver.mkdir()
    (driver / "nvidia-smi").write_text(SCRIPT)
    (driver / "nvidia-smi").chmod(0o755)
    (driver / "use").write_text("0, GPU-0, 0\n")
    place.config = msgspec.structs.replace(place.config, gpu_idle={"after_s": 2.0})
    env = {"PATH": f"{place.outlet.site(Slot()).layout.root}/driver:{os.environ['PATH']}"}
    key = place.submit("a", GATED, request=Request(gpus=1), env=env)

    def use() -> GpuUse | None:
        status = place.outlet.poll([key])[key].status
        return status.gpu_use if isinstance(status, Running) else None

    place.wait_begun(key)
    idle = wait_until(lambda: (now := use()) and now.idle_s >= 2 and now, "it is told to be idle")
    assert idle.gpus == 1
    (driver / "use.new").write_text("0, GPU-0, 7\n")
    (driver / "use.new").rename(driver / "use")
    wait_until(lambda: use() == GpuUse(0.0, 1), "it is in use")
    place.let_go()
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


@only_queues
@pytest.mark.parametrize("reason", ["", "preempted"])
def test_cancel_before_it_runs(place: Place, reason: str) -> None:
    with place.holding():
        key = place.submit("a", LONG)
        place.wait([key], Pending)
        place.outlet.cancel([key], reason=reason)
        ended = place.end(key)
        assert (ended.exit_code, ended.exit_reason) == (None, reason)
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
    # A scheduler may send TERM before KILL, and the wrapper see it.
    assert place.end(key).exit_code in (None, 137)
    wait_until(lambda: place.is_gone(key), "nothing of it is left")


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
    place.let_go()
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
    twin = place.run_wrapper(bundle)
    assert twin.returncode == 1
    assert "not started again" in twin.stderr
    assert isinstance(place.outlet.poll([bundle.key])[bundle.key].status, Running)
    place.let_go()
    assert place.end(bundle.key).exit_code == 3
    assert place.begun() == ["begun"]


@pytest.mark.slow
def test_many_in_flight_with_one_poll(place: Place) -> None:
    bundles = [place.claim(f"job{number}", "sleep 600") for number in range(place.many)]
    assert place.outlet.capacity.is_full
    place.outlet.submit(bundles)
    keys = [bundle.key for bundle in bundles]
    place.wait(keys, Pending | Running)
    place.outlet.cancel(keys, force=True)
    assert len(place.wait(keys, Ended)) == place.many


def test_a_descriptor_tells_the_end(place: Place) -> None:
    """Or the outlet wants to be asked after a time: the loop has no other way to learn of it."""
    key = place.submit("a", GATED)
    place.wait([key], Running)
    assert place.outlet.wait_fds() or place.outlet.due_in_s() is not None
    place.let_go()
    assert place.end(key).exit_code == 3


@only_hosts
def test_nothing_waits_for_a_host_that_hangs(place: Place) -> None:
    with place.hanging():
        begun_s = time.monotonic()
        key = place.submit("a", "true")
        place.outlet.cancel([key])
        report = place.outlet.poll([key])[key]
        assert time.monotonic() - begun_s < 5
        assert isinstance(report.status, Pending | Unknown | Ended)


@only_hosts
def test_an_answer_that_is_lost(place: Place) -> None:
    """The submission has worked although its call has failed: it is found, and not made again."""
    with place.losing_answers():
        key = place.submit("a", GATED)
        wait_until(lambda: place.outlet.poll([key]) and place.begun(), "it runs")
    place.let_go()
    assert place.end(key).exit_code == 3
    assert place.begun() == ["begun"]


@only_hosts
def test_an_outlet_that_is_away_and_back(place: Place) -> None:
    """What is not known is not an end."""
    running = place.submit("a", GATED)
    place.wait_begun(running)
    with place.away():
        place.wait([running], Unknown)
        place.let_go()
        place.wait([running], Unknown)
    assert place.end(running).exit_code == 3


STEPS = ["claimed", "submitted", "begun", "ended"]


def live_until(
    root: Path, hosts: list[Any], working: Path, environment: dict[str, str], bundle: Bundle, step: str
) -> None:
    """A dispatcher process that gets as far as this step and is killed."""
    os.environ.update(environment)
    try:
        place = Place(root, hosts, working)
        if step != "claimed":
            place.outlet.submit([bundle])
        if step in ("begun", "ended"):
            place.wait_begun(bundle.key)
        if step == "ended":
            place.let_go()
            place.end(bundle.key)
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        # What failed above would otherwise look like a dispatcher that was killed.
        os._exit(1)


def die_after(place: Place, bundle: Bundle, step: str) -> None:
    status = forks.run(live_until, place.root, place.makers, place.working, dict(os.environ), bundle, step)
    assert status == -signal.SIGKILL


@pytest.mark.parametrize("step", STEPS)
def test_a_dispatcher_that_is_killed_and_started_again(place: Place, step: str) -> None:
    bundle = place.claim("a", GATED)
    key = bundle.key
    die_after(place, bundle, step)
    again = place.restarted()
    adopted = again.adopt({key: Placement()})
    place.let_go()
    if key in adopted:
        assert adopted == {key: Slot()}
        ended = place.end(key, again)
        again.capacity.release(adopted[key])
    else:
        ended = place.recover(again, place.orphan(key))
    was_sent = step != "claimed" and (place.submits_at_once or step != "submitted")
    assert ended.exit_code == (3 if was_sent else None)
    assert len(place.begun()) == was_sent


@pytest.mark.parametrize("step", STEPS)
def test_the_attempt_of_a_dead_dispatcher_is_recovered_by_another(place: Place, step: str) -> None:
    bundle = place.claim("a", GATED)
    key = bundle.key
    die_after(place, bundle, step)
    other = place.restarted("other")
    place.let_go()
    ended = place.recover(other, place.orphan(key))
    was_sent = step != "claimed" and (place.submits_at_once or step != "submitted")
    assert ended.exit_code == (3 if was_sent else None)
    assert len(place.begun()) == was_sent
    if not was_sent:
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
    place.let_go()
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
    place.let_go()
    place.end(key)
    assert not [info for info in place.outlet.slot_infos() if str(key) in info.jobs]
    assert is_held(place.paths(key).alive) is False
