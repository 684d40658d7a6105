"""Volcano's job controller: from a Job to its PodGroup, pods and phases.

It acts on requests, one after the other: each says what happened to a Job (`policies.Request`), the policies say which
action that means, and the Job's phase what the action does (`states.step`).
"""

from __future__ import annotations

import copy
import heapq
import time
from collections import deque
from collections.abc import Iterator

from api import Api, ApiError, Object
from cluster import Cluster
from dialects import Dialect
from informers import Change
from objects import (
    CONTROLLER,
    JOB_API,
    JOB_NAME,
    JOB_VERSION,
    TASK_SPEC,
    annotation,
    is_terminating,
    job_phase,
    key,
    owner_uid,
    phase,
)
from policies import OUT_OF_SYNC, SYNC, Request, action_for
from recorder import Recorder
from states import step
from syncing import Pods

RETRIES = 15
RETRY_S = 0.05


class Controller:
    def __init__(self, api: Api, cluster: Cluster, dialect: Dialect) -> None:
        self._api, self._cluster, self._dialect = api, cluster, dialect
        self._recorder = Recorder(api, CONTROLLER)
        self._pods = Pods(api, cluster, dialect, self._recorder)
        self._requests: deque[tuple[Request, int]] = deque()
        self._again: list[tuple[float, int, Request, int]] = []
        self._numbers = 0

    # What happened.

    def changed(self, change: Change) -> None:
        """Turn a change of the cluster into requests."""
        handlers = {"jobs": self._job, "pods": self._pod, "podgroups": self._podgroup, "commands": self._command}
        for request in handlers.get(change.kind, _nothing)(change):
            self._requests.append((request, 0))

    def _job(self, change: Change) -> Iterator[Request]:
        new, old = change.new, change.old
        if new is not None and (old is None or new["spec"] != old["spec"] or job_phase(new) != job_phase(old)):
            yield Request(key(new))

    def _pod(self, change: Change) -> Iterator[Request]:
        pod = change.new or change.old
        if pod is None or not owner_uid(pod) or not annotation(pod, JOB_NAME):
            return
        job = pod["metadata"]["namespace"], annotation(pod, JOB_NAME)
        about = {"task": annotation(pod, TASK_SPEC), "pod": pod["metadata"]["name"]}
        version = int(annotation(pod, JOB_VERSION) or 0)
        if change.new is None or is_terminating(pod):
            self._cluster.forget_pod(pod)
            yield Request(job, "PodEvicted", version=version, **about)
            return
        self._cluster.add_pod(pod)
        event, exit_code = self._what_happened(change.old, pod)
        yield Request(job, event, exit_code=exit_code, version=version, **about)

    def _what_happened(self, old: Object | None, pod: Object) -> tuple[str, int]:
        before = phase(old) if old else phase(pod)
        if phase(pod) == "Failed" != before:
            states = [each.get("state", {}) for each in pod["status"].get("containerStatuses", [])]
            return "PodFailed", states[0].get("terminated", {}).get("exitCode", 0) if states else 0
        if phase(pod) == "Succeeded" != before and self._pods.is_task_completed(pod):
            return "TaskCompleted", 0
        if phase(pod) in ("Pending", "Running") and self._pods.is_task_failed(pod):
            return "TaskFailed", 0
        if phase(pod) == "Running" != before and "PodRunning" in self._dialect.events:
            return "PodRunning", 0
        return OUT_OF_SYNC, 0

    def _podgroup(self, change: Change) -> Iterator[Request]:
        # One that is seen for the first time when it has been let in already was changed while no watch ran.
        if change.new is None or phase(change.new) == (phase(change.old) if change.old else ""):
            return
        for reference in change.new["metadata"].get("ownerReferences", []):
            if reference["apiVersion"] == JOB_API:
                job = change.new["metadata"]["namespace"], reference["name"]
                yield Request(job, "Unknown" if phase(change.new) == "Unknown" else "")

    def _command(self, change: Change) -> Iterator[Request]:
        command = change.new
        if command is None or change.old is not None or command.get("target", {}).get("apiVersion") != JOB_API:
            return
        namespace, name = key(command)
        if not self._api.delete("commands", namespace, name):
            return
        job = namespace, command["target"]["name"]
        known = self._cluster.get("jobs", *job)
        if known is not None:
            once = "and clean it up to make sure executed not more than once."
            self._recorder.normal(known, "CommandIssued", f"Start to execute command {command['action']}, {once}")
        yield Request(job, "CommandIssued", action=command["action"])

    # What is done about it.

    def work(self) -> None:
        """Do all that is due; what fails is tried again a little later."""
        while self._again and self._again[0][0] <= time.monotonic():
            _, _, request, tries = heapq.heappop(self._again)
            self._requests.append((request, tries))
        while self._requests:
            # One during which the server did not answer is handled again.
            request, tries = self._requests[0]
            try:
                self._handle(request)
            except ApiError as error:
                self._try_again(request, tries, error)
            self._requests.popleft()

    def due_in_s(self) -> float | None:
        return max(0.0, self._again[0][0] - time.monotonic()) if self._again else None

    def _try_again(self, request: Request, tries: int, error: ApiError) -> None:
        job = self._cluster.get("jobs", *request.job)
        if job is None:
            return
        print(f"{'/'.join(request.job)}: {error}", flush=True)
        if tries >= RETRIES:
            self._recorder.normal(job, "ExecuteAction", "Job failed on action for retry limit reached")
            request, tries = Request(request.job, action="TerminateJob"), -1
        self._numbers += 1
        at = time.monotonic() + RETRY_S * 2 ** max(0, tries)
        heapq.heappush(self._again, (at, self._numbers, request, tries + 1))

    def _handle(self, request: Request) -> None:
        job = self._cluster.get("jobs", *request.job)
        if job is None or is_terminating(job):
            return
        action = action_for(job, request)
        if action != SYNC:
            self._recorder.normal(job, "ExecuteAction", f"Start to execute action {action} ")
        job = copy.deepcopy(job)
        before = job_phase(job)
        done = step(job, before, action, self._dialect, bool(self._cluster.pods_of(job)))
        job = self._pods.carry_out(job, done, request)
        if job is not None and job_phase(job) != before:
            self._requests.append((Request(request.job), 0))


def _nothing(_change: Change) -> Iterator[Request]:
    return iter(())
