"""What is asked about Jobs, and how the answers are read. Pure.

Jobs, PodGroups and Kubernetes pods are asked for by the label of their submission, all with one call; a Job counts only
under its own name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from dispatcher.errors import OutletError
from dispatcher.outlets.base import Key
from dispatcher.outlets.batch.scheduler import JobState, Phase, Submitted
from dispatcher.outlets.remote.operations import Failed, Ran, Run
from dispatcher.outlets.volcano.kubectl import Kubectl, problems
from dispatcher.outlets.volcano.manifest import INDEX, KIND, SUBMISSION, job_name
from dispatcher.outlets.volcano.objects import Event, Job, Pod, PodGroup, grouped, of_kind, read_list
from dispatcher.outlets.volcano.states import AttemptObjects, job_state, vanished

TIMEOUT_S: Final = 90.0
_KINDS: Final = f"{KIND},podgroups.scheduling.volcano.sh,pods"
# Jobs in one answer: each is some 10 KB of JSON, and so is each of its pods, and an answer of 16 MiB is too long.
_MOST: Final = 100
_LOG_LINES: Final = 10
_LONGEST_LOG: Final = 1500


def query(kubectl: Kubectl, attempts: Sequence[Submitted]) -> list[Run]:
    """One `kubectl get` for all; several only where the answer would be too long."""
    return [_run(kubectl, "get", _KINDS, "-l", _selector(some), "-o", "json") for some in _batches(attempts)]


def states(attempts: Sequence[Submitted], answers: Sequence[Any]) -> dict[Key, JobState]:
    """The states of those of which something is left; raises OutletError when one of the calls has failed."""
    return {key: job_state(seen) for key, seen in _seen(attempts, answers).items()}


def detail(kubectl: Kubectl, attempts: Sequence[Submitted]) -> list[Run]:
    """The same, the namespace's events, and the ends of the pods' logs."""
    logs = [
        _run(
            kubectl, "logs", "-l", _selector(some), "--prefix", "--ignore-errors", f"--tail={_LOG_LINES}",
            "--max-log-requests=1000",
        )
        for some in _batches(attempts)
    ]  # fmt: skip
    return [*query(kubectl, attempts), _run(kubectl, "get", "events", "-o", "json"), *logs]


def details(attempts: Sequence[Submitted], answers: Sequence[Any]) -> dict[Key, JobState]:
    """The states of all: one of which nothing is left has ended.

    Events and logs only explain; where they cannot be had, the states are told without.
    """
    count = len(_batches(attempts))
    seen = _seen(attempts, answers[:count])
    events = grouped(_events(answers[count]), lambda event: event.involved_object.name)
    lines = [line for answer in answers[count + 1 :] for line in _text(answer).splitlines()]
    found = {}
    for attempt in attempts:
        job = job_name(attempt.name, attempt.index)
        about = [event for name, told in events.items() if name == job or name.startswith(f"{job}-") for event in told]
        if attempt.key not in seen:
            found[attempt.key] = vanished(about)
            continue
        one = msgspec.structs.replace(seen[attempt.key], events=tuple(about))
        found[attempt.key] = _with_log(job_state(one), one, lines)
    return found


def printed(answer: Any) -> str:
    """What kubectl has printed; raises OutletError, with its own words, when it failed."""
    if isinstance(answer, Failed):
        raise OutletError(answer.error)
    if not isinstance(answer, Ran):
        raise OutletError(f"kubectl: no answer, but {answer!r}")
    if found := problems(answer.exit_code, answer.err):
        raise OutletError("; ".join(dict.fromkeys(problem.message for problem in found)))
    return answer.out


def _run(kubectl: Kubectl, *words: str) -> Run:
    return Run(words=kubectl.words(*words), timeout_s=TIMEOUT_S)


def _batches(attempts: Sequence[Submitted]) -> list[list[str]]:
    """The names of submissions, those together that have at most `_MOST` Jobs, as far as that is known.

    Jobs of a submission that have ended are shown for as long as they are kept.
    """
    jobs: dict[str, int] = {}
    for attempt in attempts:
        jobs[attempt.name] = max(jobs.get(attempt.name, 0), attempt.index + 1)
    batches: list[list[str]] = []
    room = 0
    for name in sorted(jobs):
        if jobs[name] > room:
            batches.append([])
            room = _MOST
        batches[-1].append(name)
        room -= jobs[name]
    return batches


def _selector(names: Sequence[str]) -> str:
    return f"{SUBMISSION} in ({','.join(names)})"


def _seen(attempts: Sequence[Submitted], answers: Sequence[Any]) -> dict[Key, AttemptObjects]:
    """What is left of the attempts: a Job, Kubernetes pods, or both."""
    found = [each for answer in answers for each in read_list(printed(answer))]
    jobs = {job.metadata.name: job for job in of_kind(found, Job)}
    pods = grouped(of_kind(found, Pod), lambda pod: (pod.metadata.label(SUBMISSION), pod.metadata.label(INDEX)))
    groups = {group.metadata.owner("Job"): group for group in of_kind(found, PodGroup)}
    seen = {}
    for attempt in attempts:
        name = job_name(attempt.name, attempt.index)
        job, its_pods = jobs.get(name), pods.get((attempt.name, str(attempt.index)), [])
        if job is not None or its_pods:
            ordered = tuple(sorted(its_pods, key=lambda pod: pod.index))
            seen[attempt.key] = AttemptObjects(name=name, job=job, pods=ordered, group=groups.get(name))
    return seen


def _events(answer: Any) -> Iterator[Event]:
    try:
        return of_kind(read_list(printed(answer)), Event)
    except OutletError:
        return iter(())


def _text(answer: Any) -> str:
    """What was printed, also by a call that failed for some pods."""
    return answer.out if isinstance(answer, Ran) else ""


def _with_log(state: JobState, seen: AttemptObjects, lines: Sequence[str]) -> JobState:
    """With the end of the log of the first pod that failed; only what ends without a word of its own needs it."""
    pod = seen.first_failed or next(iter(seen.pods), None)
    if state.phase is not Phase.ENDED or pod is None:
        return state
    before = f"[pod/{pod.metadata.name}/"
    said = " | ".join(line.partition("] ")[2].strip() for line in lines if line.startswith(before))
    if not said:
        return state
    why = f"{state.why}; its log ends: {said[-_LONGEST_LOG:]}"
    return msgspec.structs.replace(state, why=why)
