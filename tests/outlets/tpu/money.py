"""What TPU VMs cost in a week: the real decisions of dispatchers and VMs' timers, in a cloud and a time of its own.

`World` is the cloud and its clock. A `Dispatcher` has the real `TpuProvisioning`, whose calls of gcloud `World.gcloud`
answers, and a `Machine` the real timer. Jobs come, wait, and run where a VM is up. A second counts as wanted when a job
runs on the VM, or waits for it while a dispatcher lives; what a VM costs besides is `idle_s`.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dispatcher.base.programs import Finished
from dispatcher.hosts.types import TpuHost
from dispatcher.outlets.remote.operations import (
    AttemptFiles,
    Operation,
    Read,
    ReadAnswer,
    Tail,
    TailRead,
    Write,
    Written,
)
from dispatcher.outlets.tpu import dead_man, timer
from dispatcher.outlets.tpu.provisioning import Times, TpuProvisioning, VmOwner

WORKSPACE = "0123456789ab"
STEP_S = 30.0
WEEK_S = 7 * 86400.0
CREATE_S = 240.0
POLL_S = 60.0
_LABEL = {"dispatcher-workspace": WORKSPACE}
_NONE_LEFT = 'ERROR: (gcloud.x) {"code": 8, "message": "There is no more capacity in the zone"}'

Place = tuple[str, str, str]


class Machine:
    """A VM, as Google and its own timer see it. `wanted_s` is when it was wanted last."""

    def __init__(self, world: World, place: Place, options: dict[str, str], queued: str = "") -> None:
        self.world, self.place, self.queued = world, place, queued
        self.accelerator = options["accelerator-type"]
        self.ready_s = world.now_s + CREATE_S
        self.wanted_s = world.now_s
        self.identity = next(world.numbers)
        self.job_ends_s: float | None = None
        found = re.search(rf"{timer.DIRECTORY} ([0-9]+) ", options.get("metadata", ""))
        self.limit_s = float(found[1]) if found else None
        self.directory = world.directory / str(self.identity)
        self.timer: dead_man.Timer | None = None

    @property
    def is_ready(self) -> bool:
        return self.world.now_s >= self.ready_s

    def step(self) -> None:
        if self.is_ready and self.limit_s is not None and self.timer is None:
            self.directory.mkdir()
            self.timer = dead_man.Timer(str(self.directory), self.limit_s, self)
        if self.timer is not None:
            self.timer.step()
        if self.job_ends_s is not None and self.job_ends_s <= self.world.now_s:
            self.job_ends_s = None

    # What the timer asks of the cloud.

    def why_unable(self) -> str:
        return ""

    def delete(self) -> str:
        self.world.remove(self.place)
        return ""

    def answer(self, operation: Operation) -> Any:
        """What its workers tell a dispatcher."""
        if isinstance(operation, Write):
            if self.timer is not None:
                (self.directory / Path(operation.path).name).write_bytes(operation.content)
            return Written()
        if isinstance(operation, Tail):
            path = self.directory / "state"
            return TailRead(content=path.read_bytes() if path.exists() else None)
        assert isinstance(operation, Read)
        return ReadAnswer(seen=[AttemptFiles(exists=self.job_ends_s is not None, is_alive=self.job_ends_s is not None)])

    def shown(self) -> dict[str, Any]:
        project, zone, name = self.place
        shown = {
            "name": f"projects/{project}/locations/{zone}/nodes/{name}", "id": str(self.identity), "labels": _LABEL,
            "state": "READY" if self.is_ready else "CREATING", "acceleratorType": self.accelerator,
            "networkEndpoints": [{"ipAddress": "10.0.0.1"}],
        }  # fmt: skip
        return {**shown, "queuedResource": self.queued} if self.queued else shown


class Request:
    """A queued resource."""

    def __init__(self, world: World, place: Place, options: dict[str, str]) -> None:
        self.place, self.options, self.state = place, options, "WAITING_FOR_RESOURCES"
        self.expires_s = world.now_s + float(options["valid-until-duration"].removesuffix("s"))

    def shown(self) -> dict[str, Any]:
        project, zone, name = self.place
        spec = {"nodeId": name, "node": {"acceleratorType": self.options["accelerator-type"]}}
        return {
            "name": f"projects/{project}/locations/{zone}/queuedResources/q", "tpu": {"nodeSpec": [spec]},
            "state": {"state": self.state},
        }  # fmt: skip


class Call:
    """One call of gcloud under way: what `Program` is to a dispatcher."""

    def __init__(self, world: World, answer: Finished, done_s: float) -> None:
        self._world, self._answer, self._done_s = world, answer, done_s

    def poll(self) -> Finished | None:
        return self._answer if self._world.now_s >= self._done_s else None

    def wait_fds(self) -> list[int]:
        return []

    def due_in_s(self) -> float:
        return 0.0

    def close(self, grace_s: float = 0.0) -> None:
        """What was asked of Google goes on."""


class World:
    """The cloud, its clock, and what it has cost."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now_s = 0.0
        self.numbers = itertools.count(1)
        self.has_capacity = True
        self.machines: dict[Place, Machine] = {}
        self.requests: dict[Place, Request] = {}
        self.cost_s = self.wanted_s = 0.0
        self.longest_unwanted_s = 0.0
        self.count = self.request_count = 0

    def clock(self) -> float:
        return self.now_s

    def add(self, place: Place, options: dict[str, str], queued: str = "") -> None:
        self.count += 1
        self.machines[place] = Machine(self, place, options, queued)

    def remove(self, place: Place) -> None:
        self.machines.pop(place, None)
        self.requests.pop(place, None)

    def gcloud(self, words: Sequence[str], limit_s: float = 0.0, **_: Any) -> Call:
        """What `Program` is made with."""
        group, verb, name = words[3:6]
        options = dict(word.removeprefix("--").partition("=")[::2] for word in words[6:])
        place = options["project"], options["zone"], options.get("node-id", name)
        if group == "queued-resources" and verb != "create":
            place = *place[:2], name.removeprefix(f"d-{WORKSPACE}-")
        found = (self.machines if group == "tpu-vm" else self.requests).get(place)
        if verb == "create":
            return self._create(group, place, options)
        if found is None:
            kind = "nodes" if group == "tpu-vm" else "queuedResources"
            full = f"projects/{place[0]}/locations/{place[1]}/{kind}/{name}"
            return self._call(err=f"ERROR: (gcloud.x) NOT_FOUND: Resource '{full}' was not found")
        if verb == "delete":
            self.remove(place)
            return self._call()
        return self._call(found.shown())

    def _create(self, group: str, place: Place, options: dict[str, str]) -> Call:
        if place in self.machines or (group != "tpu-vm" and place in self.requests):
            return self._call(err="ERROR: (gcloud.x) ALREADY_EXISTS: it is there")
        if group != "tpu-vm":
            self.request_count += 1
            self.requests[place] = Request(self, place, options)
            return self._call()
        if not self.has_capacity:
            return self._call(err=_NONE_LEFT)
        self.add(place, options)
        return self._call(after_s=CREATE_S)

    def _call(self, shown: Any = None, err: str = "", after_s: float = 0.0) -> Call:
        answer = Finished(exit_code=1 if err else 0, out=json.dumps(shown or {}).encode(), err=err.encode())
        return Call(self, answer, self.now_s + after_s)

    def step(self, wanted: set[Place]) -> None:
        """`wanted` are the places that a living dispatcher with jobs waits for."""
        for place, request in list(self.requests.items()):
            if request.state == "WAITING_FOR_RESOURCES" and self.now_s >= request.expires_s:
                request.state = "FAILED"
            elif request.state == "WAITING_FOR_RESOURCES" and self.has_capacity and place not in self.machines:
                request.state = "ACTIVE"
                self.add(place, request.options, "projects/p/locations/z/queuedResources/" + place[2])
        for place, machine in list(self.machines.items()):
            machine.step()
            if place not in self.machines:
                continue
            is_wanted = machine.job_ends_s is not None or place in wanted
            machine.wanted_s = self.now_s if is_wanted else machine.wanted_s
            if machine.is_ready:
                self.cost_s += STEP_S
                self.wanted_s += STEP_S * is_wanted
                unwanted_s = self.now_s - max(machine.wanted_s, machine.ready_s)
                self.longest_unwanted_s = max(self.longest_unwanted_s, unwanted_s)
        self.now_s += STEP_S


