"""Volcano's scheduler: lets PodGroups in, places the pods of a whole gang or none, evicts for more important ones.

As installed (`preempts` False) its actions are enqueue and allocate, and a group that asks for more than its Queue may
have, at most what the cluster has, or for more than 1.2 times what is free in the cluster, stays Pending, without pods.
Volcano 1.5 tells of neither. With `preempts` it is set up as for training jobs: preempt is one of
the actions, gangs may be victims (enablePreemptable: false of the gang plugin), and nothing is kept from coming in.
"""

from __future__ import annotations

import os
from fractions import Fraction

from api import Api, ApiError, Object
from cluster import Cluster
from dialects import Dialect
from evictions import evict
from gangs import ALLOCATED, Gang, Task, gangs
from objects import PREEMPTABLE, SCHEDULER, annotation, now
from quantities import Amounts, amounts, exceeds, minus, missing, total
from recorder import Recorder
from room import FitErrors, Node, claim_problem, nodes

OVERCOMMIT = Fraction(12, 10)
KIND = {"Unschedulable": "Warning", "Scheduled": "Normal"}


class Scheduler:
    """`session` looks at the whole cluster once."""

    def __init__(self, api: Api, cluster: Cluster, dialect: Dialect) -> None:
        self._api, self._cluster, self._dialect = api, cluster, dialect
        self._preempts, self._is_done = False, True
        self._recorder = Recorder(api, SCHEDULER)
        self._assumed: dict[str, str] = {}

    def session(self, preempts: bool) -> bool:
        """Whether all was done; else the next one is due without any news."""
        self._preempts, self._is_done = preempts, True
        there = {pod["metadata"]["uid"]: pod for pod in self._cluster.all("pods")}
        self._assumed = {uid: node for uid, node in self._assumed.items()
                         if uid in there and "nodeName" not in there[uid]["spec"]}  # fmt: skip
        found, room = gangs(self._cluster, self._assumed), nodes(self._cluster, self._assumed)
        for gang in found:
            if gang.phase == "Pending":
                self._let_in(gang, found, room)
        for gang in found:
            if gang.phase != "Pending" and gang.in_state("Pending"):
                self._allocate(gang, found, room)
        for gang in found:
            self._report(gang)
        return self._is_done

    # Enqueue.

    def _let_in(self, gang: Gang, found: list[Gang], room: list[Node]) -> None:
        if self._cluster.get("queues", "", gang.queue) is None:
            return
        wanted = gang.min_resources
        if (capability := self._most(gang, room)) is not None:
            promised = total([wanted, *(_promised(each) for each in found if each.queue == gang.queue)])
            if short := exceeds(promised, capability):
                named = ", ".join(f"insufficient {name}" for name in short)
                self._tell_group(gang, f"queue resource quota insufficient: {named}")
                return
        if not self._preempts and self._is_overused(wanted, found, room):
            self._tell_group(gang, "resource in cluster is overused")
            return
        gang.is_let_in = True

    def _tell_group(self, gang: Gang, why: str) -> None:
        if self._dialect.names_resources:
            self._recorder.normal(gang.group, "Unschedulable", why)

    def _most(self, gang: Gang, room: list[Node]) -> Amounts | None:
        """What the Queue may have; None: nothing is kept from coming in."""
        limits = self._capability(gang)
        if self._preempts:
            return limits
        everything = total(amounts(node.node["status"].get("allocatable")) for node in room)
        return {**everything, **{name: min(most, everything.get(name, most)) for name, most in (limits or {}).items()}}

    def _capability(self, gang: Gang) -> Amounts | None:
        queue = self._cluster.get("queues", "", gang.queue)
        limits = queue["spec"].get("capability") if queue else None
        return amounts(limits) if limits else None

    def _is_overused(self, wanted: Amounts, found: list[Gang], room: list[Node]) -> bool:
        everything = total(amounts(node.node["status"].get("allocatable")) for node in room)
        used = minus(everything, total(node.free for node in room))
        idle = minus({name: amount * OVERCOMMIT for name, amount in everything.items()}, used)
        waiting = total(_waiting(gang) for gang in found)
        promised = {name: amount + waiting.get(name, 0) for name, amount in wanted.items()}
        return bool(missing(promised, idle))

    # Allocate.

    def _allocate(self, gang: Gang, found: list[Gang], room: list[Node]) -> None:
        gang.problem = gang.why_invalid()
        if gang.problem is not None:
            return
        capability, kept = self._capability(gang), [(node, node.free) for node in room]
        used = total(each.allocated for each in found if each.queue == gang.queue)
        for task in gang.in_state("Pending"):
            used = total([used, task.request])
            if capability is not None and exceeds(used, capability):
                break
            if not self._place(task, room):
                break
        if gang.is_ready():
            for task in gang.in_state("Allocated"):
                self._bind(task)
            return
        for node, free in kept:
            node.free = free
        for task in gang.in_state("Allocated"):
            task.state, task.node = "Pending", ""
        if self._preempts:
            self._preempt(gang, found, room)

    def _place(self, task: Task, room: list[Node]) -> bool:
        if problem := claim_problem(self._cluster, task.pod):
            task.fit_errors = FitErrors([problem] * len(room), self._dialect)
            return False
        reasons = {node.name: node.why_not(task.pod, self._dialect) for node in room}
        fitting = [node for node in room if not reasons[node.name]]
        if not fitting:
            task.fit_errors = FitErrors(list(reasons.values()), self._dialect)
            return False
        # The emptiest, so that gangs spread.
        node = max(fitting, key=lambda node: (node.free.get("cpu", 0), node.free.get("memory", 0)))
        node.take(task.pod)
        task.state, task.node, task.try_node = "Allocated", node.name, node.name
        return True

    def _bind(self, task: Task) -> None:
        meta = task.pod["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": task.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        task.state = "Binding"
        try:
            self._api.call("POST", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding", body)
        except ApiError as error:
            print(f"bind {meta['name']}: {error}", flush=True)
            self._is_done = False
            return
        self._assumed[meta["uid"]] = task.node
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {task.node}"
        self._recorder.normal(task.pod, "Scheduled", message)

    # Preempt.

    def _preempt(self, gang: Gang, found: list[Gang], room: list[Node]) -> None:
        """Evict the least important pods of the queue, until the gang will fit once they are gone."""
        victims = [
            task
            for each in reversed(found)
            if each.queue == gang.queue and each.priority < gang.priority
            for task in each.in_state("Running")
            if annotation(task.pod, PREEMPTABLE) != "false" and task.request
        ]
        chosen: list[Task] = []
        while not self._will_fit(gang, room, chosen):
            if not victims:
                return
            chosen.append(victims.pop(0))
        for task in list(chosen):
            others = [each for each in chosen if each is not task]
            if self._will_fit(gang, room, others):
                chosen = others
        for task in chosen:
            owner = next(each for each in found if task in each.tasks)
            task.state = "Releasing"
            evict(self._api, self._recorder, task.pod, owner.group, "preempt")

    def _will_fit(self, gang: Gang, room: list[Node], evicted: list[Task]) -> bool:
        later = []
        for node in room:
            freed = total(total([task.request, amounts({"pods": 1})]) for task in evicted if task.node == node.name)
            later.append(Node(node.node, total([node.free, node.releasing, freed]), {}))
        placed = gang.ready()
        for task in gang.in_state("Pending"):
            fitting = [node for node in later if not node.why_not(task.pod, self._dialect)]
            if not fitting or claim_problem(self._cluster, task.pod):
                break
            fitting[0].take(task.pod)
            placed += 1
        return placed >= gang.min_member

    # What people see of it.

    def _report(self, gang: Gang) -> None:
        is_ready = gang.is_ready()
        text = "" if is_ready else gang.unschedulable(self._dialect)
        if gang.problem is not None:
            condition = _condition("Unschedulable", *gang.problem)
        elif is_ready:
            condition = _condition("Scheduled", "tasks in gang are ready to be scheduled", "")
        else:
            condition = _condition("Unschedulable", "NotEnoughResources", text)
        status = dict(gang.group.get("status") or {})
        conditions = [each for each in status.get("conditions", []) if each["type"] != condition["type"]]
        status["conditions"] = [*conditions, condition]
        status["phase"] = _phase(gang, is_unschedulable=condition["type"] == "Unschedulable")
        for name in ("running", "succeeded", "failed"):
            status[name] = len(gang.in_state(name.capitalize()))
        if _without_times(status) == _without_times(gang.group.get("status") or {}):
            return
        gang.group = self._save_status(gang.group, status)
        if status["phase"] in ("Pending", "Inqueue", "Unknown"):
            message = f"{len(gang.in_state('Pending'))}/{len(gang.tasks)} tasks in gang unschedulable: "
            self._recorder.warning(gang.group, "Unschedulable", message + gang.unready_text(self._dialect))
        else:
            self._recorder.normal(gang.group, "Scheduled", "pod group is ready")
        for task in gang.in_state("Pending"):
            reason, why = gang.scheduling(task, self._dialect, text)
            self._tell_pod(task.pod, reason, why or "all nodes are unavailable")

    def _save_status(self, group: Object, status: Object) -> Object:
        meta = group["metadata"]
        try:
            saved = self._api.patch("podgroups", meta["namespace"], meta["name"], {"status": status})
        except ApiError as error:
            if error.code != 404:
                raise
            return group
        self._cluster.put("podgroups", saved)
        return saved

    def _tell_pod(self, pod: Object, reason: str, message: str) -> None:
        meta = pod["metadata"]
        for known in pod["status"].get("conditions", []):
            if known["type"] == "PodScheduled" and (known.get("reason"), known.get("message")) == (reason, message):
                return
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message,
                     "lastTransitionTime": now()}  # fmt: skip
        self._recorder.warning(pod, "FailedScheduling", message)
        try:
            self._api.patch("pods", meta["namespace"], meta["name"], {"status": {"conditions": [condition]}}, "status")
        except ApiError as error:
            if error.code != 404:
                raise


def _promised(gang: Gang) -> Amounts:
    """What a group has, or will have now that it is let in."""
    if gang.phase == "Pending":
        return gang.allocated
    return total([gang.allocated, _waiting(gang)])


def _waiting(gang: Gang) -> Amounts:
    if gang.phase != "Inqueue":
        return {}
    return {name: max(amount, Fraction(0)) for name, amount in minus(gang.min_resources, gang.allocated).items()}


def _condition(kind: str, reason: str, message: str) -> Object:
    condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": now(),
                 "transitionID": os.urandom(16).hex()}  # fmt: skip
    return {**condition, "message": message} if message else condition


def _phase(gang: Gang, is_unschedulable: bool) -> str:
    if gang.in_state("Running") and is_unschedulable:
        return "Unknown"
    if len(gang.in_state(*ALLOCATED, "Succeeded")) >= gang.min_member:
        return "Running"
    return "Inqueue" if gang.phase == "Inqueue" else "Pending"


def _without_times(status: Object) -> Object:
    """What is worth writing; what is zero is not written by the server's side either."""
    conditions = [
        {name: value for name, value in each.items() if name not in ("lastTransitionTime", "transitionID")}
        for each in status.get("conditions", [])
    ]
    return {**{name: value for name, value in status.items() if value}, "conditions": conditions}
