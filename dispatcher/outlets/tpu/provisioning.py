"""One TPU VM in the course of time: it is looked at, created, queued for, and deleted, by one gcloud after the other.

vm.py decides; this runs the programs and keeps what they have told. Creation is a child process that waits until the VM
is READY. Should the dispatcher die meanwhile, Google goes on, and the next query finds the VM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.host import boot_time_s
from dispatcher.errors import OutletError, StorageError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.base import LOST, PREEMPTED
from dispatcher.outlets.batch.agent_session import Step
from dispatcher.outlets.batch.provisioning import HostLoss
from dispatcher.outlets.remote.operations import Ran
from dispatcher.outlets.remote.programs import Program, ran
from dispatcher.outlets.tpu import gcloud, leaving, telling, usage
from dispatcher.outlets.tpu.gcloud import Failure, GcloudError, Queued, Vm
from dispatcher.outlets.tpu.timer import RENEWED_WITHIN_S, Timer
from dispatcher.outlets.tpu.vm import (
    Action,
    HostState,
    action,
    is_up,
    kind_text,
    lost_attempts,
    waits_in_queue,
)

# gcloud waits until the VM is READY.
CREATE_LIMIT_S: Final = 600.0
DELETE_LIMIT_S: Final = 300.0
LOOK_LIMIT_S: Final = 60.0
# How often a VM is checked that is not up and that no attempt waits for.
_SELDOM_S: Final = 60.0
# What was seen longer ago is looked at again before anything is done about it.
_FRESH_S: Final = 15.0
_LONGEST_PAUSE_S: Final = 1800.0
# So often a request must be fulfilled without a VM until that counts as deleted.
_MISSED_FOR_GOOD: Final = 2

_DOING: Final = {
    Action.CREATE: "creating",
    Action.QUEUE: "asking for",
    Action.DELETE: "deleting",
    Action.DELETE_QUEUED: "deleting",
}


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How often a VM is looked at while it matters, and how long what has failed or is not wanted is left as it is."""

    interval_s: float
    # After a failure: the pause before the next attempt, which doubles.
    first_pause_s: float = 10.0
    # A request that no job has wanted for so long is taken back; a dispatcher that has just begun does not know its
    # jobs.
    given_up_s: float = 300.0
    # How long a request is valid, and how often the timer is renewed at least.
    queued_for_s: int = gcloud.QUEUED_FOR_S
    renewed_within_s: float = RENEWED_WITHIN_S


class VmOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The pod and the workspace that a VM is for.

    `is_used_elsewhere()`: other dispatchers have attempts on it; `has_others()`: others may want it.
    `remember(project)` is told where the VM is, or its request. `tells_at_end`: when the dispatcher ends,
    it says what goes on to cost money. `ends_when_empty`: it ends when no job is left, so nothing is wanted then.
    """

    log: Callable[[str], None]
    is_used_elsewhere: Callable[[], bool]
    has_others: Callable[[], bool]
    remember: Callable[[str], None] = lambda _: None
    tells_at_end: bool = True
    ends_when_empty: bool = False


class TpuProvisioning:
    """The VM of one host. `workspace` is the id of this one.

    `may_create`: it is created when jobs wait for it, and deleted when it was preempted.
    """

    def __init__(self, host: TpuHost, workspace: str, around: VmOwner, times: Times, *, may_create: bool) -> None:
        self._host = host
        self._workspace = workspace
        self._around = around
        self._log = around.log
        self._may_create = may_create
        self._times = times
        self._vm: Vm | None = None
        self._queued: Queued | None = None
        self._knows_queue = False
        # How often in a row the request was fulfilled and the VM was not there.
        self._missed = 0
        self._unwanted_since_s = boot_time_s()
        self._is_short = ""
        self._is_wanted = self._is_used = False
        self._has_looked, self._must_look = False, True
        self._looked_s = 0.0
        # Why it could not be looked at, and why what was begun has failed.
        self._unseen = self._trouble = self._unnoted = ""
        self._failures = 0
        self._look_after_s = self._act_after_s = 0.0
        self._idle_since_s: float | None = None
        self._is_unused = False
        self._timer = Timer(host, self._tell_of_timer, times.renewed_within_s)
        self._program: Program | None = None
        self._doing: Action | None = None
        self._began_s = 0.0
        self._began_at = ""
        self._take_in_answer: Callable[[Ran], None] = self._take_in_look

    @property
    def is_up(self) -> bool:
        return is_up(self._vm) and not self._must_look and self._doing is None

    @property
    def identity(self) -> str:
        return "" if self._vm is None else self._vm.identity

    @property
    def can_be_made(self) -> bool:
        if not (self._may_create and self._has_looked) or is_up(self._vm):
            return False
        return self._vm is None or self._vm.is_of(self._workspace)

    @property
    def is_busy(self) -> bool:
        return self._must_look and not self._unseen

    @property
    def unfit(self) -> str:
        return "" if self._vm is None else telling.other_size(self._host, self._vm)

    @property
    def failure(self) -> str:
        return self._trouble or self._unseen or self.unfit or self._timer.problem

    @property
    def loss(self) -> HostLoss | None:
        # What was seen before the attempts came says nothing about them.
        lost = None if self._must_look else lost_attempts(self._host, self._vm)
        return None if lost is None else HostLoss(*lost)

    @property
    def replaced(self) -> HostLoss:
        reason = PREEMPTED if self._host.spot or self._host.preemptible else LOST
        return HostLoss(reason, f"the TPU VM {self._host.name} was deleted and recreated")

    @property
    def problem(self) -> str:
        if self.is_up:
            return ""
        name = f"the TPU VM {self._host.name}"
        if self._doing is not None:
            return f"{_DOING[self._doing]} {name} ({kind_text(self._host)}) since {self._began_at}"
        if not self._has_looked:
            return self._unseen or f"{name} was not checked yet"
        if self._vm is None:
            is_short = self._is_short if self._queued is not None or self._is_wanted else ""
            shown = telling.why_absent(self._host, self._queued, self._queue_name(), is_short, self._may_create)
            return self._trouble or self._unseen or shown
        if is_up(self._vm):
            return self._unseen or f"{name} is checked again"
        return telling.why_not_up(self._host, self._vm, is_deleted=action(self._sight()) is not Action.NOTHING)

    def work(self, *, is_wanted: bool, is_used: bool) -> None:
        now_s = boot_time_s()
        if is_used and not self._is_used and (not is_up(self._vm) or now_s - self._looked_s > _SELDOM_S):
            # Since it was looked at, another dispatcher may have made it anew, and run attempts there.
            self._must_look = True
        self._is_wanted, self._is_used = is_wanted, is_used
        if is_wanted:
            self._unwanted_since_s = now_s
        self._note_idleness()
        if self._program is not None:
            finished = self._program.poll()
            if finished is None:
                return
            self._program = None
            self._take_in_answer(ran(finished))
        if self._program is None:
            self._begin()

    def _begin(self) -> None:
        """What is due: an action comes before a look, unless what is known is too old for it."""
        chosen = Action.NOTHING if self._must_look else action(self._sight())
        if chosen is not Action.NOTHING and boot_time_s() >= self._act_after_s:
            # A creation is refused where there is one by now, so it need not be looked for again and again.
            if chosen is Action.CREATE or boot_time_s() - self._looked_s <= _FRESH_S:
                self._act(chosen)
                return
            # Someone else may have made it anew meanwhile.
            self._must_look = True
        if self._look_is_due() == 0.0:
            self._start(gcloud.describe(self._host), LOOK_LIMIT_S, self._take_in_look)

    def doubt(self, why: str) -> None:
        if self._renewal_due_in_s() == 0.0:
            self._timer.missed(why)
        self._must_look = True

    def steps(self) -> Sequence[Step]:
        renewal = [Step(self._timer.questions(), self._timer.take_in)] if self._renewal_due_in_s() == 0.0 else []
        return [*renewal, *([Step(usage.questions(), self._take_in_usage)] if self._is_idle_for_long() else [])]

    def _take_in_usage(self, answers: Sequence[Any]) -> None:
        if usage.is_used(answers) or self._around.is_used_elsewhere():
            self._idle_since_s = boot_time_s()
        else:
            self._is_unused = True

    def wait_fds(self) -> list[int]:
        return [] if self._program is None else self._program.wait_fds()

    def due_in_s(self) -> float | None:
        if self._program is not None:
            return self._program.due_in_s()
        # What is asked of the workers then is a matter of the call that goes there.
        waits = [self._look_is_due(), self._idle_due_in_s() or None, self._renewal_due_in_s() or None]
        if self._has_looked and not self._must_look and action(self._sight()) is not Action.NOTHING:
            waits.append(max(0.0, self._act_after_s - boot_time_s()))
        return min((wait_s for wait_s in waits if wait_s is not None), default=None)

    def close(self, *, is_used: bool) -> None:
        """Leave what Google is doing; withdraw or delete what no job needs any more."""
        if self._program is not None:
            self._program.close()
            self._program = None
        if not self._around.tells_at_end:
            return
        is_queued = self._vm is None and (waits_in_queue(self._queued) or self._doing is Action.QUEUE)
        if is_queued and self._may_create and not self._around.has_others():
            self._take_back()
            return
        if self._leave_vm(is_used=is_used):
            return
        stands = ""
        if is_queued:
            stands = "still requested and may cost money"
        elif self._doing is Action.CREATE:
            stands = "being created and will cost money"
        elif self._vm is not None and self._is_ours():
            stands = "still up and costs money" if is_up(self._vm) else f"{self._vm.state} and may cost money"
        elif self._vm is None and self._queued is not None:
            stands = f"not there, but its queued resource {self._queue_name()} is, and {self._queued.state}"
        if is_up(self._vm) and self._is_ours():
            self._log(self._timer.text())
        if stands:
            self._log(f"{self._host.name} is {stands}: {telling.deletion(self._host)}")

    def _leave_vm(self, *, is_used: bool) -> bool:
        """Delete an unused VM, or let it delete itself after `idle_delete`; False if it stays."""
        limit_s = self._host.idle_delete_s
        if is_used or limit_s is None or self._around.has_others():
            return False
        if self._around.ends_when_empty and (self._doing is Action.CREATE or self._is_coming()):
            return self._delete_at_end("no job is left")
        if not (is_up(self._vm) and self._is_ours()):
            return False
        if not leaving.is_unused(self._host):
            return False
        if self._timer.is_armed and not self._around.ends_when_empty:
            # Who starts a dispatcher again does not have to wait for a new one.
            limit_s = min(limit_s, self._host.dead_after_s or limit_s)
            return leaving.hand_over(self._host, limit_s, self._log)
        return self._delete_at_end("it is not used any more")

    def _is_coming(self) -> bool:
        """Whether it is ours and nothing can be on it yet."""
        return self._vm is not None and self._is_ours() and self._vm.state == "CREATING"

    def _delete_at_end(self, why: str) -> bool:
        if self._vm is None and not leaving.is_of(self._host, self._workspace):
            # Its creation was begun, and what has this name now may have been created for others meanwhile.
            return False
        has_brought = self._vm is not None and self._vm.queued_resource
        words, _ = self._command(Action.DELETE_QUEUED if has_brought else Action.DELETE)
        try:
            leaving.finish(words)
        except OutletError as error:
            self._log(f"deleting {self._host.name} has failed: {error}")
            return False
        self._log(f"deleting {self._host.name}: {why}")
        return True

    def _sight(self) -> HostState:
        return HostState(
            vm=self._vm,
            queued=self._queued,
            workspace=self._workspace,
            accelerator_type=self._host.accelerator_type,
            is_wanted=self._is_wanted,
            # Without the answer nothing is created: the request that stands would bring a second one.
            may_create=self._may_create and self._has_looked and (self._vm is not None or self._knows_queue),
            is_given_up=boot_time_s() - self._unwanted_since_s >= self._times.given_up_s,
            is_short=bool(self._is_short),
            is_idle=self._is_unused and not self._is_needed(),
        )

    def _is_needed(self) -> bool:
        """Whether attempts run on it, or wait for it: not for one of another size, which they do not get."""
        return self._is_used or (self._is_wanted and not self.unfit)

    def _is_ours(self) -> bool:
        return self._vm is not None and self._vm.is_of(self._workspace)

    def _renewal_due_in_s(self) -> float | None:
        """Seconds until the VM has to hear of this dispatcher; None for one of others that it does not use."""
        return self._timer.due_in_s() if self.is_up and (self._is_ours() or self._is_used) else None

    def _tell_of_timer(self, text: str) -> None:
        if self._is_ours():
            self._log(text)

    def _look_is_due(self) -> float | None:
        """Seconds until the VM is to be looked at; None when nothing asks for it."""
        if self._program is not None:
            return None
        now_s = boot_time_s()
        if self._must_look:
            return max(0.0, self._look_after_s - now_s)
        if is_up(self._vm):
            # Calls that its workers answer tell that it is, and one that they do not answer makes it be looked at.
            return None
        matters = self._is_wanted or self._is_used
        pace_s = self._times.interval_s if matters else max(self._times.interval_s, _SELDOM_S)
        return max(0.0, self._looked_s + pace_s - now_s, self._look_after_s - now_s)

    def _take_in_look(self, answer: Ran) -> None:
        before = self._vm
        try:
            self._vm = gcloud.read_vm(answer)
        except GcloudError as error:
            self._unseen = f"{self._host.name}: {error}"
            self._look_after_s = boot_time_s() + self._times.interval_s
            return
        self._has_looked, self._must_look = True, False
        self._looked_s = boot_time_s()
        self._knows_queue = False
        if before is None or self._vm is None or before.identity != self._vm.identity:
            self._timer.start_over()
        if self._vm is not None and (before is None or before.state != self._vm.state):
            self._log(f"{self._host.name} is {self._vm.state}")
        if self._vm is not None:
            # It may have brought this one, and waits for nothing any more.
            self._queued, self._missed = None, 0
            self._note_project(self._vm.project)
        if is_up(self._vm):
            self._trouble = self._is_short = ""
            self._failures = 0
        if self._vm is None and self._may_create:
            self._start(gcloud.describe_queued(self._host, self._queue_name()), LOOK_LIMIT_S, self._take_in_queue)
        else:
            self._unseen = ""

    def _take_in_queue(self, answer: Ran) -> None:
        try:
            found = gcloud.read_queued(answer)
        except GcloudError as error:
            self._unseen = f"{self._host.name}: its queued resource cannot be checked: {error}"
            return
        self._knows_queue, self._unseen = True, ""
        if found is not None:
            self._note_project(found.project)
        if found is not None and found.state == "ACTIVE":
            self._missed += 1
            # Its VM may have come since this one looked for it.
            self._must_look = self._missed < _MISSED_FOR_GOOD
        if found is not None and found.why and found != self._queued:
            self._is_short = f"{found.state}: {found.why}"
            self._log(f"the queued resource of {self._host.name} is {self._is_short}")
            self._pause()
        self._queued = found

    def _note_project(self, found: str) -> None:
        """Note where the VM is, or its request. It is there whether that can be written or not: each look tries."""
        try:
            self._around.remember(self._host.project or found)
            self._unnoted = ""
        except StorageError as error:
            if str(error) != self._unnoted:
                self._unnoted = str(error)
                self._log(f"warning: {self._host.name}: {error}")

    def _act(self, chosen: Action) -> None:
        if is_up(self._vm) and self._around.is_used_elsewhere():
            # Since it was found to be unused.
            self._idle_since_s, self._is_unused = boot_time_s(), False
            return
        try:
            words, limit_s = self._command(chosen)
            if chosen in (Action.CREATE, Action.QUEUE):
                # Before anything is begun: what cannot be noted, on a full disk, is not created.
                self._around.remember(self._host.project or "")
        except (OutletError, StorageError) as error:
            self._has_failed(chosen, error)
            return
        self._doing, self._began_s = chosen, boot_time_s()
        self._began_at = time.strftime("%H:%M:%S")
        if chosen in (Action.CREATE, Action.QUEUE):
            self._log(f"{_DOING[chosen]} {self._host.name} ({kind_text(self._host)}), which costs money")
        else:
            why = f"is {self._vm.state}" if self._vm is not None and not is_up(self._vm) else "is not used any more"
            self._log(f"deleting {self._host.name}: it {why}")
        self._start(words, limit_s, self._take_in_act)

    def _command(self, chosen: Action) -> tuple[list[str], float]:
        if chosen is Action.CREATE:
            return gcloud.create(self._host, self._workspace), CREATE_LIMIT_S
        if chosen is Action.QUEUE:
            return gcloud.create_queued(self._host, self._workspace, self._times.queued_for_s), LOOK_LIMIT_S
        if chosen is Action.DELETE:
            return gcloud.delete(self._host), DELETE_LIMIT_S
        return gcloud.delete_queued(self._host, self._queue_of_vm()), DELETE_LIMIT_S

    def _queue_of_vm(self) -> str:
        brought = "" if self._vm is None else self._vm.queued_resource
        return brought or self._queue_name()

    def _queue_name(self) -> str:
        return gcloud.queued_id(self._workspace, self._host.name)

    def _take_in_act(self, answer: Ran) -> None:
        done, self._doing = self._doing, None
        assert done is not None
        self._must_look, self._look_after_s = True, 0.0
        self._is_unused, self._idle_since_s = False, None
        try:
            gcloud.check(answer)
        except GcloudError as error:
            self._has_failed(done, error)
            return
        if done in (Action.CREATE, Action.QUEUE):
            self._trouble = ""
        if done is Action.CREATE:
            self._log(f"{self._host.name} was created in {boot_time_s() - self._began_s:.0f} s")
        if done is Action.DELETE_QUEUED:
            self._queued, self._missed = None, 0

    def _pause(self) -> float:
        """Nothing is done for a while, longer from one failure to the next; for how many seconds."""
        pause_s = min(self._times.first_pause_s * 2.0**self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        self._act_after_s = boot_time_s() + pause_s
        return pause_s

    def _has_failed(self, done: Action, error: OutletError | StorageError) -> None:
        failure = error.failure if isinstance(error, GcloudError) else Failure.REFUSED
        is_gone = failure is Failure.ABSENT and done in (Action.DELETE, Action.DELETE_QUEUED)
        if is_gone or (failure is Failure.EXISTS and done in (Action.CREATE, Action.QUEUE)):
            # Someone else was faster, or an answer was lost.
            return
        if failure is Failure.NO_CAPACITY and done is Action.CREATE:
            self._is_short = str(error)
            self._log(f"{self._host.name}: {error}")
            return
        if done is Action.QUEUE:
            # The next one tries without the queue.
            self._is_short = ""
        pause_s = self._pause()
        what = f"{_DOING[done]} {self._host.name} ({kind_text(self._host)})"
        self._trouble = f"{what} has failed: {error} (tried again in {pause_s:.0f} s)"

    def _start(self, words: Sequence[str], limit_s: float, take_in: Callable[[Ran], None]) -> None:
        self._take_in_answer = take_in
        try:
            self._program = Program(words, limit_s=limit_s)
        except OutletError as error:
            take_in(Ran(exit_code=127, err=str(error)))

    def _note_idleness(self) -> None:
        if not is_up(self._vm) or self._is_needed():
            self._idle_since_s, self._is_unused = None, False
        elif self._idle_since_s is None:
            self._idle_since_s = boot_time_s()

    def _is_idle_for_long(self) -> bool:
        return self.is_up and self._idle_due_in_s() == 0.0 and not self._is_unused

    def _idle_due_in_s(self) -> float | None:
        """Seconds until the VM has stood unused for so long that it is deleted; None when it never is."""
        limit_s = self._host.idle_delete_s
        if limit_s is None or self._idle_since_s is None or not self._is_ours():
            return None
        return max(0.0, self._idle_since_s + limit_s - boot_time_s())

    def _take_back(self) -> None:
        """Else the VM would be created when no dispatcher is left."""
        name, queued = self._host.name, self._queue_name()
        try:
            leaving.finish(gcloud.delete_queued(self._host, queued))
        except OutletError as error:
            stays = f"{name}: its queued resource {queued} stays and may cost money"
            self._log(f"{stays}: {error}. {telling.deletion(self._host)}")
        else:
            self._log(f"{name}: its queued resource {queued} was withdrawn")
