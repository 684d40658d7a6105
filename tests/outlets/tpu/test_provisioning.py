"""One TPU VM in the course of time, with real gcloud: whatever Google answers, and whatever it does meanwhile."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from beds.tpu import VERSION, TpuBed

from dispatcher.errors import StorageError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.base import PREEMPTED
from dispatcher.outlets.remote.operations import AttemptFiles, Failed, Operation, ReadAnswer, TailRead, Write, Written
from dispatcher.outlets.tpu import leaving
from dispatcher.outlets.tpu.gcloud import WORKSPACE_LABEL, queued_id
from dispatcher.outlets.tpu.provisioning import Times, TpuProvisioning, VmOwner

pytestmark = pytest.mark.slow

WORKSPACE = "0123456789ab"
QUEUED = queued_id(WORKSPACE, "vm")
PATIENCE_S = 120.0
TIMES = Times(interval_s=0.5, first_pause_s=0.5, given_up_s=0.5)
UNUSED = [ReadAnswer(seen=[AttemptFiles(exists=False)])]
USED = [ReadAnswer(seen=[AttemptFiles(is_alive=True)])]
RENEWED = [Written(), TailRead(content=b"armed\n")]


class Machine:
    """What one dispatcher does about the host `vm`, which is wanted unless a test says otherwise."""

    def __init__(self, bed: TpuBed, *, ends_when_empty: bool = False, times: Times = TIMES, **settings: Any) -> None:
        given = {"zone": bed.zone, "accelerator_type": "v4-8", "version": VERSION, "create": "auto", **settings}
        self.host = TpuHost(name="vm", cluster="vm", **given)
        self.said: list[str] = []
        self.others: list[str] = []
        self.projects: list[str] = []
        around = VmOwner(
            log=self.said.append, is_used_elsewhere=lambda: bool(self.others), has_others=lambda: bool(self.others),
            remember=self.projects.append, ends_when_empty=ends_when_empty,
        )  # fmt: skip
        self.made = TpuProvisioning(self.host, WORKSPACE, around, times, may_create=self.host.create == "auto")
        self.is_wanted, self.is_used = True, False

    def asked(self) -> list[Operation]:
        """What its workers are asked, besides for its timer, which they renew."""
        if self.operations() and isinstance(self.operations()[0], Write):
            self.answer(RENEWED)
        return self.operations()

    def operations(self) -> list[Operation]:
        return [one for step in self.made.steps() for one in step.operations]

    def answer(self, answers: Sequence[Any]) -> None:
        """Answer what they are asked first."""
        self.made.steps()[0].take_in(answers)

    def work(self) -> None:
        self.made.work(is_wanted=self.is_wanted, is_used=self.is_used)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Work as the loop does, woken by what it waits for alone."""
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            self.work()
            assert time.monotonic() < end_s, f"not {what}: {self.made.problem}; {self.said}"
            due_s = self.made.due_in_s()
            select.select(self.made.wait_fds(), [], [], 0.2 if due_s is None else min(due_s, 0.2))

    def until_up(self) -> None:
        self.until(lambda: self.made.is_up, "up")
        assert self.made.problem == self.made.failure == ""

    def until_problem(self, text: str) -> None:
        self.until(lambda: text in self.made.problem, text)


@pytest.fixture
def make(tpu: TpuBed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    for name, value in tpu.env.items():
        monkeypatch.setenv(name, value)
    made: list[Machine] = []

    def make_one(**settings: Any) -> Machine:
        made.append(Machine(tpu, **settings))
        return made[-1]

    yield make_one
    for each in made:
        each.made.close(is_used=each.is_used)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [("nodes.get", "the TPU VM vm was not checked yet"), ("nodes.create", "creating the TPU VM vm")],
)
def test_the_loop_is_not_held_up(make: Callable[..., Machine], tpu: TpuBed, asked: str, problem: str) -> None:
    """It goes on without the answer."""
    tpu.delay(asked, PATIENCE_S)
    machine = make()
    machine.until(lambda: tpu.requests(asked), "it is asked for")
    machine.work()
    assert problem in machine.made.problem


