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
from fleet import printed, wait_until
from outlets.places import BEGUN, GATED, LONG, PbsPlace, Place, PlainPlace, SlurmPlace, TpuPlace, VolcanoPlace
from outlets.remote.nvidia_smi import SCRIPT

from dispatcher.outlets.base import (
    CANNOT_START,
    Bundle,
    Ended,
    GpuUse,
    Key,
    Outlet,
    Pending,
    Placement,
    Request,
    Running,
    Slot,
    Unknown,
)
from dispatcher.outlets.context import BatchTimes
from dispatcher.outlets.wrapper import DOES_NOT_KNOW
from dispatcher.provenance.record import HostFacts
from dispatcher.run_state.liveness import is_held

LEAVES = f"trap '{{}}; exit 0' TERM; {BEGUN}; while :; do sleep 0.05; done"
# Also what leads a session of its own is killed by force.
STUBBORN = f"trap '' TERM; {BEGUN}; setsid sleep 600 & sleep 600 & wait; sleep 600"

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
        ssh = request.getfixturevalue("start_ssh")(["h1"])
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


ENDS = {"true": 0, "exit 3": 3, "exit 75": 75, "kill -SEGV $$": 139, "kill -9 $$": 137, "kill -9 0": 137}


def test_how_they_end(place: Place) -> None:
    """Several that are submitted with one call, each in its own way; it stays known until it is forgotten.

    One that cannot be delivered is no exception, and not the entry's fault.
    """
    begin = """echo said; echo '{"step": 1}' >"$DISPATCHER_ATTEMPT_DIR/metrics.jsonl"; """
    bundles = [place.claim(f"job{number}", begin + script) for number, script in enumerate(ENDS)]
    undeliverable = place.claim("undeliverable", "true")
    place.paths(undeliverable.key).entry.mkdir()
    place.outlet.submit([*bundles, undeliverable])
    keys = [*(bundle.key for bundle in bundles), undeliverable.key]
    reports = place.wait(keys, Ended)
    for bundle, status in zip(bundles, ENDS.values(), strict=True):
        ended = reports[bundle.key].status
        assert isinstance(ended, Ended)
        assert (ended.exit_code, ended.exit_reason) == (status, "")
        assert ended.ended_at is not None
        assert printed(place.paths(bundle.key).log) == "said\n", "its directory is complete when its end is reported"
        assert place.paths(bundle.key).metrics.read_text() == '{"step": 1}\n'
    ended = reports[undeliverable.key].status
    assert isinstance(ended, Ended)
    assert (ended.exit_code, ended.exit_reason, ended.blames_host) == (None, CANNOT_START, True)
    assert os.fspath(place.paths(undeliverable.key).directory) in (ended.error or "")
    assert {key: report.status for key, report in place.outlet.poll(keys).items()} == {
        key: report.status for key, report in reports.items()
    }

    def is_at_rest() -> bool:
        return bool(place.outlet.poll(keys)) and not place.outlet.wait_fds() and place.outlet.due_in_s() is None

    wait_until(is_at_rest, "the outlet has nothing to wait for")
    place.outlet.forget(keys)
    scripts = place.config.layout.submissions_dir
    assert not scripts.exists() or not list(scripts.iterdir()), "the files of submissions go with their ends"


def test_what_is_told_of_one_that_runs(place: Place) -> None:
    """Where, in which slot, and what only the host knows. The entry's `cwd` is below the workspace there."""
    place.there("it's here").mkdir()
    script = f'[[ $PWD == "$DISPATCHER_ROOT/it\'s here" ]] || exit 9; cd ..; {GATED}'
    key = place.submit("a", script, cwd="it's here")
    report = place.wait([key], Running)[key]
    assert report.placement is not None
    assert report.placement.host in place.node_names
    infos = place.outlet.slot_infos()
    assert [info for info in infos if str(key) in info.jobs]
    assert {info.outlet for info in infos} == {place.outlet.name}
    # The loop has no other way to learn of its end.
    assert place.outlet.wait_fds() or place.outlet.due_in_s() is not None
    wait_until(lambda: (found := place.outlet.poll([key])[key].placement) and found.pid, "the wrapper's pid is known")
    path = place.paths(key).provenance_host
    wait_until(lambda: place.outlet.poll([key]) and (path.exists() or place.kind == LOCAL), "the host has told")
    place.let_go()
    assert place.end(key).exit_code == 3
    assert not [info for info in place.outlet.slot_infos() if str(key) in info.jobs]
    assert is_held(place.paths(key).alive) is False
    # The local outlet's own process tells of its host.
    if place.kind != LOCAL:
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
    place.config = msgspec.structs.replace(place.config, gpu_idle={"after_s": 1.0})
    env = {"PATH": f"{place.outlet.site(Slot(), Request(0)).layout.root}/driver:{os.environ['PATH']}"}
    key = place.submit("a", GATED, request=Request(gpus=1), env=env)

    def use() -> GpuUse | None:
        status = place.outlet.poll([key])[key].status
        return status.gpu_use if isinstance(status, Running) else None

    place.wait_begun(key)
    idle = wait_until(lambda: (now := use()) and now.idle_s >= 1 and now, "it is told to be idle")
    assert idle.gpus == 1
    (driver / "use.new").write_text("0, GPU-0, 7\n")
    (driver / "use.new").rename(driver / "use")
    wait_until(lambda: use() == GpuUse(0.0, 1), "it is in use")
    place.let_go()
    assert place.end(key).exit_code == 3