class Dispatcher:
    """A pod that runs jobs of the list `jobs` (their lengths) on the VM of its host, one at a time."""

    def __init__(self, world: World, host: TpuHost, jobs: list[float], *, until_empty: bool) -> None:
        self.world, self.host, self.jobs, self.until_empty = world, host, jobs, until_empty
        around = VmOwner(
            log=lambda _: None, is_used_elsewhere=lambda: False, has_others=lambda: False, ends_when_empty=until_empty
        )
        self.made = TpuProvisioning(host, WORKSPACE, around, Times(interval_s=POLL_S), may_create=True)

    @property
    def place(self) -> Place:
        return self.host.project or "", self.host.zone, self.host.name

    @property
    def machine(self) -> Machine | None:
        return self.world.machines.get(self.place)

    @property
    def is_running(self) -> bool:
        machine = self.machine
        return machine is not None and machine.job_ends_s is not None

    def step(self) -> None:
        # Answers of gcloud wake a dispatcher at once: it looks and acts within a step.
        for _ in range(4):
            self.made.work(is_wanted=bool(self.jobs) and not self.made.is_up, is_used=self.is_running)
        machine = self.machine
        if not self.made.is_up or machine is None:
            if self.made.is_up:
                self.made.doubt("it is gone")
            return
        for step in self.made.steps():
            step.take_in([machine.answer(one) for one in step.operations])
        if self.jobs and machine.job_ends_s is None:
            machine.job_ends_s = self.world.now_s + self.jobs.pop(0)

    def end(self) -> None:
        self.made.close(is_used=self.is_running)


