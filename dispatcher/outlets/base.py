"""The seam between the loop and the places where attempts run: plain data in, plain data out.

An outlet never touches the run state. No call of it waits for a program, a host or a network: `submit` and `cancel`
only begin something, `poll` returns what is known by now. All of them take many attempts at once, so that one query
serves all attempts in flight. An attempt is identified by its `Key`; a scheduler's own id is only a hint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from dispatcher import contract
from dispatcher.base import files
from dispatcher.errors import DispatcherError
from dispatcher.hosts.types import Location, PbsOptions, SlurmOptions
from dispatcher.outlets.code.snapshot import CodeSnapshot
from dispatcher.outlets.node.setup import NodeSetup
from dispatcher.provenance.origin import Origin
from dispatcher.provenance.record import HostFacts
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.states import State
from dispatcher.workspace import Layout

# Why an attempt ended, where the exit status alone does not tell.
PREEMPTED: Final = "preempted"
LOST: Final = "lost"
OUT_OF_MEMORY: Final = "out of memory"
TIME_LIMIT: Final = "time limit"
SUPERSEDED: Final = "superseded"
CANNOT_START: Final = "cannot start"
# In the scheduler, and not by a dispatcher.
CANCELLED: Final = "cancelled"
# It waited longer in its outlet's queue than it may, and another outlet can take it.
QUEUE_LIMIT: Final = "queue limit"
# Followed by for how long: it left its GPUs at 0 %, and its method has such attempts stopped.
GPU_IDLE: Final = "GPU idle"
# Put back as it was: never submitted, or one of a pack whose time was over before it was begun.
NOT_REACHED: Final = "not reached"

_DONE: Final = (contract.EXIT_DONE, contract.EXIT_COMPLETE)

# Where attempts keep their checkpoints that see this workspace: see OutletOffer.place.
WORKSPACE: Final = "workspace"


class Key(msgspec.Struct, frozen=True, order=True):
    """The identity of an attempt, everywhere: a job and the attempt's number, from 1."""

    job_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.job_id}/{self.number}"


class Request(msgspec.Struct, frozen=True):
    """What an attempt asks for. `gpus` 0: a CPU slot; None: a CPU slot or one GPU, whichever is free.

    `chip` is the kind of GPU (`h100`), empty for any. `gpus` is the number over all `nodes`. `cpus` and `memory_mib`
    are for each node; None: what the outlet gives by default. `gpu_memory_mib` is what the attempt takes of each of its
    GPUs: only the local outlet goes by it, which does not go by `nodes`. `only` are the indices among which its GPUs
    are chosen, empty for any: other outlets refuse it. `slurm` and `pbs` are for hosts of these types alone, and
    `projects` are pairs of a `job_project_source` that a configured host has, and what that is for the job.
    """

    gpus: int | None = None
    chip: str = ""
    cpus: int | None = None
    memory_mib: int | None = None
    nodes: int = 1
    gpu_memory_mib: int | None = None
    only: tuple[int, ...] = ()
    slurm: SlurmOptions | None = None
    pbs: PbsOptions | None = None
    projects: tuple[tuple[str, str], ...] = ()

    @property
    def has_own_options(self) -> bool:
        """Whether the entry or its method has options of its own for the scheduler."""
        return self.slurm is not None or self.pbs is not None


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """Room for one attempt: its GPUs in PCI order, none for a CPU slot, and what was counted for it.

    `gpu_memory_mib` and `gpu_share`, the same as a part of the GPU, are of the one GPU that it shares by memory; None:
    it does not share one so. `cpus` and `memory_mib` are 0 where it asks for none.
    """

    gpus: tuple[int, ...] = ()
    gpu_memory_mib: int | None = None
    gpu_share: float | None = None
    cpus: int = 0
    memory_mib: int = 0


