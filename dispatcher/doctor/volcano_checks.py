"""The checks of hosts of type `volcano`: what the cluster must have, what the user may do there, and what is left.

They need nothing but kubectl; whether the volume can be used shows in the call of the agent that follows them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatcher.base.messages import counted, first_texts
from dispatcher.config import Config
from dispatcher.doctor.findings import OK, UNKNOWN, WARNING, WRONG, Finding, Findings
from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.batch.identity import workspace_id
from dispatcher.outlets.remote.asking import ask_all
from dispatcher.outlets.remote.connection import NoAnswer, Outcome
from dispatcher.outlets.remote.operations import Failed, Operation, Ran, Run
from dispatcher.outlets.remote.transport import LocalTransport, Transport
from dispatcher.outlets.solver.volcano import nodes_question, read_nodes
from dispatcher.outlets.volcano.helper import HelperTransport
from dispatcher.outlets.volcano.helper_job import HELPER_LABEL, OWNER_ANNOTATION
from dispatcher.outlets.volcano.kubectl import PROGRAM, Kubectl, Reason, cure, first_problem
from dispatcher.outlets.volcano.manifest import KIND, WORKSPACE
from dispatcher.outlets.volcano.resources import gpus_of_node

_TIMEOUT_S: Final = 60.0
_ASK_S: Final = 15.0
_GROUP: Final = "batch.volcano.sh"
_MOST_SHOWN: Final = 5


class _Right(msgspec.Struct, frozen=True):
    """What the user must be allowed to do, or, where `without` says what is missing then, should be."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    subresource: str = ""
    without: str = ""

    @property
    def shown(self) -> str:
        name = ".".join(part for part in (self.resource, self.group) if part)
        return f"{name}/{self.subresource}" if self.subresource else name


_RIGHTS: Final = (
    _Right(_GROUP, "jobs", ("create", "get", "list", "delete")),
    _Right("scheduling.volcano.sh", "podgroups", ("list",)),
    _Right("", "pods", ("get", "list")),
    _Right("", "pods", ("create",), "exec"),
    _Right("batch", "jobs", ("create", "get", "list", "delete")),
    _Right("", "pods", ("delete",), without="a stop by force leaves attempts their grace period"),
    _Right("", "pods", ("get",), "log", without="the ends of logs are not shown with failures"),
    _Right("", "events", ("list",), without="the reasons of events are not shown"),
)


class _Needed(msgspec.Struct, frozen=True):
    """An object that must exist; `key` is what names it in the host's configuration."""

    kind: str
    key: str
    name: str
    how: str


def look(config: Config, hosts: Sequence[VolcanoHost]) -> Mapping[str, Outcome]:
    """What each cluster answers. Raises StorageError when the workspace has no id."""
    questions = {
        host.name: (LocalTransport(host.name), _questions(host, Kubectl(host, config.layout.root), config))
        for host in hosts
    }
    return ask_all(questions, _TIMEOUT_S)


def can_have_helpers(host: VolcanoHost, outcome: Outcome) -> bool:
    """Whether the API server answers, and nothing is missing that a helper needs."""
    if isinstance(outcome, NoAnswer) or not isinstance(outcome[0], Ran) or outcome[0].exit_code != 0:
        return False
    objects = outcome[-len(_needed(host)) :]
    missing = {
        needed.key for needed, one in zip(_needed(host), objects, strict=True) if _reason(one) is Reason.NOT_FOUND
    }
    return not missing & {"pvc_name", "service_account"}


def transport_to_volume(config: Config, host: VolcanoHost) -> Transport:
    """The way to the volume, with a helper that no other command has."""
    return HelperTransport(host, config.layout, f"doctor {socket.gethostname()} {os.getpid()}")


def clusters(config: Config, hosts: Sequence[VolcanoHost], outcomes: Mapping[str, Outcome]) -> Findings:
    """What was found out about the clusters of these hosts."""
    for host in hosts:
        outcome = outcomes[host.name]
        name = f"host {host.name}"
        if isinstance(outcome, NoAnswer):
            yield Finding(name, WRONG, outcome.why)
            continue
        yield from _judge(name, host, Kubectl(host, config.layout.root), outcome)