def test_how_they_are_stopped(place: Place) -> None:
    at_once = place.submit("at_once", LONG)
    place.outlet.cancel([at_once])
    reasons = {"cancelled": "", "preempted": "preempted"}
    cancelled = [place.claim(job, LONG) for job in reasons]
    forced = place.claim("forced", STUBBORN)
    limited = place.claim("limited", LONG, time_limit_s=1.0)
    # What leaves with 0 then is done only if it proves that.
    saves = place.claim("saves", LEAVES.format("true"))
    proves = place.claim("proves", LEAVES.format('echo "{}" >"$DISPATCHER_ATTEMPT_DIR/result.json"'))
    place.outlet.submit([*cancelled, forced, limited, saves, proves])
    place.wait_begun(forced.key, saves.key, proves.key, *(bundle.key for bundle in cancelled))
    place.outlet.cancel([saves.key, proves.key])
    for bundle in (saves, proves):
        ended = place.end(bundle.key)
        assert (ended.exit_code, ended.is_done) == (0, bundle is proves)
    for bundle in cancelled:
        place.outlet.cancel([bundle.key], reason=reasons[bundle.key.job_id])
    place.outlet.cancel([forced.key], force=True)
    for bundle in cancelled:
        ended = place.end(bundle.key)
        assert (ended.exit_code, ended.exit_reason) == (143, reasons[bundle.key.job_id])
    # A scheduler may send TERM before KILL, and the wrapper see it.
    assert place.end(forced.key).exit_code in (None, 137)
    wait_until(lambda: place.is_gone(forced.key), "nothing of it is left")
    ended = place.end(limited.key)
    assert (ended.exit_code, ended.exit_reason) == (143, "time limit")
    assert place.end(at_once).exit_code in (None, 143)


@only_queues
def test_cancel_before_they_run(place: Place) -> None:
    with place.holding():
        keys = {place.submit(f"job{number}", LONG): reason for number, reason in enumerate(["", "preempted"])}
        place.wait(list(keys), Pending)
        for key, reason in keys.items():
            place.outlet.cancel([key], reason=reason)
        for key, reason in keys.items():
            ended = place.end(key)
            assert (ended.exit_code, ended.exit_reason) == (None, reason)
    place.outlet.submit([])
    assert place.begun() == []


def test_fenced_attempts(place: Place) -> None:
    """One that runs ends by itself, and one that was submitted later does not begin."""
    key = place.submit("a", LONG)
    late = place.claim("late", LONG)
    place.wait_begun(key)
    place.outlet.fence([key, late.key])
    place.outlet.submit([late])
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (143, "superseded")
    assert place.end(late.key).exit_reason == "superseded"
    assert place.begun() == ["a"]


def test_the_same_bundle_again_is_one_submission(place: Place) -> None:
    """A second wrapper, however it came about, runs nothing and is not the end."""
    bundle = place.claim("a", GATED)
    place.outlet.submit([bundle, bundle])
    place.outlet.submit([bundle])
    place.wait_begun(bundle.key)
    twin = place.run_wrapper(bundle)
    assert twin.returncode == DOES_NOT_KNOW
    assert "not started again" in twin.stderr
    assert isinstance(place.outlet.poll([bundle.key])[bundle.key].status, Running)
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
    assert place.begun() == ["a"]


def test_many_in_flight_with_one_poll(place: Place) -> None:
    bundles = [place.claim(f"job{number}", "sleep 600") for number in range(place.many)]
    assert place.outlet.capacity.is_full
    place.outlet.submit(bundles)
    keys = [bundle.key for bundle in bundles]
    place.wait(keys, Pending | Running)
    place.outlet.cancel(keys, force=True)
    assert len(place.wait(keys, Ended)) == place.many


@only_hosts
def test_nothing_waits_for_a_host_that_hangs(place: Place) -> None:
    took_s = []
    with place.hanging():
        for job in "abc":
            begun_s = time.monotonic()
            key = place.submit(job, "true")
            place.outlet.cancel([key])
            report = place.outlet.poll([key])[key]
            took_s.append(time.monotonic() - begun_s)
            assert isinstance(report.status, Pending | Unknown | Ended)
    # A busy machine may delay any one of them; every call to a host may take at least ten seconds.
    assert min(took_s) < 5