class OutletOffer(Protocol):
    """What an outlet of a pod offers: plain data (a msgspec struct), published in the pod's file."""

    @property
    def place(self) -> str:
        """Where its attempts keep their checkpoints, equal for outlets that see each other's; empty: not known yet.

        WORKSPACE where they see this workspace, else what their cluster is called, or its object store.
        """

    def refuses(self, request: Request) -> str:
        """Why such an attempt can never run here; empty when it can, once there is room."""

    def refuses_now(self, request: Request) -> str:
        """Why there is no room whatever ends, such as GPUs that cannot be used; empty when waiting helps."""

    def lacks(self, request: Request) -> str:
        """What there is too little of at the moment, besides slots; empty where that is nothing, or not known."""


class Capacity(OutletOffer, Protocol):
    """The room that an outlet has. Pure bookkeeping: no call blocks or does I/O."""

    @property
    def is_full(self) -> bool:
        """Whether `take` would refuse every request now."""

    @property
    def packs(self) -> bool:
        """Whether several attempts may share a slot, one after the other: see Bundle.pack."""

    def offer(self) -> OutletOffer:
        """What it offers at this moment, to be published."""

    def outlook(self, request: Request) -> float | None:
        """When such an attempt would start, for a choice among outlets that have room; None: not here now.

        0: at once, as far as is known. Up to 1: it would wait in a queue; the smaller, the shorter. Infinity: that is
        not known yet, but in a moment.
        """

    def take(self, request: Request, ahead: Sequence[Request] = ()) -> Slot | None:
        """A slot, from now on in use; None when there is no room now.

        `ahead` are requests that come first and did not fit: what they wait for is kept for them.
        """

    def adopt(self, slot: Slot) -> None:
        """Count an attempt that already runs in this slot, whether or not `take` would have given it."""

    def release(self, slot: Slot) -> None:
        """Give back what `take` gave or `adopt` counted; ValueError for a slot that is not in use."""

    def gpus_of(self, request: Request) -> int:
        """The GPUs of an attempt whose slot has none, also where its request leaves them open."""

    def slot_text(self, slot: Slot) -> str:
        """A slot as messages name it: `gpu 0,1`, `cpu`."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The workspace as an attempt in one slot sees it, and how its command is started there.

    `layout` has its paths, `group_may_write` says whether its group may write what attempts create. `environment` are
    the variables that show the attempt its slot (None removes one); those of `defaults` its method or entry may set to
    something else. `launcher` is the name of a file in the attempt's
    directory: a bash script that is given the command and runs it; empty where the wrapper runs the command itself.
    `is_shared`: the attempt sees this very workspace; if not, the command's interpreter is the `python` that it finds
    on PATH there, and the launcher reads the method's setup. `directories` are those of its cluster by their keys
    (`root`, `data`, `checkpoints`, `results`), for job classes that do not see the workspace. `node` is what has to be
    set up on every node before the command, None: nothing, unless the method or the entry has a container. `host` are
    the facts about the host and the GPUs of the slot, None where they have to be found out there. `gpus` is what the
    attempt gets where its slot has none.
    """

    layout: Layout
    group_may_write: bool
    environment: Mapping[str, str | None] = {}
    defaults: Mapping[str, str] = {}
    launcher: str = ""
    is_shared: bool = True
    directories: Mapping[str, str] = {}
    node: NodeSetup | None = None
    host: HostFacts | None = None
    gpus: int = 0


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt is started from: rendered, not delivered.

    `files` are those of its directory by name; the wrapper is `contract.WRAPPER_FILE`. `shared_files` are further ones
    by their path below the workspace's root; an earlier attempt may be reading the old content. `environment` are
    changes to the environment in which the wrapper is started (None removes a variable). `private_files` belong into
    the attempt's directory where it runs, and nowhere else: only the owner may read them. `time_limit_s` None: none.
    `labels` name the attempt for people: `project`, `group` and `name`. `pack` is the key of the first attempt of a
    pack, None for an attempt alone: those of one pack are submitted as one, in the order in which they are given, and
    run one after the other. One that is not begun when the time of the whole is nearly over ends as NOT_REACHED.
    `origin` is what is known by now of its provenance, None where that is not recorded. `code` is the copy of the code
    that it runs, None: today's.
    """

    key: Key
    request: Request
    slot: Slot
    files: Mapping[str, bytes]
    shared_files: Mapping[str, bytes] = {}
    private_files: Mapping[str, bytes] = {}
    environment: Mapping[str, str | None] = {}
    time_limit_s: float | None = None
    labels: Mapping[str, str] = {}
    pack: Key | None = None
    origin: Origin | None = None
    code: CodeSnapshot | None = None


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt runs, as it is recorded when it starts. `pid` is the wrapper's, `handle` the scheduler's id.

    `code` is the label of the snapshot that it runs, None where it runs in the workspace itself.
    """

    handle: str | None = None
    host: str | None = None
    pid: int | None = None
    gpus: tuple[int, ...] = ()
    code: str | None = None