def _needed(host: VolcanoHost) -> list[_Needed]:
    found = [
        _Needed("queues.scheduling.volcano.sh", "queue", host.queue, "`kubectl get queues` lists those that there are"),
        _Needed("persistentvolumeclaims", "pvc_name", host.pvc_name, "`kubectl get pvc` lists those that there are"),
    ]
    if host.service_account is not None:
        found.append(_Needed("serviceaccounts", "service_account", host.service_account, "create it, or name another"))
    if host.priority_class is not None:
        how = "`kubectl get priorityclasses` lists those that there are"
        found.append(_Needed("priorityclasses.scheduling.k8s.io", "priority_class", host.priority_class, how))
    return found


def _questions(host: VolcanoHost, kubectl: Kubectl, config: Config) -> list[Operation]:
    def run(*words: str, stdin: str = "") -> Run:
        return Run(words=kubectl.words(*words, request_s=_ASK_S), stdin=stdin, timeout_s=2 * _ASK_S)

    reviews = {"apiVersion": "v1", "kind": "List", "items": [_review(host, right, verb) for right, verb in _verbs()]}
    mine = f"{WORKSPACE}={workspace_id(config.layout)}"
    return [
        run("version", "--output=json"),
        run("create", "--validate=false", "--filename=-", "--output=json", stdin=json.dumps(reviews)),
        run("get", KIND, f"--selector={mine}", "--output=json"),
        run("get", "jobs.batch", f"--selector={mine},{HELPER_LABEL}", "--output=json"),
        run(*nodes_question(host)),
        *(run("get", needed.kind, needed.name, "--output=json") for needed in _needed(host)),
    ]


def _verbs() -> Iterator[tuple[_Right, str]]:
    return ((right, verb) for right in _RIGHTS for verb in right.verbs)


