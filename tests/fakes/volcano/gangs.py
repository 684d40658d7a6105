"""A PodGroup with its pods, as the scheduler sees them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from api import Object
from cluster import Cluster
from dialects import Dialect
from objects import GROUP_NAME, SCHEDULER, TASK_SPEC, annotation, is_terminating, key, phase, pod_request
from quantities import Amounts, amounts, total
from room import FitErrors, node_of

# The states of a task that hold resources, or did until it succeeded.
ALLOCATED = ("Allocated", "Binding", "Bound", "Running")
# Names as in a ResourceQuota: no resources of a node.
QUOTA_PREFIXES = ("requests.", "limits.", "count/")


@dataclass
class Task:
    """`try_node` is where it would go; `fit_errors` why it goes nowhere; neither when it was not tried."""

    pod: Object
    state: str
    node: str
    try_node: str = ""
    fit_errors: FitErrors | None = None

    @property
    def request(self) -> Amounts:
        return pod_request(self.pod["spec"])


@dataclass
class Gang:
    group: Object
    priority: int
    tasks: list[Task] = field(default_factory=list)
    problem: tuple[str, str] | None = None
    # Whether the scheduler has let it in just now.
    is_let_in: bool = False

    @property
    def queue(self) -> str:
        return str(self.group["spec"].get("queue", "default"))

    @property
    def phase(self) -> str:
        return "Inqueue" if self.is_let_in else phase(self.group) or "Pending"

    @property
    def min_member(self) -> int:
        return int(self.group["spec"].get("minMember", 0))

    @property
    def min_resources(self) -> Amounts:
        wanted = amounts(self.group["spec"].get("minResources"))
        return {name: amount for name, amount in wanted.items()
                if name != "pods" and not name.startswith(QUOTA_PREFIXES)}  # fmt: skip

    @property
    def allocated(self) -> Amounts:
        return total(task.request for task in self.tasks if task.state in ALLOCATED)

    def in_state(self, *states: str) -> list[Task]:
        return [task for task in self.tasks if task.state in states]

    def ready(self) -> int:
        return len(self.in_state(*ALLOCATED, "Succeeded"))

    def is_ready(self) -> bool:
        return self.ready() >= self.min_member and self._is_each_task_ready()

    def _is_each_task_ready(self) -> bool:
        members: dict[str, int] = self.group["spec"].get("minTaskMember") or {}
        if self.min_member < sum(members.values()):
            return True
        begun = Counter(annotation(task.pod, TASK_SPEC) for task in self.in_state(*ALLOCATED, "Succeeded"))
        return all(begun[name] >= least for name, least in members.items())

    def why_invalid(self) -> tuple[str, str] | None:
        """Reason and message where even all pods that are there would not be enough."""
        valid = len(self.in_state(*ALLOCATED, "Succeeded", "Pending"))
        if valid >= self.min_member:
            return None
        message = f"Not enough valid tasks for gang-scheduling, valid: {valid}, min: {self.min_member}"
        return "NotEnoughTasks", message

    def unready_text(self, dialect: Dialect) -> str:
        counts = [*Counter(task.state for task in self.tasks).items(), ("minAvailable", self.min_member)]
        text = f"pod group is not ready, {_histogram(dict(counts))}"
        pending = self.in_state("Pending")
        if pending:
            text += f"; Pending: {_histogram(Counter(self.scheduling(task, dialect, '')[0] for task in pending))}"
        failed = [task for task in self.tasks if task.fit_errors is not None]
        if dialect.names_resources and failed:
            text += f". Origin reason is {failed[0].pod['metadata']['name']}: {failed[0].fit_errors.text}"
        return text

    def unschedulable(self, dialect: Dialect) -> str:
        could = sum(1 for task in self.in_state("Pending") if task.try_node)
        short = self.min_member - could - self.ready()
        return f"{short}/{len(self.tasks)} tasks in gang unschedulable: {self.unready_text(dialect)}"

    def scheduling(self, task: Task, dialect: Dialect, otherwise: str) -> tuple[str, str]:
        """Reason and message of a pending pod's condition."""
        meta = task.pod["metadata"]
        if task.fit_errors is not None:
            return "Unschedulable", task.fit_errors.text
        if task.try_node:
            when = ", once minAvailable is satisfied" if dialect.names_resources else ""
            where = f"{meta['namespace']}/{meta['name']} can possibly be assigned to {task.try_node}"
            return "Schedulable", f"Pod {where}{when}"
        return ("Unschedulable" if dialect.names_resources else "Undetermined"), otherwise


def _histogram(counts: dict[str, int]) -> str:
    return ", ".join(sorted(f"{count} {name}" for name, count in counts.items()))


def gangs(cluster: Cluster, assumed: dict[str, str]) -> list[Gang]:
    """All PodGroups, the most important and then the oldest first."""
    priorities = {item["metadata"]["name"]: item["value"] for item in cluster.all("priorityclasses")}
    found: dict[tuple[str, str], Gang] = {}
    for group in cluster.all("podgroups"):
        if not is_terminating(group):
            found[key(group)] = Gang(group, priorities.get(group["spec"].get("priorityClassName"), 0))
    for pod in cluster.all("pods"):
        gang = found.get((pod["metadata"]["namespace"], annotation(pod, GROUP_NAME)))
        if gang is not None and pod["spec"].get("schedulerName") == SCHEDULER:
            node = node_of(pod, assumed)
            gang.tasks.append(Task(pod, _state(pod, node), node))
    for gang in found.values():
        gang.tasks.sort(key=_task_order)
    return sorted(found.values(), key=_order)


def _task_order(task: Task) -> tuple[int, int, str]:
    name = task.pod["metadata"]["name"]
    index = name.rpartition("-")[2]
    return -task.pod["spec"].get("priority", 0), int(index) if index.isdigit() else 0, name


def _order(gang: Gang) -> tuple[int, str, str]:
    meta = gang.group["metadata"]
    return -gang.priority, meta["creationTimestamp"], meta["uid"]


def _state(pod: Object, node: str) -> str:
    if phase(pod) in ("Succeeded", "Failed"):
        return phase(pod)
    if is_terminating(pod):
        return "Releasing"
    if phase(pod) == "Running":
        return "Running"
    if phase(pod) == "Pending":
        return "Bound" if node else "Pending"
    return "Unknown"