@only_hosts
def test_what_is_not_known_is_not_an_end(place: Place) -> None:
    """A submission that has worked although its call has failed is found, and not made again; then the outlet is away
    and back."""
    with place.losing_answers():
        key = place.submit("a", GATED)
        wait_until(lambda: place.outlet.poll([key]) and place.begun(), "it runs")
    place.wait([key], Running)
    with place.away():
        place.wait([key], Unknown)
        place.let_go()
        place.wait([key], Unknown)
    assert place.end(key).exit_code == 3
    assert place.begun() == ["a"]


STEPS = ["claimed", "submitted", "begun", "ended"]


def live_until(
    root: Path, hosts: list[Any], working: Path, pace: tuple[float, float], environment: dict[str, str],
    bundles: dict[str, Bundle],
) -> None:  # fmt: skip
    """A dispatcher process that gets each of its attempts as far as the step it has the name of, and is killed."""
    os.environ.update(environment)
    try:
        Place.poll_s, Place.patience_s = pace
        place = Place(root, hosts, working)
        running = [bundles[step].key for step in bundles if step not in STEPS[:2]]
        if running:
            place.outlet.submit([bundles[key.job_id] for key in running])
            place.wait_begun(*running)
        if "ended" in bundles:
            place.let_go("ended")
            place.end(bundles["ended"].key)
        if "submitted" in bundles:
            place.outlet.submit([bundles["submitted"]])
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        # What failed above would otherwise look like a dispatcher that was killed.
        os._exit(1)


def die_after(place: Place, *bundles: Bundle) -> None:
    named = {bundle.key.job_id: bundle for bundle in bundles}
    pace = (place.poll_s, place.patience_s)
    status = forks.run(live_until, place.root, place.makers, place.working, pace, dict(os.environ), named)
    assert status == -signal.SIGKILL


def left_by_dead_dispatchers(place: Place, *more: Bundle) -> list[Key]:
    """An attempt that has got as far as each of STEPS, and `more` that have begun: two dispatchers have died."""
    bundles = {step: place.claim(step, GATED) for step in STEPS}
    die_after(place, bundles["begun"], bundles["ended"], *more)
    # One that has nothing else to do: what it begins when it submits is all that it does.
    die_after(place, bundles["claimed"], bundles["submitted"])
    return [bundle.key for bundle in bundles.values()]


def check_ends(place: Place, ends: dict[Key, Ended]) -> None:
    """What was sent has run once, and nothing else has."""
    sent = {"begun", "ended", *(["submitted"] if place.submits_at_once else [])}
    assert {key.job_id: ended.exit_code for key, ended in ends.items()} == {
        step: 3 if step in sent else None for step in STEPS
    }
    assert sorted(job for job in place.begun() if job in STEPS) == sorted(sent)


def restarted(place: Place, pod: str = "pod") -> Outlet:
    """The outlet of another dispatcher, for which what was never launched is absent at once.

    What a scheduler was given with one call may come late, and is waited for.
    """
    if not place.submits_at_once:
        place.times = BatchTimes(absent_s=0.0)
    return place.restarted(pod)


def test_dispatchers_that_are_killed_and_started_again(place: Place) -> None:
    keys = left_by_dead_dispatchers(place)
    again = restarted(place)
    adopted = again.adopt(dict.fromkeys(keys, Placement()))
    place.let_go()
    assert set(adopted.values()) <= {Slot()}
    reports = place.wait(list(adopted), Ended, again)
    ends = {key: report.status for key, report in reports.items() if isinstance(report.status, Ended)}
    for slot in adopted.values():
        again.capacity.release(slot)
    check_ends(place, ends | place.recover_all(again, *(place.orphan(key) for key in keys if key not in adopted)))


def test_attempts_of_dead_dispatchers_are_recovered_by_another(place: Place) -> None:
    """What a person asked for is done to them. Inspecting changes nothing."""
    unwanted = place.claim("unwanted", LONG)
    keys = left_by_dead_dispatchers(place, unwanted)
    other = restarted(place, "other")
    begun = next(key for key in keys if key.job_id == "begun")
    assert not isinstance(other.inspect([place.orphan(begun, is_unwanted=True)])[begun], Ended)
    orphans = [*(place.orphan(key) for key in keys), place.orphan(unwanted.key, is_unwanted=True)]
    place.let_go()
    ends = place.recover_all(other, *orphans)
    assert ends.pop(unwanted.key).exit_code == 143
    check_ends(place, ends)
    for key, ended in ends.items():
        # A copy of it that comes back would run beside the next attempt.
        assert place.paths(key).superseded.exists() or ended.exit_code == 3
    status = place.outlet.inspect([place.orphan(begun, is_unwanted=True)])[begun]
    assert isinstance(status, Ended)
    assert status.exit_code == 3
