"""What Jobs of Volcano and their Kubernetes pods mean for an attempt. Pure.

| Job                                   | attempt                                                                    |
|---------------------------------------|----------------------------------------------------------------------------|
| Pending, or none yet                  | pending: why a pod waits, why the scheduler cannot place the group         |
| Running                               | running; unknown when its node does not answer; preempted while evicted    |
| Restarting, or restarted before       | preempted: its first run counts, and no second one begins                  |
| Completing, Terminating, Aborting     | running: its processes are being ended                                     |
| Completed, Failed, Terminated         | ended, by the first pod that failed; preempted when a pod was evicted      |
| Aborted                               | ended: cancelled by a person; its one retry is used up when it is resumed  |
| deleted, some of its pods are left    | running, until they are gone                                               |
| deleted, its last nodes do not answer | ended, and may still run there                                             |
| deleted, nothing is left              | ended, and may still run: a person may have removed a pod of a lost node   |

A Job whose pods were evicted is Terminated, because that is what its policies say, and evicted pods are deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from dispatcher.outlets.base import CANCELLED, CANNOT_START, OUT_OF_MEMORY, PREEMPTED, TIME_LIMIT
from dispatcher.outlets.batch.scheduler import JobState, Phase
from dispatcher.outlets.volcano.manifest import CONTAINER
from dispatcher.outlets.volcano.objects import Condition, ContainerStatus, Event, Job, Pod, PodGroup, Terminated

# Of pod.outcome: a job that ends so is not tried again on the same hardware.

PHASES: Final[Mapping[str, Phase]] = MappingProxyType(
    {
        "": Phase.PENDING,
        "Pending": Phase.PENDING,
        "Restarting": Phase.PENDING,
        "Running": Phase.RUNNING,
        # Its processes are being ended: they may still write.
        "Aborting": Phase.RUNNING,
        "Completing": Phase.RUNNING,
        "Terminating": Phase.RUNNING,
        "Aborted": Phase.ENDED,
        "Completed": Phase.ENDED,
        "Failed": Phase.ENDED,
        "Terminated": Phase.ENDED,
    }
)
# A pod that waits for these is about to begin; for anything else (ImagePullBackOff, CreateContainerConfigError) it may
# wait for ever.
_BEGINS: Final = frozenset(["ContainerCreating", "PodInitializing", ""])
# Why the kubelet ends or refuses pods that do nothing wrong.
_EVICTIONS: Final = frozenset(
    [
        "Evicted", "NodeAffinity", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated",
        "UnexpectedAdmissionError",
    ]
)  # fmt: skip
_NO_ROOM: Final = "OutOf"
# Of containers that did not begin.
_NEVER_RAN: Final = frozenset(["ContainerCannotRun", "StartError"])
# What a process makes of TERM, and of the KILL after it.
_STOPPED: Final = (143, 137)
_LONGEST_EVENTS: Final = 1000
# Events that every gang has until it is placed: of one whose pods have run they explain nothing.
_UNPLACED: Final = frozenset(["PodGroupPending", "Unschedulable"])


class AttemptObjects(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of one attempt: a Job, Kubernetes pods (in the order of their indices), or both."""

    name: str
    job: Job | None = None
    pods: tuple[Pod, ...] = ()
    group: PodGroup | None = None
    events: tuple[Event, ...] = ()

    @property
    def phase(self) -> str:
        return self.job.status.state.phase if self.job and self.job.status else ""

    @property
    def restarts(self) -> int:
        return self.job.status.retry_count if self.job and self.job.status else 0

    @property
    def is_deleted(self) -> bool:
        return self.job is None or self.job.metadata.deletion_timestamp is not None

    @property
    def live_pods(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.has_ended]

    @property
    def lacks_pods(self) -> bool:
        """Whether pods were deleted that Volcano has made; with those that it deletes itself because others failed."""
        kept = [pod for pod in self.pods if pod.metadata.deletion_timestamp is None]
        return self.job is not None and len(kept) < self.job.spec.min_available

    @property
    def was_never_made(self) -> bool:
        """Whether the API server has refused its pods, until Volcano gave up."""
        return not self.pods and any(event.reason == "FailedCreate" for event in self.events)

    @property
    def first_failed(self) -> Pod | None:
        """The one that failed first: the others are ended because of it.

        Times are told in seconds, and a pod that was stopped may have ended in the same one.
        """
        failed = [pod for pod in self.pods if pod.status.phase == "Failed"]
        return min(failed, key=_order_of_failures, default=None)