def _review(host: VolcanoHost, right: _Right, verb: str) -> dict[str, Any]:
    attributes = {
        "namespace": host.namespace,
        "verb": verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


def _judge(name: str, host: VolcanoHost, kubectl: Kubectl, answers: Sequence[Any]) -> Findings:
    version, rights, jobs, helpers, nodes, *objects = answers
    problem = _problem(version, kubectl)
    if problem is not None:
        yield Finding(name, WRONG, *problem)
        return
    yield Finding(name, OK, f"{_versions(version)}, namespace {host.namespace}")
    yield from _judge_rights(f"{name} rights", host, kubectl, rights)
    for needed, answer in zip(_needed(host), objects, strict=True):
        yield from _judge_needed(f"{name} {needed.key}", needed, kubectl, answer)
    yield from _judge_nodes(f"{name} nodes", host, nodes)
    yield from _judge_jobs(f"{name} Jobs", kubectl, jobs)
    yield from _judge_helpers(f"{name} helpers", kubectl, helpers)


def _problem(answer: Any, kubectl: Kubectl) -> tuple[str, str] | None:
    """What is wrong and what to do; None when the call has worked."""
    if isinstance(answer, Failed):
        return answer.error, f"{PROGRAM} must be on PATH of this machine: see https://kubernetes.io/docs/tasks/tools/"
    assert isinstance(answer, Ran)
    problem = first_problem(answer.exit_code, answer.err)
    return None if problem is None else (problem.message, cure(problem, kubectl))


def _reason(answer: Any) -> Reason | None:
    problem = first_problem(answer.exit_code, answer.err) if isinstance(answer, Ran) else None
    return None if problem is None else problem.reason


def _versions(answer: Ran) -> str:
    told = json.loads(answer.out)
    client, server = (told.get(key, {}).get("gitVersion", "?") for key in ("clientVersion", "serverVersion"))
    return f"Kubernetes {server}, kubectl {client}"


def _judge_rights(name: str, host: VolcanoHost, kubectl: Kubectl, answer: Any) -> Findings:
    problem = _problem(answer, kubectl)
    if problem is not None:
        yield Finding(name, UNKNOWN, *problem)
        return
    allowed = [review.get("status", {}).get("allowed", False) for review in _documents(answer.out)]
    denied = [pair for pair, may in zip(_verbs(), allowed, strict=True) if not may]
    how = f"the administrator of the cluster gives them with a Role and a RoleBinding in namespace {host.namespace}"
    required = [f"{verb} {right.shown}" for right, verb in denied if not right.without]
    if required:
        yield Finding(name, WRONG, f"the user may not {', '.join(required)}", how)
    for right, verb in denied:
        if right.without:
            yield Finding(name, WARNING, f"the user may not {verb} {right.shown}: {right.without}", how)
    if not denied:
        yield Finding(name, OK, f"all that is needed in namespace {host.namespace}")


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The JSON documents that kubectl prints one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        document, at = decoder.raw_decode(text, at)
        yield from document["items"] if document.get("kind") == "List" else [document]
        at += len(text[at:]) - len(text[at:].lstrip())


def _judge_needed(name: str, needed: _Needed, kubectl: Kubectl, answer: Any) -> Findings:
    problem = _problem(answer, kubectl)
    if problem is None:
        judge = {"queue": _queue, "pvc_name": _claim}.get(needed.key)
        yield judge(name, json.loads(answer.out)) if judge else Finding(name, OK, needed.name)
    elif _reason(answer) is Reason.NOT_FOUND:
        yield Finding(name, WRONG, f"there is no {needed.name}: {problem[0]}", needed.how)
    elif _reason(answer) is Reason.DENIED:
        yield Finding(name, UNKNOWN, f"{needed.name}: {problem[0]}")
    else:
        yield Finding(name, WRONG, *problem)


def _queue(name: str, queue: Mapping[str, Any]) -> Finding:
    own = queue["metadata"]["name"]
    state = queue.get("status", {}).get("state", "")
    if state not in ("", "Open"):
        return Finding(name, WRONG, f"the Queue {own} is {state}: no Job of it starts", "ask who closed it")
    capability = queue.get("spec", {}).get("capability") or {}
    shown = ", ".join(f"{resource} {amount}" for resource, amount in capability.items())
    return Finding(name, OK, f"the Queue {own} is open" + (f", with at most {shown}" if shown else ""))


def _claim(name: str, claim: Mapping[str, Any]) -> Finding:
    own = claim["metadata"]["name"]
    phase = claim.get("status", {}).get("phase", "")
    if phase == "Lost":
        return Finding(name, WRONG, f"the claim {own} has lost its volume", f"`kubectl describe pvc {own}` says why")
    if phase != "Bound":
        cure = f"`kubectl describe pvc {own}` says why; some storage classes wait for the first pod"
        return Finding(name, WARNING, f"the claim {own} has no volume yet (phase {phase or 'unknown'})", cure)
    modes = claim.get("status", {}).get("accessModes") or []
    if "ReadWriteMany" not in modes:
        cure = "take a claim with ReadWriteMany, or keep all pods on one node with `node_selector`"
        return Finding(
            name, WARNING, f"the claim {own} is bound, but for one node at a time ({', '.join(modes)})", cure
        )
    return Finding(name, OK, f"the claim {own} is bound, {', '.join(modes)}")


def _judge_nodes(name: str, host: VolcanoHost, answer: Ran | Failed) -> Findings:
    """Nothing where the nodes cannot be listed: not every user may."""
    nodes, key, configured = read_nodes(answer), host.gpu_resource_key, gpus_of_node(host) or 0
    most = max((int(node.get(key, 0)) for node in nodes), default=0)
    if not nodes:
        return
    if most < configured:
        told = f"no node that Jobs may run on has {configured} {key}, the largest has {most}: larger pods wait for ever"
        yield Finding(name, WARNING, told, "`chips` and `gpus_per_node` are the GPUs of one node: correct them")
        return
    able = sum(bool(node.get(key)) for node in nodes)
    yield Finding(name, OK, f"{counted(able, 'node')} with {key}, at most {most} each")


def _judge_jobs(name: str, kubectl: Kubectl, answer: Any) -> Findings:
    problem = _problem(answer, kubectl)
    if problem is not None:
        yield Finding(name, WRONG, *problem)
        return
    phases: dict[str, list[str]] = {}
    for job in json.loads(answer.out)["items"]:
        phase = job.get("status", {}).get("state", {}).get("phase") or "new"
        phases.setdefault(phase, []).append(job["metadata"]["name"])
    told = "; ".join(
        f"{len(names)} {phase} ({first_texts(sorted(names), _MOST_SHOWN, ', ')})"
        for phase, names in sorted(phases.items())
    )
    yield Finding(name, OK, f"of this workspace: {told or 'none'}")


def _judge_helpers(name: str, kubectl: Kubectl, answer: Any) -> Findings:
    problem = _problem(answer, kubectl)
    if problem is not None:
        yield Finding(name, WRONG, *problem)
        return
    owners: dict[str, str] = {
        job["metadata"]["name"]: job["metadata"].get("annotations", {}).get(OWNER_ANNOTATION, "?")
        for job in json.loads(answer.out)["items"]
    }
    if not owners:
        yield Finding(name, OK, "none is left")
        return
    told = ", ".join(f"{job} of {owner}" for job, owner in owners.items())
    yield Finding(name, OK, f"{counted(len(owners), 'helper')}: {told}; one that is not used ends by itself")