def test_it_is_created_when_it_is_wanted(make: Callable[..., Machine], tpu: TpuBed) -> None:
    tpu.cloud.create_s = 5
    machine = make()
    machine.is_wanted = False
    machine.until_problem("is created when jobs wait for it")
    assert machine.made.can_be_made
    assert tpu.requests("nodes.create") == []
    machine.is_wanted = True
    machine.until_problem("creating the TPU VM vm (v4-8, on demand, us-central2-b) since ")
    machine.until_up()
    (request,) = tpu.requests("nodes.create")
    assert request.body["labels"] == {WORKSPACE_LABEL: WORKSPACE}
    assert machine.made.identity == str(tpu.node("vm")["id"])
    assert machine.projects[-1] == tpu.project


def test_a_person_has_to_create_it(make: Callable[..., Machine], tpu: TpuBed) -> None:
    machine = make(create="ask")
    machine.until_problem("does not exist: `dispatcher outlets create vm` creates it")
    assert not machine.made.can_be_made
    assert tpu.requests("nodes.create") == tpu.requests("queuedResources.create") == []


@pytest.mark.parametrize("status", ["ABORTED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "INTERNAL"])
def test_an_error_of_the_api_is_shown_and_it_is_tried_again(
    make: Callable[..., Machine], tpu: TpuBed, status: str
) -> None:
    # gcloud itself tries again what may pass.
    tpu.refuse("nodes.create", status, times=20)
    machine = make()
    machine.until_problem("has failed: ")
    assert "(tried again in " in machine.made.failure
    tpu.api.faults.clear()
    machine.until_up()
    assert tpu.names() == ["vm"]


def test_a_lost_answer_makes_no_second_one(make: Callable[..., Machine], tpu: TpuBed) -> None:
    tpu.lose_answer("nodes.create", times=10)
    machine = make()
    machine.until_up()
    assert tpu.names() == ["vm"]


def test_two_dispatchers_create_one(make: Callable[..., Machine], tpu: TpuBed) -> None:
    first, second = make(), make()

    def both() -> bool:
        first.work()
        second.work()
        return first.made.is_up and second.made.is_up

    first.until(both, "up for both")
    assert tpu.names() == ["vm"]
    assert len(tpu.requests("nodes.create")) <= 2


def test_without_capacity_it_is_queued_for_and_what_has_failed_is_made_anew(
    make: Callable[..., Machine], tpu: TpuBed
) -> None:
    tpu.no_capacity()
    machine = make()
    # The bed lets requests of a queue fail as long as there is none.
    machine.until(lambda: len(tpu.requests("queuedResources.create")) == 2, "asked for a second time")
    assert any(request.name == QUEUED for request in tpu.requests("queuedResources.delete"))
    tpu.queue.wait_s = None
    tpu.there_is_capacity()
    tpu.no_capacity()
    machine.until_problem("WAITING_FOR_RESOURCES")
    tpu.there_is_capacity()
    tpu.grant(QUEUED)
    machine.until_up()
    assert tpu.node("vm")["queuedResource"].endswith(QUEUED)
    # Alone, the VM would leave the request behind.
    machine.is_wanted = False
    tpu.set("vm", state="TERMINATED")
    machine.made.doubt("")
    machine.until(lambda: tpu.names() == [], "deleted")
    assert tpu.requests("nodes.delete") == []


def test_what_nobody_wants_any_more_is_taken_back(make: Callable[..., Machine], tpu: TpuBed) -> None:
    tpu.queue.wait_s = None
    tpu.no_capacity()
    machine = make()
    machine.until_problem("WAITING_FOR_RESOURCES")
    assert "There is no more capacity" in machine.made.problem
    machine.is_wanted = False
    machine.until(lambda: tpu.requests("queuedResources.delete"), "taken back")
    machine.until_problem("is created when jobs wait for it")


def test_a_dispatcher_that_ends_deletes_no_vm_that_its_request_has_brought(
    make: Callable[..., Machine], tpu: TpuBed
) -> None:
    tpu.queue.wait_s = None
    tpu.no_capacity()
    machine = make()
    machine.until_problem("WAITING_FOR_RESOURCES")
    tpu.there_is_capacity()
    tpu.grant(QUEUED)
    machine.until_up()
    machine.made.close(is_used=machine.is_used)
    assert tpu.names() == ["vm"]
    assert tpu.requests("queuedResources.delete") == []
    assert machine.said[-1] == "vm is still up and costs money: `dispatcher outlets delete vm` deletes it"


def test_a_request_that_another_dispatcher_waits_for_is_left_to_it(make: Callable[..., Machine], tpu: TpuBed) -> None:
    tpu.queue.wait_s = None
    tpu.no_capacity()
    machine = make()
    machine.until_problem("WAITING_FOR_RESOURCES")
    machine.others.append("another dispatcher")
    machine.made.close(is_used=machine.is_used)
    assert tpu.requests("queuedResources.delete") == []
    assert "vm is still requested and may cost money" in machine.said[-1]


def test_a_request_that_has_failed_is_named_at_the_end(make: Callable[..., Machine], tpu: TpuBed) -> None:
    tpu.no_capacity()
    machine = make()
    machine.until_problem("FAILED")
    machine.made.close(is_used=machine.is_used)
    assert f"vm is not there, but its queued resource {QUEUED} is, and FAILED: `dispatcher" in machine.said[-1]


def test_a_request_expires_without_a_dispatcher_and_is_renewed_by_one(
    make: Callable[..., Machine], tpu: TpuBed
) -> None:
    tpu.queue.wait_s = None
    tpu.no_capacity()
    machine = make(times=msgspec.structs.replace(TIMES, queued_for_s=2))
    machine.until(lambda: len(tpu.requests("queuedResources.create")) == 2, "asked for again")
    assert any("The valid-until time of the queued resource is over" in line for line in machine.said)


def test_a_dispatcher_that_ends_takes_its_request_back(make: Callable[..., Machine], tpu: TpuBed) -> None:
    tpu.queue.wait_s = None
    tpu.no_capacity()
    machine = make()
    machine.until_problem("WAITING_FOR_RESOURCES")
    machine.made.close(is_used=machine.is_used)
    assert machine.said[-1] == f"vm: its queued resource {QUEUED} was withdrawn"
    assert tpu.requests("queuedResources.delete")


@pytest.mark.parametrize("state", ["PREEMPTED", "TERMINATED"])
def test_a_dead_one_is_deleted_and_made_anew(make: Callable[..., Machine], tpu: TpuBed, state: str) -> None:
    machine = make(spot=True)
    machine.until_up()
    before = machine.made.identity
    tpu.preempt("vm", state=state)
    machine.made.doubt("")
    machine.until(lambda: machine.made.loss, "known to be lost")
    assert machine.made.loss is not None
    assert machine.made.loss.reason == PREEMPTED
    machine.until_up()
    assert machine.made.identity != before
    assert machine.made.loss is None


@pytest.mark.parametrize("state", ["STOPPED", "HIDDEN", "DEFROSTING", "REPAIRING"])
def test_what_is_not_up_and_not_dead_is_left_alone(make: Callable[..., Machine], tpu: TpuBed, state: str) -> None:
    machine = make()
    machine.until_up()
    tpu.set("vm", state=state)
    machine.made.doubt("")
    machine.until_problem(f"the TPU VM vm is {state}")
    assert ("gcloud compute tpus tpu-vm start vm" in machine.made.problem) == (state == "STOPPED")
    assert not machine.made.is_up
    tpu.set("vm", state="READY")
    machine.until_up()
    assert tpu.requests("nodes.delete") == []


def test_one_of_another_size_is_up_but_unfit(make: Callable[..., Machine], tpu: TpuBed) -> None:
    """Attempts that run on it are followed, and nothing more is started."""
    tpu.create("vm", "v4-16")
    machine = make()
    machine.until(lambda: machine.made.is_up, "up")
    assert "is a v4-16, and hosts.vm.accelerator_type says v4-8: nothing is started on it" in machine.made.unfit
    assert machine.made.failure == machine.made.unfit
    assert not machine.made.problem


def test_one_of_another_size_is_idle_although_jobs_wait(make: Callable[..., Machine], tpu: TpuBed) -> None:
    """They wait for one of their size, which takes its name when it is deleted."""
    make(accelerator_type="v4-16").until_up()
    machine = make(idle_delete_s=1.0)
    machine.until(machine.asked, "asked whether it is used")
    machine.answer(UNUSED)
    machine.until(lambda: "deleting vm: it is not used any more" in machine.said, "deleted")


def test_what_others_have_created_is_used_and_never_deleted(make: Callable[..., Machine], tpu: TpuBed) -> None:
    tpu.create("vm", spot=True)
    machine = make(idle_delete_s=0.0)
    machine.until_up()
    machine.is_wanted = False
    machine.work()
    assert machine.operations() == []
    # Its timer may be that of another workspace, and must not end what runs there.
    machine.is_used = True
    machine.work()
    renewal, _ = machine.operations()
    assert isinstance(renewal, Write) and renewal.content == b"7200"
    machine.answer([Failed(error="no permission"), TailRead()])
    assert machine.operations() == []
    machine.is_used = False
    machine.work()
    tpu.preempt("vm")
    machine.made.doubt("")
    machine.until_problem("is PREEMPTED; `dispatcher outlets delete vm` deletes it")
    machine.made.close(is_used=machine.is_used)
    assert tpu.requests("nodes.delete") == []
    assert not [line for line in machine.said if "costs money" in line]


def test_an_idle_one_is_deleted_when_nobody_uses_it(make: Callable[..., Machine], tpu: TpuBed) -> None:
    machine = make(idle_delete_s=1.0)
    machine.until_up()
    machine.is_wanted, machine.is_used = False, True
    machine.work()
    assert machine.asked() == []
    machine.is_used = False
    machine.until(machine.asked, "asked whether it is used")
    machine.answer(USED)
    assert machine.asked() == []
    machine.until(machine.asked, "asked again")
    machine.others.append("another dispatcher")
    machine.answer(UNUSED)
    machine.others.clear()
    machine.until(machine.asked, "asked once more")
    assert tpu.requests("nodes.delete") == []
    machine.answer(UNUSED)
    machine.until(lambda: tpu.names() == [], "deleted")
    machine.until_problem("is created when jobs wait for it")
    assert "deleting vm: it is not used any more" in machine.said


def test_one_that_is_still_created_is_deleted_with_the_last_job(make: Callable[..., Machine], tpu: TpuBed) -> None:
    tpu.cloud.create_s = PATIENCE_S
    machine = make(idle_delete_s=3600.0, ends_when_empty=True)
    machine.until(tpu.names, "being created")
    machine.made.close(is_used=False)
    assert machine.said[-1] == "deleting vm: no job is left"
    tpu.wait_for("vm", None)


def test_one_that_others_of_the_workspace_may_want_is_left_to_them(make: Callable[..., Machine], tpu: TpuBed) -> None:
    machine = make(idle_delete_s=3600.0, ends_when_empty=True)
    machine.until_up()
    machine.others.append("another dispatcher")
    machine.made.close(is_used=False)
    assert tpu.names() == ["vm"]
    machine.others.clear()
    # The last call was not answered: it is asked anew.
    machine.made.doubt("")
    machine.made.close(is_used=True)
    assert tpu.names() == ["vm"]
    machine.made.close(is_used=False)
    assert machine.said[-1] == "deleting vm: it is not used any more"
    tpu.wait_for("vm", None)


def test_one_that_another_workspace_uses_is_not_left_to_its_timer(
    make: Callable[..., Machine], tpu: TpuBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one renews it more seldom than `idle_delete` may be long."""
    machine = make(idle_delete_s=60.0)
    machine.until_up()
    machine.asked()
    assert timer_is_armed(machine)
    monkeypatch.setattr(leaving, "is_unused", lambda host: False)
    machine.made.close(is_used=False)
    assert not [line for line in machine.said if "deletes itself in" in line or "deleting" in line]


def timer_is_armed(machine: Machine) -> bool:
    return any("deletes itself after" in line for line in machine.said)


def test_what_stands_at_the_end_is_named(make: Callable[..., Machine], tpu: TpuBed) -> None:
    machine = make()
    machine.until_up()
    machine.made.close(is_used=machine.is_used)
    assert machine.said[-1] == "vm is still up and costs money: `dispatcher outlets delete vm` deletes it"
    assert tpu.names() == ["vm"]


def test_without_gcloud_nothing_is_known(make: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    machine = make()
    machine.until_problem("vm: gcloud cannot be started: No such file or directory")
    assert machine.made.failure == machine.made.problem
    assert not machine.made.can_be_made


def test_what_was_seen_before_attempts_came_says_nothing_about_them(make: Callable[..., Machine], tpu: TpuBed) -> None:
    """Another dispatcher has made it anew since, and has died: its attempts there are alive."""
    machine = make(create="ask")
    machine.is_wanted = False
    machine.until_problem("does not exist")
    assert machine.made.loss is not None
    tpu.create("vm")
    machine.is_used = True
    machine.work()
    assert machine.made.loss is None, "it is looked at first"
    machine.until_up()
    assert machine.made.loss is None


def test_nothing_is_created_while_a_request_may_stand_that_cannot_be_seen(
    make: Callable[..., Machine], tpu: TpuBed
) -> None:
    tpu.refuse("queuedResources.get", "PERMISSION_DENIED", times=2)
    machine = make()
    machine.until_problem("its queued resource cannot be checked: PERMISSION_DENIED")
    assert tpu.requests("nodes.create") == []
    machine.until_up()
    assert len(tpu.requests("queuedResources.get")) == 3, "asked before it was created"


def test_an_idle_one_is_kept_for_another_dispatcher_that_begins_to_use_it(
    make: Callable[..., Machine], tpu: TpuBed
) -> None:
    machine = make(idle_delete_s=1.0)
    machine.until_up()
    machine.is_wanted = False
    machine.until(machine.asked, "asked whether it is used")
    machine.answer(UNUSED)
    machine.others.append("another dispatcher")
    machine.until(machine.asked, "asked again instead of deleted")
    assert tpu.requests("nodes.delete") == []


def test_a_renewal_that_does_not_get_there_is_told(make: Callable[..., Machine]) -> None:
    machine = make(dead_after_s=7200.0)
    machine.until_up()
    machine.answer(RENEWED)
    assert machine.operations() == []
    machine.made.doubt("vm does not answer")
    assert machine.made.failure == "", "no renewal was due"

    machine = make(dead_after_s=7200.0, times=msgspec.structs.replace(TIMES, renewed_within_s=0.0))
    machine.until_up()
    machine.answer(RENEWED)
    machine.made.doubt("it does not answer")
    assert "vm does not hear that a dispatcher lives: it does not answer. It deletes itself at" in machine.made.failure
    machine.until(lambda: machine.made.is_up, "up")
    machine.answer(RENEWED)
    assert machine.made.failure == ""


def test_what_cannot_be_noted_is_not_created(make: Callable[..., Machine], tpu: TpuBed) -> None:
    machine = make(project=tpu.project)
    fails = [StorageError("No space left on device")]

    def remember(project: str) -> None:
        if fails:
            raise fails[0]
        machine.projects.append(project)

    machine.made._around = msgspec.structs.replace(machine.made._around, remember=remember)
    machine.until_problem("has failed: No space left on device")
    assert not tpu.requests("nodes.create")
    fails.clear()
    machine.until_up()
    assert machine.projects[0] == tpu.project


def test_a_vm_that_is_there_is_used_although_its_project_cannot_be_noted(
    make: Callable[..., Machine], tpu: TpuBed
) -> None:
    make(project=tpu.project).until_up()
    machine = make(project=tpu.project)

    def remember(project: str) -> None:
        raise StorageError("No space left on device")

    machine.made._around = msgspec.structs.replace(machine.made._around, remember=remember)
    machine.until_up()
    assert machine.said.count("warning: vm: No space left on device") == 1
