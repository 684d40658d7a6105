"""What people do with a TPU VM from the command line: look at it, create it, delete it. These calls wait.

Each raises GcloudError with gcloud's own words.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from dispatcher.errors import OutletError, StateError
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.outlets.remote.asking import ask_all
from dispatcher.outlets.remote.connection import NoAnswer
from dispatcher.outlets.remote.operations import Ran
from dispatcher.outlets.remote.programs import Program, ran
from dispatcher.outlets.tpu import gcloud, telling, timer
from dispatcher.outlets.tpu.gcloud import Created, Failure, GcloudError, Queued, Vm
from dispatcher.outlets.tpu.projects import known_projects
from dispatcher.outlets.tpu.provisioning import CREATE_LIMIT_S, DELETE_LIMIT_S, LOOK_LIMIT_S
from dispatcher.outlets.tpu.vm import Condition, condition_of, is_up
from dispatcher.outlets.tpu.workers import WorkersTransport
from dispatcher.workspace import Layout

_LOOK_AGAIN_S: Final = 5.0
_STEP_S: Final = 0.1
# How long a machine that has booted may need until its startup script runs and has been answered.
_TIMER_S: Final = 120.0
# How often a person who waits is told for how long.
_TELL_EVERY_S: Final = 10.0

Tell = Callable[[str], None]


class AllCreated(msgspec.Struct, frozen=True, kw_only=True):
    """What this workspace has created, by the project that was asked (None: gcloud's own), wherever that is.

    `unlisted` says of which projects that could not be told.
    """

    by_project: Mapping[str | None, Sequence[Created]] = {}
    unlisted: Sequence[str] = ()

    @property
    def vms(self) -> list[Created]:
        return list(dict.fromkeys(one for each in self.by_project.values() for one in each))

    def strays(self, hosts: Iterable[TpuHost]) -> list[Created]:
        """Those that no configured host leads to: it was renamed or removed, or its zone or project changed."""
        known = {
            one
            for host in hosts
            for one in self.by_project.get(host.project, ())
            if (one.name, one.zone) == (host.name, host.zone)
        }
        return [one for one in self.vms if one not in known]


class HostResources(msgspec.Struct, frozen=True, kw_only=True):
    """What there is under a host's name. None: nothing; `queued` is not looked for where there is a VM."""

    vm: Vm | None = None
    queued: Queued | None = None

    def costs_of(self, workspace: str) -> bool:
        """Whether something exists that this workspace has asked for."""
        return self.queued is not None or (self.vm is not None and self.vm.is_of(workspace))

    def text(self, workspace: str) -> str:
        """In a few words for people."""
        if self.vm is not None:
            return f"{self.vm.state}, created for " + ("this workspace" if self.vm.is_of(workspace) else "others")
        return "no VM" if self.queued is None else f"no VM, its queued resource is {self.queued.state}"


def look(host: TpuHost, workspace: str) -> HostResources:
    """What there is now."""
    found = gcloud.read_vm(_run(gcloud.describe(host), LOOK_LIMIT_S))
    if found is not None:
        return HostResources(vm=found)
    queued = gcloud.queued_id(workspace, host.name)
    return HostResources(queued=gcloud.read_queued(_run(gcloud.describe_queued(host, queued), LOOK_LIMIT_S)))


def look_at_all(hosts: Iterable[TpuHost], workspace: str) -> Mapping[str, HostResources | OutletError]:
    """What there is of each, by name, or why it cannot be told; all are asked at the same time."""

    def look_at(host: TpuHost) -> tuple[str, HostResources | OutletError]:
        try:
            return host.name, look(host, workspace)
        except OutletError as error:
            return host.name, error

    with ThreadPoolExecutor(max_workers=8) as pool:
        return dict(pool.map(look_at, hosts))


def all_created(hosts: Iterable[TpuHost], layout: Layout) -> AllCreated:
    """What there is of this workspace over all zones, in the projects of these hosts and in those of earlier ones."""
    projects = list(dict.fromkeys([*(host.project for host in hosts), *known_projects(layout)]))
    if not projects:
        return AllCreated()
    workspace = workspace_id(layout)

    def list_project(project: str | None) -> list[Created] | str:
        vms, queued = gcloud.list_vms(project), gcloud.list_queued(project)
        try:
            return gcloud.read_created(_run(vms, LOOK_LIMIT_S), _run(queued, LOOK_LIMIT_S), workspace, project)
        except OutletError as error:
            place = "gcloud's own project" if project is None else f"the project {project}"
            return f"{place} may have TPU VMs of this workspace, which cannot be listed: {error}"

    with ThreadPoolExecutor(max_workers=8) as pool:
        listed = list(pool.map(list_project, projects))
    return AllCreated(
        by_project={name: each for name, each in zip(projects, listed, strict=True) if not isinstance(each, str)},
        unlisted=[each for each in listed if isinstance(each, str)],
    )


def create(host: TpuHost, workspace: str, tell: Tell) -> Vm:
    """Create the VM, after deleting one of this workspace that is dead, and wait until it is READY.

    StateError for one that stands and is not READY, and will not be. `tell` is told how far it is.
    """
    found = look(host, workspace)
    if found.vm is not None and condition_of(found.vm.state) is Condition.DEAD:
        delete(host, workspace, tell)
    elif found.vm is None:
        if found.queued is not None:
            raise StateError(_is_queued(host, workspace, found.queued))
    else:
        return _wait_until_up(host, workspace, tell)
    try:
        _carry_out(gcloud.create(host, workspace), CREATE_LIMIT_S, f"creating {host.name}", tell)
    except GcloudError as error:
        # Another one may have been faster, or an answer was lost.
        if error.failure not in (Failure.EXISTS, Failure.TRANSIENT) or look(host, workspace).vm is None:
            raise
    return _wait_until_up(host, workspace, tell)


def timer_text(host: TpuHost) -> str:
    """Whether the VM, which is READY, deletes itself when no dispatcher is left; asks it until it knows."""
    begun_s = time.monotonic()
    told = ""
    while host.dead_after_s is not None and not told and time.monotonic() - begun_s < _TIMER_S:
        answers = ask_all({host.name: (WorkersTransport(host), timer.state())}, LOOK_LIMIT_S)[host.name]
        told = "" if isinstance(answers, NoAnswer) else timer.read_state(answers)
        time.sleep(0 if told else _STEP_S)
    return timer.text(host, told)


def queue(host: TpuHost, workspace: str) -> str:
    """Ask for the VM with a queued resource: its id. StateError where either is there already."""
    queued = gcloud.queued_id(workspace, host.name)
    found = look(host, workspace)
    if found.vm is not None:
        # The request would outlive this VM, and bring another one some day.
        raise StateError(f"{host.name} is there already: {found.text(workspace)}")
    if found.queued is not None:
        raise StateError(_is_queued(host, workspace, found.queued))
    with _passing(Failure.EXISTS):
        gcloud.check(_run(gcloud.create_queued(host, workspace), LOOK_LIMIT_S))
    return queued


def delete(host: TpuHost, workspace: str, tell: Tell) -> None:
    """Delete the VM and its queued resource; StateError for a VM that was not created for this workspace."""
    found = look(host, workspace)
    if found.vm is not None and not found.vm.is_of(workspace):
        by_hand = " ".join(["gcloud", "compute", "tpus", "tpu-vm", "delete", host.name, *gcloud.location(host)])
        raise StateError(f"{host.name} was not created for this workspace, so it is left alone. By hand: {by_hand}")
    if found.vm is not None and not found.vm.queued_resource:
        words = gcloud.delete(host)
    elif found.vm is not None or found.queued is not None:
        brought = "" if found.vm is None else found.vm.queued_resource
        words = gcloud.delete_queued(host, brought or gcloud.queued_id(workspace, host.name))
    else:
        return
    with _passing(Failure.ABSENT):
        _carry_out(words, DELETE_LIMIT_S, f"deleting {host.name}", tell)


def _wait_until_up(host: TpuHost, workspace: str, tell: Tell) -> Vm:
    begun_s = time.monotonic()
    while True:
        vm = look(host, workspace).vm
        if vm is not None and (problem := telling.other_size(host, vm)):
            raise StateError(problem)
        if vm is not None and is_up(vm):
            return vm
        state = "gone" if vm is None else vm.state
        if vm is None or condition_of(vm.state) is not Condition.COMING:
            hint = f": `{gcloud.start_text(host)}` starts it" if state == "STOPPED" else ""
            raise StateError(f"{host.name} is {state}, so it cannot be used{hint}")
        waited_s = time.monotonic() - begun_s
        if waited_s > CREATE_LIMIT_S:
            raise StateError(f"{host.name} is still {state} after {waited_s:.0f} s; `dispatcher outlets` shows it")
        tell(f"{host.name} is {state} ({waited_s:.0f} s)")
        time.sleep(_LOOK_AGAIN_S)


def _is_queued(host: TpuHost, workspace: str, queued: Queued) -> str:
    name = gcloud.queued_id(workspace, host.name)
    why = f" ({queued.why})" if queued.why else ""
    return (
        f"{host.name} was already requested: its queued resource {name} is {queued.state}{why}; "
        f"`dispatcher outlets delete {host.name}` withdraws it"
    )


def _run(words: Sequence[str], limit_s: float) -> Ran:
    return _wait(Program(words, limit_s=limit_s), lambda _: None)


def _carry_out(words: Sequence[str], limit_s: float, what: str, tell: Tell) -> None:
    told_s = 0.0

    def tell_now_and_then(waited_s: float) -> None:
        nonlocal told_s
        if waited_s - told_s >= _TELL_EVERY_S:
            told_s = waited_s
            tell(f"{what} ({waited_s:.0f} s)")

    gcloud.check(_wait(Program(words, limit_s=limit_s), tell_now_and_then))


def _wait(program: Program, waited: Callable[[float], None]) -> Ran:
    """How it has ended. Interrupted, gcloud is ended; what it has begun at Google goes on."""
    begun_s = time.monotonic()
    try:
        while (finished := program.poll()) is None:
            waited(time.monotonic() - begun_s)
            time.sleep(_STEP_S)
    finally:
        program.close()
    return ran(finished)


@contextlib.contextmanager
def _passing(failure: Failure) -> Iterator[None]:
    """A failure of this class is what was wanted."""
    try:
        yield
    except GcloudError as error:
        if error.failure is not failure:
            raise