class Pending(msgspec.Struct, frozen=True):
    """Accepted, not started yet."""

    why: str = ""


class GpuUse(msgspec.Struct, frozen=True):
    """For how long all GPUs of an attempt have been at 0 %, 0 when they are in use. `gpus` is their number."""

    idle_s: float
    gpus: int


class Running(msgspec.Struct, frozen=True):
    """A process of it lives; `note` names what is unusual (strays are being stopped). `gpu_use` None: unknown."""

    note: str = ""
    gpu_use: GpuUse | None = None


class Ended(msgspec.Struct, frozen=True):
    """Nothing of the attempt is left. The one type for that, from the outlet to the record.

    The outlet fills in what it knows. `exit_code` None: there is no exit status. `exit_reason` is what the wrapper or
    the scheduler tells beyond the status (`time limit`, `preempted`, `superseded`, `cannot start`), empty when the
    status is all. `ended_at` is a journal time. `error` is the last error line, or what else is known of the end.
    `ran_s` is for how long it ran. `oom_killed`: the kernel killed a process of its host for lack of memory meanwhile.
    `blames_host`: it could not be started, and not because of the entry. `is_passing`: it could not be started for want
    of something that comes back by itself (room on a disk, a file server): no scope is to blame. `told_by_signal`: the
    signal (`TERM`, `INT`) with which a person, or a program such as a scheduler that preempts, told its wrapper to
    stop; empty when the wrapper knows the reason. `worker` is the machine whose status it is, of an attempt that ran on
    several; 0: the first one. `begun_s` is when it began, in seconds since 1970 by the same clock as `ended_at`.
    `has_result`: it left a result that is not empty.

    `pod.outcome.classify` completes the reason and the error from the end of the log, adds `pod_stopped` (its
    dispatcher was told to stop), `step` and `checkpoint` (the last ones that it reported).
    """

    exit_code: int | None
    exit_reason: str = ""
    ended_at: str | None = None
    error: str | None = None
    ran_s: float | None = None
    oom_killed: bool = False
    blames_host: bool = False
    is_passing: bool = False
    by_scheduler: bool = False
    told_by_signal: str = ""
    worker: int = 0
    begun_s: float | None = None
    has_result: bool = False
    pod_stopped: bool = False
    step: float | None = None
    checkpoint: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the command ran to its end, and not only until it was told to stop: see wrapper.read_exit."""
        return self.exit_code in _DONE and not (self.exit_reason or self.told_by_signal)


def cannot_start(error: DispatcherError) -> Ended:
    """The end of an attempt that could not be prepared or started, and not because of its entry."""
    passing = files.is_passing(error)
    return Ended(None, CANNOT_START, error=str(error), blames_host=not passing, is_passing=passing)


class Unknown(msgspec.Struct, frozen=True):
    """It cannot be told at the moment; never treated as ended."""

    why: str = ""


Status = Pending | Running | Ended | Unknown


class Report(msgspec.Struct, frozen=True):
    """What is known of one attempt. `placement` None: it has none yet."""

    status: Status
    placement: Placement | None = None


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt in flight whose dispatcher, the pod of this name, is dead.

    `is_unwanted`: its job was cancelled, held or requeued meanwhile, so it is to be stopped; with `force` at once, and
    once more for each higher number.
    """

    key: Key
    pod: str
    placement: Placement
    is_unwanted: bool = False
    force: int = 0


