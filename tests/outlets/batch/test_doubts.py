"""What a batch outlet makes of answers that are lost, doubtful or contradictory: nothing runs twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from dispatcher import contract
from dispatcher.config import CodeMode, Config
from dispatcher.hosts.types import Hosts, SlurmHost
from dispatcher.outlets.base import (
    NOT_REACHED,
    PREEMPTED,
    Bundle,
    Ended,
    Key,
    Orphan,
    Pending,
    Placement,
    Report,
    Request,
    Running,
    Slot,
    Unknown,
)
from dispatcher.outlets.batch import watching
from dispatcher.outlets.batch.outlet import BatchOutlet
from dispatcher.outlets.batch.preparing import Preparer
from dispatcher.outlets.batch.provisioning import HostLoss, UnmanagedHost
from dispatcher.outlets.context import BatchTimes, PodContext
from dispatcher.outlets.remote.connection import Connection, NoAnswer
from dispatcher.outlets.remote.operations import (
    AttemptFiles,
    Confirm,
    Deliver,
    Delivered,
    Failed,
    Greeting,
    Hello,
    Operation,
    Ran,
    Read,
    ReadAnswer,
    Remove,
    Removed,
    Run,
    Tail,
    TailRead,
    Write,
    Written,
)
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.run_state.observer import Observer
from dispatcher.workspace import Layout

KEY = Key("a", 1)
HOME = "/home/me/.dispatcher"
TIMES = BatchTimes(stop_again_s=0.0)
# What a scheduler does not name counts as absent at once.
ABSENT = BatchTimes(stop_again_s=0.0, absent_s=-1.0)
# Of squeue: the ids of the array, its task and the job, name, state, exit status, preemption, restarts, host, reason.
COLUMNS = (20, 14, 20, 128, 24, 14, 26, 12, 72, 256)


class Wire:
    """In place of a connection: a host that answers as the test says, and does not see the workspace."""

    name = "hpc"

    def __init__(self) -> None:
        self.programs: dict[str, Ran] = {"sbatch": Ran(exit_code=0, out="7\n")}
        self.queue: list[str] = []
        self.seen = AttemptFiles()
        self.refuses_writes = False
        self.removed: Removed | Failed = Removed()
        # Whether the host sees the workspace.
        self.sees = False
        # How many of the next calls bring no answer.
        self.loses = 0
        # Whether the next call that marks an attempt as superseded brings none.
        self.loses_mark = False
        self.done: list[Operation] = []
        self.calls: list[Sequence[Operation]] = []
        self.is_busy = False
        self.unreached = ""
        self.cluster = "lab"
        self.confirm: Confirm | None = None
        self.explain: Callable[[str], str] = str
        self.has_moved = False

    def free_in_s(self, _lane: object = None) -> float | None:
        return None if self.is_busy else 0.0

    def start_over(self) -> None:
        self.confirm, self.has_moved = None, False

    def call(self, operations: Sequence[Operation], *, timeout_s: float, lane: object = None) -> Wire:
        self.has_moved = self.confirm is not None and self.confirm.wanted != self.cluster
        if self.has_moved:
            return self
        self.done += operations
        self.calls.append(operations)
        self._answers = [self._answer(operation) for operation in operations]
        return self

    def outcome(self) -> Any:
        if self.loses_mark and any(isinstance(answer, Written) for answer in self._answers):
            self.loses_mark, self.loses = False, 1
        if self.has_moved:
            return NoAnswer(self.explain(self.cluster))
        if self.loses:
            self.loses -= 1
            return NoAnswer("the connection broke off")
        return self._answers

    def wait_fds(self) -> list[int]:
        return []

    def due_in_s(self) -> float | None:
        return None

    def close(self, within_s: float = 0.0) -> None:
        """Nothing is held."""

    def name_job(self, name: str, state: str, exit_status: int = 0) -> None:
        values = ("7", "N/A", "7", name, state, str(exit_status), "N/A", "0", "n1", "None")
        self.queue = ["".join(value.ljust(width) for value, width in zip(values, COLUMNS, strict=True))]

    def end_tasks(self, name: str, tasks: int) -> None:
        """All tasks of an array have failed."""
        rows = [("7", str(task), "8", name, "FAILED", "0", "N/A", "0", "n1", "None") for task in range(tasks)]
        self.queue = ["".join(value.ljust(width) for value, width in zip(row, COLUMNS, strict=True)) for row in rows]

    def submissions(self) -> int:
        return sum(isinstance(one, Run) and one.words[0] == "sbatch" for one in self.done)

    def removals(self) -> list[str]:
        """What was to be removed of submissions."""
        return [name for one in self.done if isinstance(one, Remove) for name in one.names]

    def marked(self) -> list[str]:
        """The directories on the host that were to be marked as superseded."""
        paths = [Path(one.path) for one in self.done if isinstance(one, Write)]
        return [str(path.parent) for path in paths if path.name == contract.SUPERSEDED_FILE]

    def _answer(self, operation: Operation) -> Any:  # noqa: PLR0911 -- one line for each operation
        match operation:
            case Hello():
                found = dict.fromkeys(operation.programs, "/bin/true")
                return Greeting(
                    host="login", boot_id="", user="me", python="3.6", programs=found,
                    directories={**operation.directories, "base": HOME},
                    probe=Path(operation.probe).read_text() if self.sees else None,
                )  # fmt: skip
            case Deliver():
                return Delivered()
            case Read():
                return ReadAnswer(seen=[self.seen] * len(operation.looks))
            case Write():
                return Failed(error="disk full", errno=28) if self.refuses_writes else Written()
            case Tail():
                return TailRead()
            case Remove():
                return self.removed
            case Confirm():
                return Ran(exit_code=0, out=f"{self.cluster}\n")
            case Run() if operation.words[0] == "squeue":
                return self.programs.get("squeue", Ran(exit_code=0, out="\n".join(self.queue)))
            case Run():
                return self.programs.get(operation.words[0], Ran(exit_code=1, err="no such thing"))
        raise AssertionError(operation)


class Machine(UnmanagedHost):
    """A host that may be made anew under its name."""

    identity = "1"
    replaced = HostLoss(PREEMPTED, "the host was made anew")


class Pod:
    """One outlet of one dispatcher, whose clock for absences and guards is at the end of all of them."""

    def __init__(
        self, root: Path, wire: Wire, machine: Machine | None = None, times: BatchTimes = TIMES, passes: int = 3
    ) -> None:
        host = SlurmHost(name="hpc", cluster="hpc", ssh="login")
        self.config = Config(
            layout=Layout(root), matrix=root / "m.json", hosts=Hosts(hosts={"hpc": host}), code=CodeMode.NONE
        )
        scheduler = SlurmScheduler(host, self.config.hosts, self.config.layout, 1.0)
        observer = Observer(self.config.layout, 60.0, lambda: True)
        context = PodContext(
            pod="pod", config=self.config, observer=observer, log=print, poll_interval_s=0.0, times=times
        )
        self.wire = wire
        self.outlet = BatchOutlet(host, scheduler, cast(Connection, wire), context, 8, machine)
        self.passes(passes)

    def submit(self, *keys: Key) -> None:
        bundles = []
        for key in keys or (KEY,):
            self.config.layout.attempt(key.job_id, key.number).directory.mkdir(parents=True)
            files = {contract.WRAPPER_FILE: b"true"}
            bundles.append(Bundle(key=key, request=Request(0), slot=Slot(), files=files))
        self.outlet.submit(bundles)

    @property
    def workspace_id(self) -> str:
        return self.config.layout.id_file.read_text().strip()

    @property
    def superseded(self) -> Path:
        return self.config.layout.attempt(KEY.job_id, KEY.number).superseded

    def passes(self, number: int) -> Report:
        report = Report(Pending())
        for _ in range(number):
            report = self.outlet.poll([KEY])[KEY]
        return report

    def end(self) -> Ended:
        status = self.passes(6).status
        assert isinstance(status, Ended)
        return status


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def pod(tmp_path: Path, wire: Wire) -> Pod:
    made = Pod(tmp_path, wire)
    assert not made.outlet.capacity.is_full
    return made


def name_of(pod: Pod) -> str:
    shared = {Path(path) for one in pod.wire.done if isinstance(one, Deliver) for path in one.shared}
    (script,) = [path for path in shared if path.parent.parent.name == "submissions"]
    return script.parent.name


def orphaned(pod: Pod, times: BatchTimes = TIMES) -> Pod:
    """Another dispatcher, after the one that had submitted the attempt has died."""
    pod.wire.start_over()
    return Pod(pod.config.layout.root, pod.wire, times=times)


def unreached(pod: Pod, times: BatchTimes = TIMES) -> Pod:
    """The same before it has heard of the host; it has a connection of its own."""
    pod.wire.start_over()
    return Pod(pod.config.layout.root, pod.wire, times=times, passes=0)


def recover(pod: Pod, passes: int = 6) -> Report:
    orphan = Orphan(key=KEY, pod="dead", placement=Placement())
    for _ in range(passes):
        report = pod.outlet.recover([orphan])[KEY]
    return report


def test_a_doubtful_submission_that_is_there_does_not_keep_others_away(pod: Pod, wire: Wire) -> None:
    wire.programs["sbatch"] = Ran(exit_code=1, err="sbatch: error: Socket timed out on send/recv operation")
    pod.submit()
    pod.passes(1)
    wire.name_job(name_of(pod), "PENDING")
    pod.passes(3)
    assert not pod.outlet.capacity.is_full
    assert wire.submissions() == 1


def test_a_doubtful_submission_that_nobody_wants_any_more_is_not_repeated(tmp_path: Path, wire: Wire) -> None:
    pod = Pod(tmp_path, wire, times=ABSENT)
    for program in ("sbatch", "squeue"):
        wire.programs[program] = Ran(exit_code=1, err=f"{program}: error: Socket timed out on send/recv operation")
    pod.submit()
    pod.passes(1)
    del wire.programs["squeue"]
    pod.outlet.cancel([KEY], reason="queue limit")
    ended = pod.end()
    assert (ended.exit_code, ended.exit_reason, ended.by_scheduler) == (None, "queue limit", True)
    assert wire.submissions() == 1
    assert wire.marked() == [f"{HOME}/{pod.workspace_id}/run_state/jobs/a/1"]


def test_an_attempt_that_was_never_submitted_is_marked_on_the_host_before_it_has_ended(pod: Pod, wire: Wire) -> None:
    """The program that submits it may still be under way there, and its job may be given to another attempt at once."""
    wire.loses = 1
    pod.submit()
    other = orphaned(pod, ABSENT)
    wire.refuses_writes = True
    assert not isinstance(recover(other).status, Ended)
    assert other.superseded.exists()
    wire.refuses_writes = False
    status = recover(other).status
    assert isinstance(status, Ended)
    assert status.exit_reason == NOT_REACHED


def test_a_mark_whose_call_was_lost_is_made_again(pod: Pod, wire: Wire) -> None:
    wire.loses = 1
    pod.submit()
    other = orphaned(pod, ABSENT)
    wire.loses_mark = True
    assert isinstance(recover(other, 9).status, Ended)
    assert len(wire.marked()) == 2


def test_an_attempt_that_was_taken_before_it_was_marked_has_not_ended(pod: Pod, wire: Wire) -> None:
    wire.loses = 1
    pod.submit()
    other = orphaned(pod, ABSENT)
    recover(other, 1)
    wire.seen = AttemptFiles(files={contract.TAKEN_FILE: b"n1 42\n"}, stamps={contract.TAKEN_FILE: (1, 6)})
    assert not isinstance(recover(other).status, Ended)
    content = b'{"exit_code": 143, "reason": "superseded", "ended_at": "2026-01-01T00:00:00.000Z"}\n'
    wire.seen = AttemptFiles(files={contract.EXIT_FILE: content}, stamps={contract.EXIT_FILE: (2, len(content))})
    status = recover(other).status
    assert isinstance(status, Ended)
    assert (status.exit_code, status.exit_reason) == (143, "superseded")


def test_a_mark_that_a_dead_dispatcher_had_begun_is_made_on_the_host(pod: Pod, wire: Wire) -> None:
    pod.submit()
    pod.superseded.write_text("somebody\n")
    recover(orphaned(pod))
    assert wire.marked()


def test_a_submission_file_that_cannot_be_read_concerns_its_attempt_alone(pod: Pod, wire: Wire) -> None:
    pod.submit()
    file = pod.config.layout.attempt(KEY.job_id, KEY.number).submission
    file.write_bytes(b'{"outl')
    other = orphaned(pod)
    assert other.outlet.adopt({KEY: Placement()}) == {}
    report = recover(other)
    assert isinstance(report.status, Unknown)
    assert "remove the file" in report.status.why


def test_an_attempt_in_another_cluster_is_unknown_and_never_lost(pod: Pod, wire: Wire) -> None:
    pod.submit()
    pod.passes(3)
    wire.cluster = "other"
    both = "attempts were submitted to cluster lab"
    status = pod.passes(9).status
    assert isinstance(status, Unknown) and both in status.why and "leads to cluster other now" in status.why
    assert pod.outlet.capacity.is_full, "nothing is claimed for it"
    pod.outlet.cancel([KEY], reason="")
    wire.done.clear()
    assert isinstance(pod.passes(9).status, Unknown)
    assert wire.done == [], "nothing is done in the other one"
    wire.cluster = "lab"
    pod.passes(3)
    assert any(isinstance(one, Run) and "scancel" in one.words for one in wire.done)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_dispatcher_that_comes_to_another_cluster_does_not_judge(pod: Pod, wire: Wire, *, is_own: bool) -> None:
    """One that is started again, or another one, which finds the attempt by its submission file."""
    wire.loses = 1
    pod.submit()
    wire.cluster = "other"
    other = unreached(pod, ABSENT)
    if is_own:
        assert set(other.outlet.adopt({KEY: Placement()})) == {KEY}, "where the host leads to is not known yet"
    status = (other.passes(9) if is_own else recover(other, 9)).status
    assert isinstance(status, Unknown)
    assert status.why == "it was submitted to cluster lab, and hpc leads to cluster other now"
    assert not other.superseded.exists()
    # What it runs itself is not delayed by that.
    assert not other.outlet.capacity.is_full
    wire.cluster = "lab"
    wire.name_job(name_of(pod), "RUNNING")
    status = (other.passes(9) if is_own else recover(other, 9)).status
    assert isinstance(status, Running), "the configuration leads there again"


def test_an_attempt_elsewhere_that_has_left_its_exit_status_has_ended(pod: Pod, wire: Wire) -> None:
    pod.submit()
    wire.cluster = "other"
    other = orphaned(pod)
    assert isinstance(recover(other).status, Unknown)
    content = '{"exit_code": 3, "reason": "", "ended_at": "2026-01-01T00:00:00.000Z"}\n'
    (pod.superseded.parent / contract.EXIT_FILE).write_text(content)
    status = recover(other).status
    assert isinstance(status, Ended) and status.exit_code == 3


def test_where_that_is_not_told_nothing_is_submitted(tmp_path: Path, wire: Wire) -> None:
    wire.cluster = ""
    pod = Pod(tmp_path, wire)
    pod.submit()
    status = pod.passes(6).status
    assert isinstance(status, Pending) and "its cluster is unknown" in status.why
    assert wire.submissions() == 0


def test_who_only_looks_marks_nothing(pod: Pod) -> None:
    """A dry run adopts, and a live dispatcher of that name may be about to submit the attempt."""
    pod.superseded.parent.mkdir(parents=True)
    pod.outlet.adopt({KEY: Placement()})
    assert not pod.superseded.exists()
    assert isinstance(pod.passes(1).status, Ended)
    assert pod.superseded.exists()


def test_however_many_have_ended_each_is_asked_about(pod: Pod, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs tell of one job at a time, so one call asks about a few of them."""
    monkeypatch.setattr(watching, "_MOST_DETAILED", 2)
    pod.submit(*(Key(f"job{number}", 1) for number in range(5)))
    pod.passes(1)
    wire.end_tasks(name_of(pod), 5)
    pod.passes(8)
    calls = [[one for one in call if isinstance(one, Tail)] for call in wire.calls]
    assert max(len(tails) for tails in calls) == 2
    assert len({tail.path for tails in calls for tail in tails}) == 5


