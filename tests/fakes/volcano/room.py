"""What is free on each node, and why a pod cannot go there."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from api import Object
from cluster import Cluster
from dialects import Dialect
from objects import is_terminating, phase, pod_request
from quantities import Amounts, amounts, minus, missing, total

EFFECTS = ("NoSchedule", "NoExecute")
ONE_POD = amounts({"pods": 1})


@dataclass
class Node:
    """`releasing` is what pods that are being deleted still hold: it is not free yet."""

    node: Object
    free: Amounts
    releasing: Amounts

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    def why_not(self, pod: Object, dialect: Dialect, with_releasing: bool = False) -> str:
        """Why a pod cannot run here; empty when it can."""
        if self.node["spec"].get("unschedulable"):
            return "node(s) were unschedulable"
        for taint in self.node["spec"].get("taints", []):
            if taint["effect"] in EFFECTS and not _is_tolerated(taint, pod):
                words = f"{taint['key']}: {taint.get('value', '')}"
                return f"node(s) had taint {{{words}}}, that the pod didn't tolerate"
        labels = self.node["metadata"].get("labels", {})
        if any(labels.get(name) != value for name, value in pod["spec"].get("nodeSelector", {}).items()):
            return "node(s) didn't match Pod's node affinity"
        free = total([self.free, self.releasing]) if with_releasing else self.free
        if missing(ONE_POD, free):
            return "node(s) pod number exceeded"
        if short := missing(pod_request(pod["spec"]), free):
            return f"Insufficient {short[0]}" if dialect.names_resources else "node(s) resource fit failed"
        return ""

    def take(self, pod: Object) -> None:
        self.free = minus(self.free, total([pod_request(pod["spec"]), ONE_POD]))


def _is_tolerated(taint: Object, pod: Object) -> bool:
    for toleration in pod["spec"].get("tolerations", []):
        if toleration.get("effect") in (None, "", taint["effect"]) and (
            (toleration.get("operator") == "Exists" and toleration.get("key", "") in ("", taint["key"]))
            or (toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))
        ):
            return True
    return False


def node_of(pod: Object, assumed: dict[str, str]) -> str:
    return str(pod["spec"].get("nodeName") or assumed.get(pod["metadata"]["uid"], ""))


def has_ended(pod: Object) -> bool:
    return phase(pod) in ("Succeeded", "Failed")


def nodes(cluster: Cluster, assumed: dict[str, str]) -> list[Node]:
    """The nodes; `assumed` has where pods were sent of which the server has not told yet, by uid."""
    on: dict[str, list[Object]] = {}
    for pod in cluster.all("pods"):
        if (name := node_of(pod, assumed)) and not has_ended(pod):
            on.setdefault(name, []).append(pod)
    found = []
    for node in cluster.all("nodes"):
        pods = on.get(node["metadata"]["name"], [])
        used = total(total([pod_request(pod["spec"]), ONE_POD]) for pod in pods)
        leaving = total(total([pod_request(pod["spec"]), ONE_POD]) for pod in pods if is_terminating(pod))
        found.append(Node(node, minus(amounts(node["status"].get("allocatable")), used), leaving))
    return sorted(found, key=lambda node: node.name)


def claim_problem(cluster: Cluster, pod: Object) -> str:
    """What is wrong with the volumes that a pod claims; empty when nothing is."""
    for volume in pod["spec"].get("volumes", []):
        name = volume.get("persistentVolumeClaim", {}).get("claimName")
        if name is None:
            continue
        claim = cluster.get("persistentvolumeclaims", pod["metadata"]["namespace"], name)
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if phase(claim) != "Bound" and not _waits_for_a_pod(cluster, claim):
            return "pod has unbound immediate PersistentVolumeClaims"
    return ""


def _waits_for_a_pod(cluster: Cluster, claim: Object) -> bool:
    storage = cluster.get("storageclasses", "", claim["spec"].get("storageClassName", ""))
    return storage is not None and storage.get("volumeBindingMode") == "WaitForFirstConsumer"


class FitErrors:
    """Why a pod fits on no node."""

    def __init__(self, reasons: list[str], dialect: Dialect) -> None:
        counted = ", ".join(sorted(f"{count} {reason}" for reason, count in Counter(reasons).items()))
        where = f"0/{len(reasons)} nodes are unavailable" if dialect.names_resources else "all nodes are unavailable"
        self.text = f"{where}: {counted}." if reasons else where