def job_state(seen: AttemptObjects) -> JobState:
    """What is told of the attempt."""
    common = JobState(phase=Phase.UNKNOWN, handle=seen.name, host=_nodes(seen.pods))
    if seen.is_deleted:
        return _deleted(seen, common)
    phase = PHASES.get(seen.phase, Phase.UNKNOWN)
    if seen.restarts and phase is not Phase.ENDED:
        why = f"{seen.phase}: restarted {seen.restarts} times by Volcano, which its script refuses"
        return _with(common, phase=phase, why=why, was_preempted=True)
    if phase is Phase.PENDING:
        return _with(common, phase=phase, why=_why_pending(seen))
    if phase is Phase.RUNNING or (phase is Phase.ENDED and seen.live_pods):
        return _running(seen, common)
    if phase is Phase.UNKNOWN:
        return _with(common, why=f"phase {seen.phase!r}, which this version does not know")
    return _ended(seen, common)


def vanished(events: Sequence[Event]) -> JobState:
    """The state of an attempt whose Job was accepted, and of which nothing is left."""
    why = "its Job is gone, and so are its Kubernetes pods: it was deleted, or it ended long ago"
    preempted = any(_is_eviction(event) for event in events)
    return JobState(
        phase=Phase.ENDED, why=_told(why, events), was_preempted=preempted, reason=PREEMPTED if preempted else "",
        may_still_run=True,
    )  # fmt: skip


def _with(state: JobState, **changes: object) -> JobState:
    return msgspec.structs.replace(state, **changes)


def _deleted(seen: AttemptObjects, common: JobState) -> JobState:
    live = seen.live_pods
    if live and all(map(_is_silent, live)):
        why = f"its Job was deleted, and {_silence(live)}"
        return _with(common, phase=Phase.ENDED, why=_told(why, seen.events), may_still_run=True)
    if live or not seen.pods:
        return _with(common, phase=Phase.RUNNING, why="its Job was deleted, and its last pods are being ended")
    # Also of one that has ended and whose time to be kept is over.
    return _ended(seen, common)


def _running(seen: AttemptObjects, common: JobState) -> JobState:
    word = "" if seen.phase == "Running" else seen.phase
    silent = [pod for pod in seen.live_pods if _is_silent(pod)]
    if silent:
        given_up = [pod for pod in silent if pod.metadata.deletion_timestamp]
        if len(given_up) == len(seen.live_pods):
            # The cluster has waited for the node for as long as it does, which is no proof that nothing runs there.
            why = f"{_silence(silent)}, and the cluster has evicted {_names(silent)}"
            return _with(common, phase=Phase.ENDED, why=_told(why, seen.events), may_still_run=True)
        return _with(common, why=f"{_silence(silent)}; {_names(silent)} may still run there")
    leaving = [pod for pod in seen.pods if pod.metadata.deletion_timestamp or _was_evicted(pod)]
    if leaving and seen.phase not in ("Aborting", "Aborted") and seen.first_failed is None:
        why = f"preempted: {_names(leaving)} is being evicted"
        return _with(common, phase=Phase.RUNNING, why=why, was_preempted=True)
    return _with(common, phase=Phase.RUNNING, why=f"{word}: its pods are being ended" if word else "")


