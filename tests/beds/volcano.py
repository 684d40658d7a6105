"""A private Kubernetes with Volcano: its real resource definitions, and a stand-in for its programs.

    with VolcanoBed(VolcanoSettings(release="master", nodes=1)) as volcano:
        volcano.create(job)                          # a Job, as data
        volcano.wait_for_job("a", "Running")
        volcano.preempt("a")

The stand-in (`tests/fakes/volcano`) is controller, scheduler and admission in one process: it makes PodGroups and pods
of Jobs, places gangs on the nodes, keeps phases, conditions and events, and refuses what Volcano refuses, in its words.
The pods run as all pods of `K8sBed` do.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .bed import BedError, wait_for
from .k8s import K8sBed, K8sSettings
from .kubernetes.api import ApiError, Object
from .volcano_schema import definitions, for_server

PROGRAM = Path(__file__).parents[1] / "fakes" / "volcano"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOBS = "/apis/batch.volcano.sh/v1alpha1"
SCHEDULING = "/apis/scheduling.volcano.sh/v1beta1"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
COMMANDS = "/apis/bus.volcano.sh/v1alpha1"
JOB_NAME = "volcano.sh/job-name"


@dataclass(frozen=True)
class VolcanoSettings(K8sSettings):
    """`release` is "v1.5.1" or "master"."""

    release: str = "v1.5.1"


class VolcanoBed(K8sBed):
    """A context manager."""

    settings: VolcanoSettings
    LEFT = ((JOBS, "jobs"), (SCHEDULING, "podgroups"), *K8sBed.LEFT)

    def __init__(self, settings: VolcanoSettings | None = None) -> None:
        super().__init__(settings or VolcanoSettings())

    def _up(self) -> None:
        super()._up()
        self._folder = f"{self.directory}/volcano"
        os.mkdir(self.outside(self._folder))
        self.start_volcano()

    def _prepare(self) -> None:
        for definition in definitions(self.settings.release):
            self.api.create(DEFINITIONS, for_server(definition))
        wait_for(self._knows_all_kinds, "Volcano's resource definitions are established", limit_s=90)

    def heal(self) -> None:
        self._switch({})
        if not self.alive(self._pid):
            self.start_volcano()
        super().heal()
        for kind, kept in ((f"{SCHEDULING}/queues", "default"), (PRIORITIES, "system-")):
            for item in self.api.get(kind)["items"]:
                if not item["metadata"]["name"].startswith(kept):
                    self.api.delete(f"{kind}/{item['metadata']['name']}")

    # Jobs.

    def revisions(self) -> list[str]:
        """What is in the namespace, in which states: another answer when something has changed that tells of Jobs."""
        kinds = ((JOBS, "jobs"), (SCHEDULING, "podgroups"), ("/api/v1", "pods"), ("/api/v1", "events"))
        try:
            lists = [self.api.get(f"{group}/namespaces/{self.namespace}/{kind}")["items"] for group, kind in kinds]
        except (ApiError, OSError) as error:
            return [str(error), str(time.monotonic())]
        return [f"{item['metadata']['uid']} {item['metadata']['resourceVersion']}" for items in lists for item in items]

    def job(self, name: str) -> Object:
        return self.api.get(f"{JOBS}/namespaces/{self.namespace}/jobs/{name}")

    def job_phase(self, name: str) -> str:
        """Empty as long as no controller has looked at the Job."""
        return self.job(name).get("status", {}).get("state", {}).get("phase", "")

    def wait_for_job(self, name: str, *phases: str, limit_s: float = 90) -> Object:
        """The Job as soon as it is in one of these phases."""

        def state() -> str:
            try:
                return self.job_phase(name)
            except ApiError as error:
                return str(error)

        wait_for(
            lambda: state() in phases,
            lambda: f"Job {name} to be {phases}: {self.tell(name)}",
            limit_s=limit_s,
            every_s=0.02,
        )
        return self.job(name)

    def pods(self, job: str) -> dict[str, Object]:
        """The pods of a Job by name."""
        listed = self.api.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={JOB_NAME}%3D{job}")
        return {pod["metadata"]["name"]: pod for pod in listed["items"]}

    def podgroup(self, job: str) -> Object | None:
        """The PodGroup of a Job; a Job that ended has none."""
        for group in self.api.get(f"{SCHEDULING}/namespaces/{self.namespace}/podgroups")["items"]:
            if group["metadata"]["ownerReferences"][0]["name"] == job:
                return group
        return None

    def unschedulable(self, job: str) -> str:
        """What the PodGroup's condition says; empty when it has none."""
        conditions = (self.podgroup(job) or {}).get("status", {}).get("conditions", [])
        return next((each["message"] for each in conditions if each["type"] == "Unschedulable"), "")

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Kind of object, reason and message of what was recorded about objects of this name."""
        found = self.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [
            (event["involvedObject"]["kind"], event["reason"], event["message"])
            for event in found
            if event["involvedObject"]["name"] == name
        ]

    def has_event(self, kind: str, name: str, message: str, reason: str = "Evict") -> bool:
        return any((a, b) == (kind, reason) and message in text for a, b, text in self.events(name))

    def wait_for_event(self, name: str, kind: str, reason: str, message: str, limit_s: float = 90) -> None:
        """`message` may be a part of it. Events are written a moment after what they tell of."""

        def is_told() -> bool:
            return self.has_event(kind, name, message, reason)

        wait_for(
            is_told, lambda: f"event {reason} of {kind} {name}: {self.events(name)}", limit_s=limit_s, every_s=0.05
        )

    def tell(self, job: str) -> str:
        """All that is known of a Job, for messages."""
        try:
            status = self.job(job).get("status")
        except ApiError as error:
            return str(error)
        pods = {name: (pod["spec"].get("nodeName"), pod["status"]) for name, pod in self.pods(job).items()}
        return f"{status}, pods {pods}, {self.unschedulable(job)}\n{self.log_tail(self._log)}"

    # What people do.

    def command(self, action: str, name: str, kind: str = "Job") -> None:
        """What `vcctl` does: AbortJob and ResumeJob of a Job, CloseQueue and OpenQueue of a Queue."""
        is_job = kind == "Job"
        target = self.job(name) if is_job else self.api.get(f"{SCHEDULING}/queues/{name}")
        owner = {field: target[field] for field in ("apiVersion", "kind")}
        owner |= {field: target["metadata"][field] for field in ("name", "uid")}
        meta = {"generateName": f"{name}-{action.lower()}-", "ownerReferences": [owner]}
        body = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": meta, "action": action}
        self.api.create(f"{COMMANDS}/namespaces/{self.namespace}/commands", {**body, "target": owner})

    def make_queue(self, name: str, **spec: Any) -> None:
        """`spec` is that of a Queue: `capability`, `weight`. Returns when the queue is open."""
        body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
        self.api.create(f"{SCHEDULING}/queues", {**body, "spec": {"weight": 1, **spec}})
        self.wait_for_queue(name, "Open")

    def queue(self, name: str) -> Object:
        return self.api.get(f"{SCHEDULING}/queues/{name}")

    def make_priority(self, name: str, value: int) -> None:
        """A PriorityClass, for Jobs and their pods."""
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        self.api.create(PRIORITIES, {**body, "value": value})

    def wait_for_queue(self, name: str, state: str) -> None:
        wait_for(lambda: self.queue(name).get("status", {}).get("state") == state, f"queue {name} to be {state}")

    # Faults.

    def preempt(self, job: str, index: int | None = None, reason: str = "preempt") -> None:
        """What Volcano's scheduler does to a victim: to all pods of a Job, or to those with one index."""
        group = self.podgroup(job)
        for name, pod in self.pods(job).items():
            if index is not None and not name.endswith(f"-{index}"):
                continue
            message = f"Pod is evicted, because of {reason}"
            self._record(pod, "Warning", "Evict", message)
            if group is not None:
                self._record(group, "Normal", "Evict", reason)
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
            conditions = [each for each in pod["status"].get("conditions", []) if each["type"] != "Ready"]
            conditions.append({"type": "Ready", "status": "False", "reason": "Evict", "message": message})
            self.api.patch(f"{path}/status", {"status": {"conditions": conditions}})
            self.api.delete(path)

    def lose(self, job: str) -> None:
        """Somebody deletes the Job: its pods end after it."""
        self.api.delete(f"{JOBS}/namespaces/{self.namespace}/jobs/{job}")

    @contextlib.contextmanager
    def paused(self, *components: str) -> Iterator[None]:
        """`controller`: Jobs stay as they are; `scheduler`: no pod is placed."""
        with self._switched(paused=components):
            yield

    @contextlib.contextmanager
    def hanging_webhook(self) -> Iterator[None]:
        """Admission takes requests and does not answer, and the API server waits a second for it."""
        self._wait_for_webhooks(1)
        try:
            with self._switched(webhook="hang"):
                yield
        finally:
            self._wait_for_webhooks(10)

    def _wait_for_webhooks(self, timeout_s: int) -> None:
        for kind in ("mutating", "validating"):
            configurations = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
            for each in self.api.get(configurations)["items"]:
                webhooks = [{**webhook, "timeoutSeconds": timeout_s} for webhook in each["webhooks"]]
                self.api.patch(f"{configurations}/{each['metadata']['name']}", {"webhooks": webhooks})

    def preempting(self) -> contextlib.AbstractContextManager[None]:
        """The scheduler evicts pods for more important ones of a queue.

        As Volcano is installed, it keeps a group that is too large for the cluster from coming in instead.
        """
        return self._switched(preempts=True)

    @contextlib.contextmanager
    def _switched(self, **switches: object) -> Iterator[None]:
        self._switch(switches)
        try:
            yield
        finally:
            self._switch({})

    def _switch(self, switches: object) -> None:
        path, text = f"{self._folder}/switches.json", json.dumps(switches)
        self.write(f"{path}.new", text)
        os.replace(self.outside(f"{path}.new"), self.outside(path))
        seen = Path(self.outside(f"{self._folder}/switches.seen"))
        is_obeyed = lambda: not self.alive(self._pid) or (seen.exists() and seen.read_text() == text)  # noqa: E731
        wait_for(is_obeyed, lambda: f"the switches {text} are not obeyed:\n{self.log_tail(self._log)}", every_s=0.02)

    def stop_volcano(self) -> None:
        """Outright: pods go on, and new Jobs are refused."""
        self.kill(self._pid)

    def start_volcano(self) -> None:
        self._log = f"{self.directory}/log/volcano.log"
        words = [
            sys.executable, "-B", str(PROGRAM), f"--kubeconfig={self.directory}/inside.kubeconfig",
            f"--directory={self._folder}", f"--release={self.settings.release}",
        ]  # fmt: skip
        self._ready = self.outside(f"{self._folder}/ready")
        Path(self._ready).unlink(missing_ok=True)
        self._pid = self.start(words, self._log)
        wait_for(self._serves, lambda: f"Volcano is not ready:\n{self.log_tail(self._log)}", limit_s=90)

    # Inside.

    def _knows_all_kinds(self) -> bool:
        found = self.api.get(DEFINITIONS)["items"]
        return all(
            ("Established", "True") in [(each["type"], each["status"]) for each in item["status"]["conditions"] or ()]
            for item in found
        )

    def _serves(self) -> bool:
        if not self.alive(self._pid):
            raise BedError(f"Volcano ended:\n{self.log_tail(self._log)}")
        return os.path.exists(self._ready) and self._admits()

    def _admits(self) -> bool:
        """Whether admission is asked: the API server may still have connections to one that has ended."""
        meta = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "none"}}
        try:
            self.api.create(f"{JOBS}/namespaces/default/jobs?dryRun=All", {**meta, "spec": {}})
        except ApiError as error:
            return "denied the request" in str(error)
        return False

    def _record(self, about: Object, kind: str, reason: str, message: str) -> None:
        meta = about["metadata"]
        involved = {name: meta[name] for name in ("name", "namespace", "uid")}
        event = {
            "metadata": {"generateName": f"{meta['name'][:200]}-", "namespace": self.namespace},
            "involvedObject": {"kind": about.get("kind", "Pod"), **involved},
            "type": kind, "reason": reason, "message": message, "source": {"component": "volcano"}, "count": 1,
        }  # fmt: skip
        self.api.create(f"/api/v1/namespaces/{self.namespace}/events", event)
