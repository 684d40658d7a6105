"""What goes wrong between two waits of the loop, and must neither be forgotten nor end the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence

import commands
import pytest
from fleet import PATIENCE_S, Fleet, shell, wait_until

from dispatcher.base.host import host_name
from dispatcher.config import load_config
from dispatcher.errors import StorageError
from dispatcher.outlets.base import Bundle
from dispatcher.outlets.local.gpu_monitor import GpuMonitor
from dispatcher.outlets.local.outlet import LocalOutlet
from dispatcher.pod.current_config import CurrentConfig
from dispatcher.pod.current_manifest import CurrentManifest
from dispatcher.pod.options import Addition, PodOptions, outlet_context
from dispatcher.pod.participants.claims import blocked_again_s
from dispatcher.pod.pod_outlets import PodOutlets
from dispatcher.pod.reconciler import Reconciler
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.journal import Line
from dispatcher.run_state.liveness import is_held
from dispatcher.run_state.locked_journal import LockedJournal
from dispatcher.run_state.observer import Observer
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store

# A dispatcher whose first look at a file of the run state fails as on a file server in trouble.
IN_TROUBLE = """
import errno, sys
from dispatcher.cli.main import main
from dispatcher.pod.reconciler import Reconciler

def reconcile(self, _reconcile=Reconciler.reconcile, failures=[errno.ESTALE, errno.EIO], **how):
    if failures:
        raise OSError(failures.pop(), "in trouble")
    return _reconcile(self, **how)

Reconciler.reconcile = reconcile
sys.exit(main())
"""


@pytest.fixture
def reconciler(fleet: Fleet) -> Reconciler:
    fleet.write_manifest([shell("a", "true"), shell("b", "true")])
    return begun(fleet)


def begun(fleet: Fleet, addition: Addition | None = None) -> Reconciler:
    """A reconciler as a pod with one CPU slot has it, without the loop around it."""
    config = load_config(fleet.layout)
    options = PodOptions(pod="pod", cpu_slots=1, addition=addition)
    observer = Observer(fleet.layout, config.lost_after_s, lambda: True)
    outlets = PodOutlets(outlet_context(config, options, observer, print))
    made = Reconciler(Store(fleet.layout, by="pod"), CurrentConfig(config, print), options, outlets, observer, print)
    made.begin()
    return made


def test_a_pod_that_drains_queues_no_new_jobs(fleet: Fleet) -> None:
    fleet.write_manifest([])
    told: list[str] = []
    addition = Addition(
        append=lambda store, tx: told.append("queued"), added=lambda: told.append("added"), requests=frozenset()
    )
    made = begun(fleet, addition)
    made.reconcile(claiming=False, poll_is_due=True)
    assert told == [] and made.is_adding
    made.reconcile(claiming=True, poll_is_due=True)
    assert told == ["queued", "added"] and not made.is_adding


def test_many_blocked_jobs_do_not_keep_the_loop_busy(fleet: Fleet) -> None:
    """All that were looked at in the first rounds are left alone for longer than these rounds take."""
    jobs = [f"blocked{number}" for number in range(300)]
    fleet.write_manifest([shell(job, "true") for job in jobs])
    fleet.layout.jobs_dir.mkdir(parents=True)
    for job in jobs:
        fleet.layout.job_dir(job).touch()
    made = begun(fleet)
    rounds = 0
    while made.reconcile(claiming=True, poll_is_due=False) or made.has_more_to_do():
        rounds += 1
        assert rounds < 20, "the 300 take 15 rounds of 20"
    pause_s = made.due_in_s(claiming=True)
    assert pause_s is not None and 0 < pause_s <= 5
    assert [blocked_again_s(blocked) for blocked in (1, 100, 1_000, 10_000)] == [5.0, 5.0, 50.0, 300.0]


def test_jobs_that_end_at_once_do_not_keep_the_status_file_from_being_written(
    fleet: Fleet, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop does its other work after a pass that has left nothing unfilled, and comes back without a wait."""
    submit = LocalOutlet.submit

    def submit_and_wait(outlet: LocalOutlet, bundles: Sequence[Bundle]) -> None:
        submit(outlet, bundles)
        for bundle in bundles:
            paths = fleet.layout.attempt(bundle.key.job_id, bundle.key.number)
            wait_until(lambda paths=paths: is_held(paths.alive) is False, "the attempt has ended")

    monkeypatch.setattr(LocalOutlet, "submit", submit_and_wait)
    assert reconciler.reconcile(claiming=True, poll_is_due=True) == 1
    assert not reconciler.has_more_to_do()
    assert reconciler.due_in_s(claiming=True) == 0
    wait_until(lambda: reconciler.reconcile(claiming=True, poll_is_due=False) == 1, "its files are on the disk")
    assert fleet.states() == {"a": "done", "b": "running"}