def _ended(seen: AttemptObjects, common: JobState) -> JobState:
    failed = seen.first_failed
    end = None if failed is None else _end_of(failed)
    preempted = _was_preempted(seen, failed, end)
    code = end.exit_code if end else 0 if seen.phase == "Completed" else None
    events = [event for event in seen.events if end is None or event.reason not in _UNPLACED]
    return _with(
        common,
        phase=Phase.ENDED,
        why=_told(_why_ended(seen, failed, end), events),
        exit_code=code,
        reason=PREEMPTED if preempted else _reason(seen, failed, end),
        was_preempted=preempted,
    )


def _was_preempted(seen: AttemptObjects, failed: Pod | None, end: Terminated | None) -> bool:
    """Also of a Job that is Completed: a container that is told to end may leave with 0."""
    if seen.restarts or any(_was_evicted(pod) for pod in seen.pods) or any(_is_eviction(one) for one in seen.events):
        return True
    if seen.phase == "Aborted" or not seen.lacks_pods or seen.was_never_made:
        return False
    # A pod was deleted, which ends the Job; or it was ended with the others after one has failed by itself.
    return failed is None or _was_stopped(end)


def _reason(seen: AttemptObjects, failed: Pod | None, end: Terminated | None) -> str:
    if failed is not None and failed.status.reason == "DeadlineExceeded":
        return TIME_LIMIT
    if end is not None and end.reason == "OOMKilled":
        return OUT_OF_MEMORY
    if (end is not None and end.reason in _NEVER_RAN) or seen.was_never_made:
        return CANNOT_START
    return CANCELLED if seen.phase == "Aborted" else ""


def _why_ended(seen: AttemptObjects, failed: Pod | None, end: Terminated | None) -> str:
    words = [seen.phase or "its Job was deleted"]
    if failed is not None:
        status = failed.status
        words.append(f"{failed.metadata.name} on {failed.spec.node_name or 'no node'}")
        words += [text for text in (status.reason, status.message) if text]
        if end is not None:
            words.append(f"exit code {end.exit_code}")
            words += [text for text in (end.reason, end.message) if text and text != "Error"]
    elif seen.phase == "Aborted":
        words.append("it was suspended")
    elif seen.was_never_made:
        words.append("its pods could not be made")
    elif seen.lacks_pods:
        words.append("its pods were evicted or deleted")
    return ": ".join([words[0], ", ".join(words[1:])]) if words[1:] else words[0]


def _why_pending(seen: AttemptObjects) -> str:
    """Why it waits: what a person has to mend comes first."""
    waiting = [(pod, state) for pod in seen.pods for state in _waiting(pod)]
    stuck = [
        f"{pod.metadata.name}: {_joined(reason, message)}"
        for pod, (reason, message) in waiting
        if reason not in _BEGINS
    ]
    conditions = [*_conditions(seen.group), *(each for pod in seen.pods if (each := pod.condition("PodScheduled")))]
    placing = [_joined(each.reason, each.message) for each in conditions if _is_unscheduled(each)]
    state = seen.job.status.state if seen.job and seen.job.status else None
    told = _joined(state.reason, state.message) if state else ""
    begun = [f"{pod.metadata.name}: {reason} on {pod.spec.node_name}" for pod, (reason, _) in waiting if reason]
    reasons = stuck or placing or ([told] if told else []) or begun
    if reasons:
        return "; ".join(dict.fromkeys(reasons))
    if not seen.pods:
        phase = seen.group.status.phase if seen.group and seen.group.status else ""
        return f"in queue (PodGroup {phase})" if phase else "Volcano's scheduler has not looked at it yet"
    running = sum(pod.status.phase == "Running" for pod in seen.pods)
    return f"{running} of {len(seen.pods)} Kubernetes pods run"


def _conditions(group: PodGroup | None) -> Iterable[Condition]:
    return (group.status.conditions or ()) if group and group.status else ()