def a_week(world: World, dead_after_s: float | None, chance: random.Random) -> None:
    """Jobs on working days, and what happens to those who run them. Nothing is looked after once the week is over."""
    jobs: list[float] = []
    dispatcher: Dispatcher | None = None
    sleeps_until_s = 0.0
    name, zone, project = "pod", "us-central2-b", "lab"
    while world.now_s < WEEK_S or (world.machines and world.now_s < 2 * WEEK_S):
        hour = world.now_s / 3600 % 24
        is_at_work = world.now_s < 5 * 86400 and 9 <= hour < 18
        if world.now_s % 3600 < STEP_S:
            world.has_capacity = chance.random() > 0.3
            if is_at_work and chance.random() < 0.4:
                jobs += [chance.uniform(300, 5400) for _ in range(chance.randint(1, 4))]
            if dispatcher is not None:
                happens = chance.random()
                if happens < 0.08:
                    # Killed: nothing of it is closed.
                    dispatcher = None
                elif happens < 0.12 and sleeps_until_s <= world.now_s:
                    sleeps_until_s = world.now_s + chance.uniform(600, 12 * 3600)
                elif happens < 0.15 or not is_at_work:
                    dispatcher.end()
                    dispatcher = None
                if dispatcher is None and chance.random() < 0.3:
                    name = f"pod{chance.randint(1, 9)}"
                if dispatcher is None and chance.random() < 0.2:
                    zone, project = chance.choice(["us-central2-b", "us-east5-a"]), chance.choice(["lab", "other"])
        if dispatcher is None and is_at_work and jobs and chance.random() < 0.02:
            host = TpuHost(
                name=name, cluster=name, zone=zone, project=project, accelerator_type="v4-8", version="v",
                create="auto", idle_delete_s=1800.0, dead_after_s=dead_after_s,
            )  # fmt: skip
            dispatcher = Dispatcher(world, host, jobs, until_empty=chance.random() < 0.5)
            sleeps_until_s = 0.0
        if dispatcher is not None and sleeps_until_s <= world.now_s:
            dispatcher.step()
            if dispatcher.until_empty and not jobs and not dispatcher.is_running:
                dispatcher.end()
                dispatcher = None
        world.step({dispatcher.place} if dispatcher is not None and jobs else set())