@pytest.mark.parametrize("code", [0, 3])
def test_an_attempt_that_ended_by_itself_while_it_was_to_make_room(pod: Pod, wire: Wire, code: int) -> None:
    pod.submit()
    pod.passes(1)
    wire.name_job(name_of(pod), "RUNNING")
    wire.queue = [wire.queue[0].replace("N/A".ljust(26), "2026-11-22T12:17:13".ljust(26))]
    pod.passes(2)
    wire.name_job(name_of(pod), "COMPLETED")
    content = b'{"exit_code": %d, "reason": "", "ended_at": "2026-01-01T00:00:00.000Z"}\n' % code
    wire.seen = AttemptFiles(files={contract.EXIT_FILE: content}, stamps={contract.EXIT_FILE: (2, len(content))})
    ended = pod.end()
    assert (ended.exit_code, ended.exit_reason, ended.by_scheduler) == (code, "", False)


def test_the_end_of_a_second_run_is_not_that_of_the_first_one_which_lives(pod: Pod, wire: Wire) -> None:
    """SLURM has killed the batch script, and the wrapper lives: another attempt would run beside it."""
    wire.seen = AttemptFiles(
        files={contract.TAKEN_FILE: b"n1 42\n"}, stamps={contract.TAKEN_FILE: (1, 6)}, is_alive=True
    )
    pod.submit()
    pod.passes(1)
    wire.name_job(name_of(pod), "FAILED", exit_status=9)
    assert not isinstance(pod.passes(6).status, Ended)
    wire.seen = AttemptFiles(is_alive=False)
    assert pod.end().exit_code == 137


