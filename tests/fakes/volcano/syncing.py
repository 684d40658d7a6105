"""Carries out what is to be done with a Job: makes its PodGroup and pods, or deletes them, and writes its status."""

from __future__ import annotations

import copy
from collections import Counter

import plugins
from admission import DEFAULT_RETRIES
from api import Api, ApiError, Object
from cluster import Cluster
from dialects import Dialect
from objects import JOB_NAME, TASK_SPEC, annotation, is_terminating, job_phase, now, phase, seconds_since, tasks
from pods import new_pod, new_podgroup, pod_name, podgroup_name
from policies import Request
from recorder import Recorder
from states import ENDED, FINISHED, Kill, Sync, Update

COUNTED = ("pending", "running", "succeeded", "failed", "terminating", "unknown")
COUNT_OF = {"Pending": "pending", "Running": "running", "Succeeded": "succeeded", "Failed": "failed"}


class Counts:
    """How many pods are in which phase, in all and by task."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self._by_task: dict[str, Counter[str]] = {}

    def add(self, pod: Object) -> None:
        self.total[COUNT_OF.get(phase(pod), "unknown")] += 1
        task = annotation(pod, TASK_SPEC)
        self._by_task.setdefault(task, Counter())[phase(pod) or "Unknown"] += 1

    def write(self, status: Object) -> None:
        for name in COUNTED:
            if self.total[name]:
                status[name] = self.total[name]
            else:
                status.pop(name, None)
        status["taskStatusCount"] = {task: {"phase": dict(counts)} for task, counts in self._by_task.items()}


class Pods:
    def __init__(self, api: Api, cluster: Cluster, dialect: Dialect, recorder: Recorder) -> None:
        self._api, self._cluster, self._dialect, self._recorder = api, cluster, dialect, recorder

    def carry_out(self, job: Object, what: Sync | Kill, request: Request) -> Object | None:
        """The Job as it is then."""
        if isinstance(what, Sync):
            return self._sync(job, what.update)
        return job if self._is_over(job, what) else self._kill(job, what, request)

    def is_task_completed(self, pod: Object) -> bool:
        """Whether all pods of a pod's task have succeeded."""
        task_name = annotation(pod, TASK_SPEC)
        job = self._cluster.get("jobs", pod["metadata"]["namespace"], annotation(pod, JOB_NAME))
        if job is None:
            return False
        pods = self._cluster.pods_of(job)
        wanted = [pod_name(job, task, index) for task in tasks(job) if task["name"] == task_name
                  for index in range(task.get("replicas", 0))]  # fmt: skip
        return bool(wanted) and all(name in pods and phase(pods[name]) == "Succeeded" for name in wanted)

    def is_task_failed(self, pod: Object) -> bool:
        """Whether the containers of a pod's task were restarted more often than the task may."""
        task_name = annotation(pod, TASK_SPEC)
        job = self._cluster.get("jobs", pod["metadata"]["namespace"], annotation(pod, JOB_NAME))
        limits = [task.get("maxRetry", 0) for task in tasks(job) if task["name"] == task_name] if job else []
        if job is None or not limits or limits[0] == -1:
            return False
        statuses = [
            status
            for each in self._cluster.pods_of(job).values()
            if annotation(each, TASK_SPEC) == task_name and phase(each) in ("Pending", "Running")
            for kind in ("containerStatuses", "initContainerStatuses")
            for status in each["status"].get(kind, [])
        ]
        return sum(status["restartCount"] for status in statuses) > (limits[0] or DEFAULT_RETRIES)

    # Making.

    def _sync(self, job: Object, update: Update) -> Object | None:
        if self._cluster.get("queues", "", job["spec"]["queue"]) is None:
            raise ApiError(404, {"message": "not found"}, f"queue {job['spec']['queue']}")
        job = self._begin(job)
        group = self._cluster.get("podgroups", job["metadata"]["namespace"], podgroup_name(job, self._dialect))
        if group is None:
            return job
        self._tell_why_it_waits(job, group)
        counts = Counts()
        if phase(group) not in ("", "Pending"):
            self._make_pods(job, counts)
        else:
            # Nothing is made, nor deleted, while the group waits to be let in.
            return self._write(job, update)
        counts.write(job["status"])
        job["status"]["minAvailable"] = job["spec"]["minAvailable"]
        return self._write(job, update)

    def _begin(self, job: Object) -> Object:
        status = job.setdefault("status", {})
        if not job_phase(job):
            status["state"] = {"phase": "Pending"}
            status["minAvailable"] = job["spec"]["minAvailable"]
            record_phase(status)
            job = self._save(job)
        self._check_claims(job)
        controlled = job["status"].setdefault("controlledResources", {})
        if job_phase(job) == "Pending":
            for name, plugin, arguments in plugins.of_job(job):
                if f"plugin-{name}" not in controlled:
                    self._add_plugin(job, plugin, arguments)
                    controlled[f"plugin-{name}"] = name
        self._make_podgroup(job)
        return job

    def _add_plugin(self, job: Object, plugin: plugins.Plugin, arguments: list[str]) -> None:
        try:
            plugin.add(self._api, job, arguments)
        except ApiError as error:
            message = f"Execute plugin when job add failed, err: {error.message}"
            self._recorder.warning(job, "PluginError", message)
            raise

    def _check_claims(self, job: Object) -> None:
        for volume in job["spec"].get("volumes") or []:
            name = volume.get("volumeClaimName", "")
            if self._cluster.get("persistentvolumeclaims", job["metadata"]["namespace"], name) is None:
                why = f"pvc {name} is not found, the job will be in the Pending state until the PVC is created"
                self._recorder.warning(job, "PVCError", f"Failed to create PVC, err: {why}")
                raise ApiError(404, {"message": why}, "volumes")

    def _make_podgroup(self, job: Object) -> None:
        namespace = job["metadata"]["namespace"]
        if self._cluster.get("podgroups", namespace, podgroup_name(job, self._dialect)) is not None:
            return
        priorities = {item["metadata"]["name"]: item["value"] for item in self._cluster.all("priorityclasses")}
        group = self._api.create_once("podgroups", namespace, new_podgroup(job, priorities, self._dialect))
        if group is not None:
            self._cluster.put("podgroups", group)

    def _tell_why_it_waits(self, job: Object, group: Object) -> None:
        for condition in group.get("status", {}).get("conditions", []):
            if condition["type"] == "Unschedulable":
                where = f"{job['metadata']['namespace']}:{job['metadata']['name']}"
                message = f"PodGroup {where} unschedule,reason: {condition.get('message', '')}"
                self._recorder.warning(job, "PodGroupPending", message)

    def _make_pods(self, job: Object, counts: Counts) -> None:
        pods = dict(self._cluster.pods_of(job))
        for task in tasks(job):
            for index in range(task.get("replicas", 0)):
                pod = pods.pop(pod_name(job, task, index), None)
                if pod is not None:
                    counts.add(pod)
                    continue
                made = self._make_pod(job, task, index)
                # One of that name that is still being deleted is counted as unknown, and made when it is gone.
                counts.add(made or {"metadata": {"annotations": {TASK_SPEC: task["name"]}}})
        for pod in pods.values():
            self._delete_pod(pod, counts)

    def _make_pod(self, job: Object, task: Object, index: int) -> Object | None:
        pod = new_pod(job, task, index, self._dialect)
        for _, plugin, arguments in plugins.of_job(job):
            plugin.mount(job, pod, arguments)
        try:
            made = self._api.create_once("pods", job["metadata"]["namespace"], pod)
        except ApiError as error:
            self._recorder.warning(job, "FailedCreate", f"Error creating pods: [failed to create pod "
                                                        f"{pod['metadata']['name']}, err: {error}]")  # fmt: skip
            raise
        if made is not None:
            self._cluster.add_pod(made)
        return made

    # Deleting.

    def _is_over(self, job: Object, what: Kill) -> bool:
        """Whether a Job that ended has nothing left to delete."""
        if job_phase(job) not in FINISHED or what.is_partial:
            return False
        group = self._cluster.get("podgroups", job["metadata"]["namespace"], podgroup_name(job, self._dialect))
        is_clean = not job["status"].get("controlledResources") and group is None
        return is_clean and all(phase(pod) in what.retain for pod in self._cluster.pods_of(job).values())

    def _kill(self, job: Object, what: Kill, request: Request) -> Object | None:
        status, spec, counts = job["status"], job["spec"], Counts()
        # The last retry leaves what has ended, for people to look at.
        is_last = status.get("retryCount", 0) >= spec.get("maxRetry", 0) - 1
        retain = ENDED if is_last and not what.is_partial else what.retain
        for pod in list(self._cluster.pods_of(job).values()):
            is_meant = not what.is_partial or annotation(pod, TASK_SPEC) == request.task
            if is_meant and (is_terminating(pod) or phase(pod) not in retain):
                self._delete_pod(pod, counts)
            else:
                counts.add(pod)
        status["version"] = status.get("version", 0) + 1
        status["runningDuration"] = f"{seconds_since(job['metadata']['creationTimestamp']):.9f}s"
        counts.write(status)
        if not what.is_partial:
            self._remove_what_belongs_to_it(job)
        written = self._write(job, what.update)
        if not what.is_partial:
            self._api.delete("podgroups", job["metadata"]["namespace"], podgroup_name(job, self._dialect))
            self._forget_podgroup(job)
        return written

    def _delete_pod(self, pod: Object, counts: Counts) -> None:
        self._api.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        self._cluster.forget_pod(pod)
        counts.total["terminating"] += 1

    def _remove_what_belongs_to_it(self, job: Object) -> None:
        controlled = job["status"].setdefault("controlledResources", {})
        for name, plugin, arguments in plugins.of_job(job):
            if controlled.pop(f"plugin-{name}", None) is not None:
                plugin.remove(self._api, job, arguments)

    def _forget_podgroup(self, job: Object) -> None:
        namespace, name = job["metadata"]["namespace"], podgroup_name(job, self._dialect)
        if (group := self._cluster.get("podgroups", namespace, name)) is not None:
            self._cluster.drop("podgroups", group)

    # The status.

    def _write(self, job: Object, update: Update) -> Object | None:
        before = self._cluster.get("jobs", job["metadata"]["namespace"], job["metadata"]["name"])
        if update(job["status"]):
            record_phase(job["status"])
        if before is not None and before.get("status") == job["status"]:
            return job
        return self._save(job)

    def _save(self, job: Object) -> Object:
        status = job["status"]
        saved = self._api.replace("jobs", {name: job[name] for name in ("apiVersion", "kind", "metadata", "spec")}
                                  | {"status": status}, "status")  # fmt: skip
        self._cluster.put("jobs", saved)
        return copy.deepcopy(saved)


def record_phase(status: Object) -> None:
    """Note when the phase became what it is."""
    time_of_change = now()
    status["state"]["lastTransitionTime"] = time_of_change
    condition = {"status": status["state"]["phase"], "lastTransitionTime": time_of_change}
    status.setdefault("conditions", []).append(condition)