def _is_unscheduled(condition: Condition) -> bool:
    wanted = {"Unschedulable": "True", "PodScheduled": "False"}
    return bool(condition.message) and wanted.get(condition.type) == condition.status


def _waiting(pod: Pod) -> Iterable[tuple[str, str]]:
    for status in _containers(pod):
        if status.state.waiting is not None:
            yield status.state.waiting.reason, status.state.waiting.message


def _containers(pod: Pod) -> Iterable[ContainerStatus]:
    return (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))


def _is_silent(pod: Pod) -> bool:
    """Whether its node does not answer: then the control plane calls the pod not ready, whose containers all are.

    It does so after the cluster's own limit (40 s where nothing else is configured).
    """
    ready, states = pod.condition("Ready"), pod.status.container_statuses or ()
    if pod.status.phase == "Unknown" or pod.status.reason == "NodeLost":
        return True
    is_called_unready = ready is not None and ready.status != "True" and ready.reason != "Evict"
    return pod.status.phase == "Running" and is_called_unready and bool(states) and all(one.ready for one in states)


def _silence(pods: Sequence[Pod]) -> str:
    """Which nodes do not answer, and since when, as the control plane has noted it."""
    times = [ready.last_transition_time for pod in pods if (ready := pod.condition("Ready")) is not None]
    since = min(filter(None, times), default="")
    return f"{_nodes(pods)} does not answer" + (f" since {since}" if since else "")


def _was_evicted(pod: Pod) -> bool:
    """Whether the cluster has ended it for its own reasons."""
    status, disrupted, ready = pod.status, pod.condition("DisruptionTarget"), pod.condition("Ready")
    return (
        (status.phase == "Failed" and (status.reason in _EVICTIONS or status.reason.startswith(_NO_ROOM)))
        or (disrupted is not None and disrupted.status == "True")
        or (ready is not None and ready.reason == "Evict")
    )


def _is_eviction(event: Event) -> bool:
    return event.reason in ("Evict", "Evicted", "Preempted", "Preempting", "TaintManagerEviction")


def _end_of(pod: Pod) -> Terminated | None:
    """How its container ended: that of the attempt, or one that was to run before it."""
    ends = [(one.name, one.state.terminated) for one in _containers(pod) if one.state.terminated is not None]
    own = next((end for name, end in ends if name == CONTAINER and end.exit_code), None)
    return own or next((end for _, end in ends if end.exit_code), None)


def _order_of_failures(pod: Pod) -> tuple[bool, str, bool, int]:
    """Where nothing is told of the time, last. Pod 0 ends with the status of the one that has failed."""
    end = _end_of(pod)
    at, was_stopped = (end.finished_at if end else None) or "~", _was_stopped(end)
    return was_stopped and pod.metadata.deletion_timestamp is not None, at, was_stopped, pod.index or sys.maxsize


def _was_stopped(end: Terminated | None) -> bool:
    """Whether it may have ended because it was told to."""
    return end is not None and end.exit_code in _STOPPED and end.reason != "OOMKilled"


def _told(why: str, events: Sequence[Event]) -> str:
    """With the warnings that were recorded about it, an eviction first: the API server has no order for them."""
    warnings = sorted((event for event in events if event.type == "Warning"), key=lambda one: not _is_eviction(one))
    said = dict.fromkeys(f"{event.reason}: {event.message.strip()}" for event in warnings)
    return f"{why}; {'; '.join(said)[:_LONGEST_EVENTS]}" if said else why


def _joined(reason: str, message: str) -> str:
    return ": ".join(filter(None, (reason, message)))


def _names(pods: Iterable[Pod]) -> str:
    return ", ".join(pod.metadata.name for pod in pods)


def _nodes(pods: Iterable[Pod]) -> str | None:
    """The nodes of these pods; None for none yet."""
    return ",".join(dict.fromkeys(pod.spec.node_name for pod in pods if pod.spec.node_name)) or None