def test_the_loop_may_ask_at_any_time_without_reading_files(
    pod: Pod, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each short job of another outlet wakes the loop, and thousands may be in flight here."""
    pod.submit()
    pod.passes(1)
    wire.name_job(name_of(pod), "RUNNING")
    pod.passes(3)
    monkeypatch.setattr(pod.outlet, "_interval_s", 3600.0)
    pod.passes(2)
    asked: list[str] = []
    with monkeypatch.context() as patched:
        for name in ("read_text", "exists", "stat"):
            patched.setattr(Path, name, lambda path, **_: asked.append(str(path)))
        pod.passes(1)
    assert asked == []
    monkeypatch.setattr(pod.outlet, "_interval_s", 0.0)
    wire.seen = AttemptFiles(files={contract.TAKEN_FILE: b"n1 42\n"}, stamps={contract.TAKEN_FILE: (1, 6)})
    placement = pod.passes(2).placement
    assert placement is not None
    assert (placement.host, placement.pid) == ("n1", 42)


def test_what_a_job_has_done_to_its_directory_concerns_it_alone(wire: Wire, tmp_path: Path) -> None:
    wire.sees = True
    pod = Pod(tmp_path, wire)
    pod.submit()
    pod.passes(1)
    alive = pod.config.layout.attempt(KEY.job_id, KEY.number).alive
    alive.mkdir()
    wire.name_job(name_of(pod), "FAILED", exit_status=9)
    status = pod.passes(6).status
    assert isinstance(status, Unknown)
    assert str(alive) in status.why
    alive.rmdir()
    assert pod.end().exit_code == 137


def test_members_of_an_array_that_are_cancelled_together_before_it_is_submitted(
    pod: Pod, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.programs["sbatch"] = Ran(exit_code=1, err="sbatch: error: QOSMaxSubmitJobPerUserLimit")
    keys = [Key(job, 1) for job in "abcd"]
    pod.submit(*keys)
    pod.passes(2)
    assert pod.outlet.capacity.is_full, "submissions pause"
    prepared: list[int] = []
    prepare = Preparer.prepare

    def counted(self: Preparer, group: Sequence[Bundle]) -> Any:
        prepared.append(len(group))
        return prepare(self, group)

    monkeypatch.setattr(Preparer, "prepare", counted)
    pod.outlet.cancel(keys[:3])
    assert [isinstance(report.status, Ended) for report in pod.outlet.poll(keys).values()] == [True, True, True, False]
    assert prepared == [1], "what is left is written once, whatever the number"
    pod.outlet.cancel(keys)
    assert isinstance(pod.outlet.poll(keys)[keys[3]].status, Ended)
    assert prepared == [1]
    assert wire.submissions() == 1


def test_an_attempt_that_a_host_made_anew_knows_is_not_lost(tmp_path: Path, wire: Wire) -> None:
    """Another dispatcher had made the host anew before this one submitted the attempt."""
    machine = Machine()
    pod = Pod(tmp_path, wire, machine)
    pod.submit()
    pod.passes(3)
    wire.name_job(name_of(pod), "RUNNING")
    pod.passes(3)
    machine.identity = "2"
    greeted = sum(isinstance(one, Hello) for one in wire.done)
    assert not isinstance(pod.passes(6).status, Ended)
    assert sum(isinstance(one, Hello) for one in wire.done) == greeted + 1, "what is known of the disk is asked anew"
    assert wire.submissions() == 1


def test_an_attempt_that_was_prepared_for_a_host_that_is_gone_is_put_back(tmp_path: Path, wire: Wire) -> None:
    machine = Machine()
    pod = Pod(tmp_path, wire, machine)
    wire.is_busy = True
    pod.submit()
    machine.identity = "2"
    ended = pod.end()
    assert (ended.exit_reason, ended.by_scheduler, ended.error) == (NOT_REACHED, True, "the host was made anew")
    wire.is_busy = False
    pod.passes(6)
    assert wire.submissions() == 0


def ended(pod: Pod, wire: Wire) -> str:
    """The name of a submission whose only attempt has ended, which the pod has recorded."""
    pod.submit()
    pod.passes(2)
    wire.name_job(name_of(pod), "FAILED")
    pod.end()
    wire.is_busy = True
    pod.outlet.forget([KEY])
    return name_of(pod)


def test_files_of_the_last_submissions_are_removed_before_a_pod_ends(pod: Pod, wire: Wire) -> None:
    name = ended(pod, wire)
    assert wire.removals() == []
    wire.is_busy = False
    pod.outlet.close()
    assert wire.removals() == [name]


def test_a_pod_that_goes_on_does_not_leave_files_until_its_next_attempt(pod: Pod, wire: Wire) -> None:
    name = ended(pod, wire)
    wire.is_busy = False
    assert pod.outlet.due_in_s() == 0.0
    pod.passes(3)
    assert wire.removals() == [name]
    assert pod.outlet.due_in_s() != 0.0


def test_a_removal_that_was_lost_is_repeated(pod: Pod, wire: Wire) -> None:
    name = ended(pod, wire)
    wire.is_busy, wire.loses = False, 1
    pod.passes(3)
    pod.outlet.close()
    assert wire.removals() == [name, name]


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "found out"])
def test_what_is_left_on_a_host_that_does_not_answer_is_one_line(
    pod: Pod, wire: Wire, is_known: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(pod, wire)
    wire.is_busy = False
    wire.loses, wire.unreached = (0, "no route to the host") if is_known else (1, "")
    calls = len(wire.calls)
    pod.outlet.close()
    assert len(wire.calls) == calls + (0 if is_known else 1), "one that is known not to answer is not called"
    why = "no route to the host" if is_known else "the connection broke off"
    said = capsys.readouterr().out.splitlines()
    left = f"the files of 1 submission are left in {HOME}/{pod.workspace_id}/run_state/submissions there"
    assert said == [f"note: hpc: {left}: {why}. `dispatcher clean --hosts` removes them"]


def test_files_that_cannot_be_removed_are_named(pod: Pod, wire: Wire, capsys: pytest.CaptureFixture[str]) -> None:
    ended(pod, wire)
    wire.is_busy, wire.removed = False, Removed(failed=["/x/1: Permission denied", "/x/2: Permission denied"])
    pod.outlet.close()
    said = "warning: hpc: files of submissions cannot be removed: /x/1: Permission denied, and 1 more\n"
    assert capsys.readouterr().out == said


def test_files_go_also_where_the_pod_that_submitted_is_dead(pod: Pod, wire: Wire) -> None:
    pod.submit()
    pod.passes(2)
    name = name_of(pod)
    other = orphaned(pod)
    wire.name_job(name, "RUNNING")
    recover(other)
    other.outlet.recover([])
    other.outlet.close()
    assert wire.removals() == [], "it goes on with another dispatcher"
    other = orphaned(pod)
    wire.name_job(name, "FAILED")
    assert isinstance(recover(other).status, Ended)
    other.outlet.recover([])
    other.outlet.close()
    assert set(wire.removals()) == {name}


def test_files_stay_while_an_attempt_cannot_be_read_that_may_need_them(pod: Pod, wire: Wire) -> None:
    pod.submit()
    pod.passes(2)
    wire.name_job(name_of(pod), "FAILED")
    paths = pod.config.layout.attempt("b", 1)
    paths.directory.mkdir(parents=True)
    paths.submission.write_text("{")
    other = orphaned(pod)
    orphans = [Orphan(key=key, pod="dead", placement=Placement()) for key in (KEY, Key("b", 1))]
    for _ in range(6):
        status = other.outlet.recover(orphans)[KEY].status
    assert isinstance(status, Ended)
    other.outlet.recover(orphans[1:])
    other.outlet.close()
    assert wire.removals() == []


def test_a_second_request_to_kill_is_sent_too(pod: Pod, wire: Wire) -> None:
    """Also of an attempt whose dispatcher has died, by the number of the request."""
    wire.programs["bash"] = Ran(exit_code=0)

    def kills() -> int:
        return sum(isinstance(one, Run) and one.words[-1] == "force" for one in wire.done)

    pod.submit()
    pod.passes(1)
    wire.name_job(name_of(pod), "RUNNING")
    pod.passes(3)
    for count in (1, 2):
        pod.outlet.cancel([KEY], force=True)
        pod.passes(3)
        assert kills() == count
    pod.outlet.cancel([KEY])
    pod.passes(3)
    assert kills() == 2
    other = unreached(pod)
    for force, count in ((7, 3), (7, 3), (9, 4)):
        orphan = Orphan(key=KEY, pod="dead", placement=Placement(), is_unwanted=True, force=force)
        for _ in range(4):
            other.outlet.recover([orphan])
        assert kills() == count


def test_an_attempt_from_before_its_host_saw_the_workspace_ends_as_it_did_there(pod: Pod, wire: Wire) -> None:
    """Its files stay where it began: without them a job that is done would be lost, and run again."""
    pod.submit()
    wire.name_job(name_of(pod), "COMPLETED")
    content = b'{"exit_code": 0, "ended_at": "2026-01-01T00:00:00.000Z"}\n'
    wire.seen = AttemptFiles(files={contract.EXIT_FILE: content}, stamps={contract.EXIT_FILE: (2, len(content))})
    wire.sees = True
    status = recover(orphaned(pod)).status
    assert isinstance(status, Ended)
    assert status.exit_code == 0


def test_an_attempt_from_before_its_host_lost_the_workspace_is_not_looked_for_there(tmp_path: Path, wire: Wire) -> None:
    wire.sees = True
    pod = Pod(tmp_path, wire)
    pod.submit()
    wire.name_job(name_of(pod), "RUNNING")
    wire.sees = False
    wire.seen = AttemptFiles(exists=False, is_alive=False)
    other = orphaned(pod)
    assert isinstance(recover(other).status, Running)
    assert not any(isinstance(one, Read) for one in wire.done)
    other.outlet.cancel([KEY])
    recover(other, 3)
    stop = pod.config.layout.attempt(KEY.job_id, KEY.number).stop
    assert stop.exists()
    assert not any(isinstance(one, Write) and Path(one.path) == stop for one in wire.done)