def test_what_others_claim_while_new_entries_are_queued_is_looked_after(
    fleet: Fleet, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_new = CurrentManifest.queue_new

    def queue_while_a_ghost_claims(manifest: CurrentManifest) -> None:
        with Store(fleet.layout, by="ghost").transaction() as tx:
            tx.make_attempt("a", 1)
            claim = Change(state=State.RUNNING, pod="ghost", attempt=1, host=host_name())
            tx.change("a", Event.CLAIMED, claim)
        queue_new(manifest)

    monkeypatch.setattr(CurrentManifest, "queue_new", queue_while_a_ghost_claims)
    fleet.write_manifest([shell("a", "true"), shell("b", "true"), shell("c", "true")])
    reconciler.reconcile(claiming=False, poll_is_due=True)
    reconciler.reconcile(claiming=False, poll_is_due=True)
    record = fleet.record("a")
    assert (record.state, record.reason) == ("queued", "lost"), "nobody records how the job of a dead pod ended"


def test_new_entries_are_queued_although_the_first_try_failed(
    fleet: Fleet, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: CurrentManifest) -> None:
        raise StorageError("the disk is full")

    fleet.write_manifest([shell("a", "true"), shell("b", "true"), shell("c", "true")])
    with monkeypatch.context() as full, pytest.raises(StorageError):
        full.setattr(CurrentManifest, "queue_new", fail)
        reconciler.reconcile(claiming=False, poll_is_due=True)
    reconciler.reconcile(claiming=False, poll_is_due=True)
    assert fleet.states() == {"a": "queued", "b": "queued", "c": "queued"}


@pytest.mark.parametrize("methods", ["m", "mn"])
def test_a_pause_is_reported_when_it_is_recorded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], methods: str
) -> None:
    """Of a method on this host, and of the host."""
    fleet.layout.templates_dir.mkdir()
    fleet.layout.run_state.mkdir()
    for method in methods:
        fleet.layout.training_template(method).write_text("PARAMS = {}\n")
        # Where the folder of the scripts should be.
        fleet.layout.method_scripts(method).touch()
    fleet.write_manifest([{"job_id": f"job_{n}", "method": methods[n % len(methods)]} for n in range(9)])
    made, append = begun(fleet), LockedJournal.append

    def no_room_for_pauses(journal: LockedJournal, fd: int, lines: list[Line]) -> None:
        if any(line.event is Event.PAUSED for line in lines):
            raise StorageError("the disk is full")
        append(journal, fd, lines)

    with monkeypatch.context() as full, pytest.raises(StorageError):
        full.setattr(LockedJournal, "append", no_room_for_pauses)
        while True:
            made.reconcile(claiming=True, poll_is_due=True)
    assert "paused" not in capsys.readouterr().out
    made.reconcile(claiming=True, poll_is_due=True)
    scope = f"host:{host_name()}" + (":m" if methods == "m" else "")
    assert f"{'paused' if methods == 'm' else 'no claims:'} {scope}" in capsys.readouterr().out
    assert set(fleet.states().values()) == {"queued"}


def test_any_error_of_a_file_server_is_said_and_outlived(fleet: Fleet) -> None:
    fleet.write_manifest([shell("a", "true")])
    done = commands.run(
        [*commands.COMMAND[:-1], IN_TROUBLE, "--pod", "pod", "--slots", "1", "--until-empty"],
        cwd=fleet.root, env=fleet.environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("in trouble; ") == 2
    assert fleet.states() == {"a": "done"}


def test_a_gpu_that_is_paused_is_not_looked_at_again_where_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    monitor = GpuMonitor("0", 0, 1, lambda _: None)
    try:
        if monitor._reading.unavailable is None:
            pytest.skip("this host has a driver to ask")
        monitor.hold({0: "five failures in a row"})
        assert monitor.capacity.unusable
        assert monitor.due_in_s() is None
    finally:
        monitor.close()


def test_a_job_that_was_requeued_after_a_correction_never_runs_with_the_old_file(fleet: Fleet) -> None:
    """Also where the transaction that claims it is the first to see either."""
    fleet.write_manifest([{"job_id": "a"}])
    fleet.write_config("methods: {m: {command: [echo, old], gpus: 0}}\n")
    made = begun(fleet)
    fleet.run("hold", "a")
    made.reconcile(claiming=True, poll_is_due=True)
    fleet.write_config("methods: {m: {command: [echo, fixed], gpus: 0}}\n")
    fleet.run("requeue", "a")
    while made.reconcile(claiming=True, poll_is_due=False) or made.has_more_to_do():
        pass
    made.reconcile(claiming=True, poll_is_due=True)
    fleet.wait_for("a", "running", "done")
    wait_until(fleet.attempt("a").exit.exists, "it has ended")
    assert "fixed" in fleet.output("a")