class Outlet(Protocol):
    """A place where attempts run."""

    @property
    def name(self) -> str:
        """What `outlet` in an entry and in a record means."""

    @property
    def capacity(self) -> Capacity:
        """The slots of this outlet, which belong to this pod alone."""

    @property
    def first_state(self) -> State:
        """The state of an attempt that was claimed: running where it starts at once, else submitted."""

    def site(self, slot: Slot, request: Request) -> Site:
        """What the bundle of an attempt in this slot, with this request, is rendered for.

        Raises StorageError or OutletError when that cannot be found out.
        """

    def submit(self, bundles: Sequence[Bundle]) -> None:
        """Begin to start these attempts. Whatever fails is reported by `poll`: never raises.

        A bundle that was submitted before, also by an earlier dispatcher, is the same submission.
        """

    def poll(self, keys: Sequence[Key]) -> Mapping[Key, Report]:
        """What is known by now of attempts that were submitted or adopted; the same end until `forget`.

        Called in every pass of the loop, also without keys: what child processes have answered is taken in here.
        """

    def cancel(self, keys: Sequence[Key], *, reason: str = "", force: bool = False) -> None:
        """Stop these attempts: TERM, and KILL after the grace period; `force` kills at once.

        `reason` is the `exit_reason` of their ends (`preempted`), also of those that have not begun; empty when a
        person has asked for it. An attempt is named once: the outlet tries again what fails.
        """

    def fence(self, keys: Sequence[Key]) -> None:
        """Mark these attempts as superseded: wherever one of them may still live, it finds that and ends."""

    def forget(self, keys: Sequence[Key]) -> None:
        """Their ends are recorded: `poll` will not be asked for them again."""

    def adopt(self, attempts: Mapping[Key, Placement]) -> Mapping[Key, Slot]:
        """Watch attempts that an earlier dispatcher of this pod's name had claimed, and take their slots.

        Those that this outlet cannot watch from here are left out: they are recovered like other pods'. `--dry-run`
        calls it too, so it does not change anything but what this object watches.
        """

    def recover(self, orphans: Sequence[Orphan]) -> Mapping[Key, Report]:
        """What is known by now of attempts of dead dispatchers; called at every poll interval with all that there are.

        One that is no longer named was recorded by another pod or has a dispatcher again: it is not watched any more.
        Stops those that are unwanted, and what a job has left behind. One that counts as lost is superseded first.
        """

    def inspect(self, orphans: Sequence[Orphan]) -> Mapping[Key, Status]:
        """How `recover` would find them; changes nothing."""

    def leads_to(self, location: Location) -> bool:
        """Whether this outlet finds attempts that were submitted to this location, as far as is known."""

    def refresh_capacity(self) -> None:
        """Find out what of the slots can be used now; called before claims, cheap when it was done just before."""

    def capacity_due_in_s(self) -> float | None:
        """Seconds until `refresh_capacity` may find room that was not there; None when it cannot."""

    def hold(self, scopes: Mapping[str, str]) -> None:
        """Give nothing new to these scopes (`gpu:HOST:2`: why), and again to all others; unknown scopes are ignored."""

    def slot_infos(self) -> list[SlotInfo]:
        """The slots as `dispatcher pods` shows them."""

    def describe(self) -> str:
        """The slots in a few words: `GPUs 0,1 and 2 CPU slots`."""

    def notes(self) -> Sequence[str]:
        """What is unusual about how its attempts run, for people: one line each."""

    def is_up_to_date(self) -> bool:
        """Whether what `poll` and `recover` report was asked of the host after they were first told of the attempts.

        True also when the host does not answer, and the reports say so: asking again later is all that is left to do.
        """

    def wait_fds(self) -> list[int]:
        """Descriptors that become readable when `poll` has news."""

    def due_in_s(self) -> float | None:
        """Seconds until `poll` has to be called although no descriptor is readable; None when never."""

    def close(self) -> None:
        """Release what the outlet holds; its attempts run on."""
