"""A private Kubernetes on this machine: a real control plane, and nodes that run pods as local processes.

    with K8sBed(K8sSettings(nodes=2, gpus=8)) as k8s:
        k8s.make_volume("data")                     # a PVC, bound; its files: k8s.volume("data")
        k8s.kubectl("create", "-f", "-", input=json.dumps(manifest))
        k8s.wait_for_phase("a-pod", "Succeeded")
        subprocess.run(["kubectl", "--kubeconfig", k8s.kubeconfig, "get", "pods"])

Everything is in namespaces of the bed, with a network of its own, and ends with it. `kubectl` runs anywhere on this
machine with `k8s.kubeconfig`, through `k8s.relay`, which can delay, swallow or refuse what goes through.
The kubeconfig has two contexts, `admin` and `ordinary`; the latter's user has no rights until a test gives it some.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ports import Ports

from .bed import HERE, Bed, BedError, wait_for
from .kubernetes.api import ApiError, Object
from .kubernetes.control_plane import PORT, ControlPlane
from .kubernetes.faults import Fault, Faults
from .kubernetes.nodes import GATEWAY, Node, make_network
from .needs import SEARCH_PATH
from .relay import Relay

CLUSTER_WIDE = ("PersistentVolume", "PriorityClass", "Queue")


@dataclass(frozen=True)
class K8sSettings:
    """Nodes are called n1, n2 ...; each has these resources."""

    nodes: int = 2
    cpus: int = 16
    memory_gib: int = 64
    gpus: int = 8
    max_pods: int = 110
    # Further resources of each node, such as {"rdma/hca": 4}.
    resources: Mapping[str, int] = field(default_factory=dict)
    # How long a node may be silent before it is NotReady. Its pods are kept five minutes then, unless they say less.
    node_grace_s: int = 10


class K8sBed(Bed):
    """A context manager."""

    name = "k8s"
    # What a test may leave: first what would make the rest again.
    LEFT: Sequence[tuple[str, str]] = (
        ("/apis/batch/v1", "jobs"),
        ("/api/v1", "pods"),
        ("/api/v1", "persistentvolumeclaims"),
    )

    def __init__(self, settings: K8sSettings | None = None) -> None:
        self.settings = settings or K8sSettings()
        self.node_names = [f"n{index}" for index in range(1, self.settings.nodes + 1)]
        # Where kubectl looks and where objects are made when nothing else is said.
        self.namespace = "default"
        self._volumes: dict[str, list[str]] = {}
        self._away: set[str] = set()
        self._ports = Ports()
        super().__init__()

    def _up(self) -> None:
        make_network(self)
        # Before the nodes are up: they do not see what is mounted later.
        self.run("mkdir", f"{self.directory}/small")
        self.run("mount", "-t", "tmpfs", "-o", "size=1m", "small", f"{self.directory}/small")
        self._plane = ControlPlane(
            self,
            [
                f"--node-monitor-grace-period={self.settings.node_grace_s}s",
                "--node-monitor-period=1s",
                "--node-eviction-rate=10",
                "--secondary-node-eviction-rate=10",
            ],
        )
        self.api = self._plane.api
        self._port = self._ports.take()
        certificate = self.outside(self._plane.certificate)
        key = certificate.removesuffix(".crt") + ".key"
        self._faults = Faults(lambda: self.dial("127.0.0.1", PORT), certificate, key)
        self.relay = Relay(self._port, self._faults.connect)
        self._plane.up(self._prepare)
        self._start_nodes()
        self._start_dns()
        self.wait_for_nodes()
        self.enter_namespace(self.namespace)

    def _start_nodes(self) -> None:
        inside = self._plane.write_kubeconfig(f"{self.directory}/inside.kubeconfig", PORT)
        hardware = {
            "Cpus": self.settings.cpus,
            "MemoryB": self.settings.memory_gib << 30,
            "Resources": {"nvidia.com/gpu": self.settings.gpus, **self.settings.resources},
            "MaxPods": self.settings.max_pods,
        }
        self._nodes = {
            name: Node(self, name, number, inside, hardware) for number, name in enumerate(self.node_names, start=1)
        }
        for node in self._nodes.values():
            node.up()

    def _start_dns(self) -> None:
        dns = [sys.executable, "-B", "-m", "beds.kubernetes.dns", GATEWAY, "53"]
        self.start(
            [*dns, self._plane.certificate, self._plane.token_file],
            f"{self.directory}/log/dns.log",
            PYTHONPATH=os.path.dirname(HERE),
        )

    def _prepare(self) -> None:
        """Make the kinds that the controllers must know: for later ones they look every 30 s only."""

    def close(self) -> None:
        if hasattr(self, "relay"):
            self.relay.close()
        super().close()
        self._ports.close()

    # What a test asks and does.

    @property
    def kubeconfig(self) -> str:
        return self.outside(f"{self.directory}/kubeconfig")

    def kubectl(
        self, *words: str, input: str | None = None, check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl with captured text."""
        done = subprocess.run(
            ["kubectl", *words], env={**os.environ, "PATH": SEARCH_PATH, "KUBECONFIG": self.kubeconfig}, input=input,
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise BedError(f"kubectl {' '.join(words)}: exit status {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def create(self, *objects: Mapping[str, Any]) -> None:
        for each in objects:
            self.api.create(self._path_of(each), each)

    def _path_of(self, made: Mapping[str, Any]) -> str:
        """Where objects of this kind are made."""
        plural = made["kind"].lower() + ("es" if made["kind"].endswith("s") else "s")
        if made["kind"] not in CLUSTER_WIDE:
            plural = f"namespaces/{self.namespace}/{plural}"
        return f"/{'apis' if '/' in made['apiVersion'] else 'api'}/{made['apiVersion']}/{plural}"

    def get(self, kind: str, name: str) -> Object:
        """What kubectl shows of one object; BedError where there is none."""
        return json.loads(self.kubectl("get", kind, name, "-o", "json").stdout)

    def pod(self, name: str) -> Object:
        return self.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def make_volume(self, name: str, size: str = "10Gi", is_small: bool = False) -> str:
        """A bound PVC of this name that many pods can mount; the answer is where this process finds its files.

        Nobody looks at `size`; on one that is small there is room for less than 1 MiB.
        """
        volume = f"{self.namespace}-{name}"
        path = f"{self.directory}/{'small' if is_small else 'volumes'}/{volume}"
        os.makedirs(self.outside(path))
        modes = ["ReadWriteMany"]
        claim = {"namespace": self.namespace, "name": name}
        self.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "capacity": {"storage": size},
                    "accessModes": modes,
                    "hostPath": {"path": path},
                    "claimRef": claim,
                    "storageClassName": "",
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {
                    "accessModes": modes,
                    "resources": {"requests": {"storage": size}},
                    "storageClassName": "",
                    "volumeName": volume,
                },
            },
        )
        self._volumes.setdefault(self.namespace, []).append(volume)
        path_of_claim = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/{name}"
        wait_for(lambda: self.api.get(path_of_claim)["status"].get("phase") == "Bound", f"PVC {name} to be bound")
        return self.outside(path)

    def wait_for_phase(self, pod: str, phase: str, limit_s: float = 120) -> Object:
        """The pod as soon as it is in this phase."""

        def status() -> Object:
            try:
                return self.pod(pod)["status"]
            except ApiError as error:
                return {"error": str(error)}

        wait_for(
            lambda: status().get("phase") == phase,
            lambda: f"pod {pod} to be {phase}: {status()}",
            limit_s=limit_s,
            every_s=0.05,
        )
        return self.pod(pod)

    def enter_namespace(self, namespace: str) -> None:
        """Make a Kubernetes namespace where there is none, and use it from now on."""
        self.namespace = namespace
        try:
            self.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        except ApiError as error:
            if error.status != 409:
                raise
        self._plane.write_kubeconfig(f"{self.directory}/kubeconfig", self._port, namespace)
        # Until then pods are refused.
        wait_for(self._takes_pods, f"the service account of namespace {namespace} has a token")

    def _takes_pods(self) -> bool:
        probe = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
        try:
            self.api.create(f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All", probe)
        except ApiError:
            return False
        return True

    def heal(self) -> None:
        """After a test: undo faults, and end what it left in its namespace.

        The namespace itself stays: its end would keep the controllers busy for seconds, and the next tests with them.
        """
        if not self._plane.is_api_server_up:
            self.apiserver_up()
        for name in sorted(self._away):
            self.node_back(name)
        for name in self.node_names:
            if not self._nodes[name].is_up():
                self.node_start(name)
        for group, kind in self.LEFT:
            self.api.delete(
                f"{group}/namespaces/{self.namespace}/{kind}",
                {"gracePeriodSeconds": 0, "propagationPolicy": "Background"},
            )
        for node in self._nodes.values():
            node.clear(self.namespace)
        for volume in self._volumes.pop(self.namespace, []):
            self.api.delete(f"/api/v1/persistentvolumes/{volume}")
            for folder in ("small", "volumes"):
                shutil.rmtree(self.outside(f"{self.directory}/{folder}/{volume}"), ignore_errors=True)

    # Nodes.

    def wait_for_nodes(self, limit_s: float = 90) -> None:
        """Until all of them are Ready."""

        def ready() -> set[str]:
            return {item["metadata"]["name"] for item in self.api.get("/api/v1/nodes")["items"] if is_ready(item)}

        def trouble() -> str:
            away = sorted(set(self.node_names) - ready())
            return f"nodes {away} to be ready: {[self._nodes[name].log() for name in away]}"

        wait_for(lambda: ready() == set(self.node_names), trouble, limit_s=limit_s, every_s=0.1)

    def node_of(self, pod: str) -> Node:
        return self._nodes[self.pod(pod)["spec"]["nodeName"]]

    def node_away(self, name: str, limit_s: float = 60) -> None:
        """Its kubelet falls silent; returns when the control plane takes it as NotReady. What runs there goes on."""
        self._nodes[name].stop()
        self._away.add(name)
        wait_for(lambda: not self._is_ready(name), f"node {name} to be NotReady", limit_s=limit_s, every_s=0.1)

    def node_back(self, name: str) -> None:
        self._nodes[name].go_on()
        self._away.discard(name)
        self.wait_for_nodes()

    def node_kill(self, name: str) -> None:
        """Its power fails: all that ran on it is gone at once. The control plane sees that after `node_grace_s`."""
        self._nodes[name].kill()

    def node_start(self, name: str) -> None:
        """After `node_kill`."""
        self._nodes[name].up()
        self.wait_for_nodes()

    def _is_ready(self, name: str) -> bool:
        return is_ready(self.api.get(f"/api/v1/nodes/{name}"))

    # Faults of pods.

    def evict(self, pod: str) -> Object:
        """Make its node run out of memory because of this pod; the answer is the pod when it is Failed and Evicted.

        Then the node has memory again: as long as it says that it has none, it may evict what it is given next.
        """
        node = self.node_of(pod)
        for directory in node.containers(self.namespace, pod):
            with open(f"{directory}/memory", "w", encoding="ascii") as file:
                file.write(str(self.settings.memory_gib << 30))
        wait_for(lambda: self._lacks_memory(node.name), f"node {node.name} to run out of memory", every_s=0.05)
        failed = self.wait_for_phase(pod, "Failed")
        wait_for(lambda: not self._lacks_memory(node.name), f"node {node.name} to have memory again", every_s=0.05)
        return failed

    def _lacks_memory(self, node: str) -> bool:
        found = self.api.get(f"/api/v1/nodes/{node}")
        pressed = [each["status"] for each in found["status"]["conditions"] if each["type"] == "MemoryPressure"]
        taints = [taint["key"] for taint in found["spec"].get("taints", [])]
        return pressed != ["False"] or "node.kubernetes.io/memory-pressure" in taints

    def oom_kill(self, pod: str) -> None:
        """Kill its container as the kernel does with one that is over its memory limit: exit code 137."""
        node = self.node_of(pod)
        directory = node.containers(self.namespace, pod)[-1]
        with open(f"{directory}/oom", "w", encoding="ascii"):
            node.kill_container(directory)

    # Faults of the API server.

    def apiserver_down(self) -> None:
        """kubectl is refused the connection; pods go on."""
        self.relay.refuse()
        self._plane.stop_api_server()

    def apiserver_up(self) -> None:
        self._plane.start_api_server()
        self.relay.listen()

    def answering(self, status: int, message: str = "", **fault: Any) -> contextlib.AbstractContextManager[Fault]:
        """kubectl's requests are answered so instead of by the API server; the rest are fields of `Fault`."""
        return self._faults.during(Fault(status, message, **fault))

    def losing_answers(self, **fault: Any) -> contextlib.AbstractContextManager[Fault]:
        """kubectl's requests are carried out, and the connection breaks before it has the answer."""
        return self._faults.during(Fault(0, **fault))


def is_ready(node: Object) -> bool:
    """Whether the control plane takes it as Ready."""
    states = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
    return states.get("Ready") == "True" and not any(
        taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints", [])
    )
