"""Volcano as a Scheduler: everything that differs from other kinds of hosts."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatcher import contract
from dispatcher.errors import ConfigError, OutletError, TemplateError
from dispatcher.hosts.types import SlotType, VolcanoHost
from dispatcher.outlets.base import Bundle, Key, Request, Slot
from dispatcher.outlets.batch.scheduler import (
    Accepted,
    Doubtful,
    JobState,
    Limits,
    LocationQuery,
    NoRoom,
    Refused,
    Submission,
    Submitted,
)
from dispatcher.outlets.remote.operations import Confirm, Failed, Operation, Ran, Run
from dispatcher.outlets.volcano import limits, questions, submitting
from dispatcher.outlets.volcano.kubectl import PROGRAM, Kubectl, Reason, problems
from dispatcher.outlets.volcano.manifest import KIND, job_name, job_of
from dispatcher.outlets.volcano.merging import FILE, merged, read_template
from dispatcher.outlets.volcano.resources import refusal, shape_of
from dispatcher.templates.launcher import render_launcher
from dispatcher.workspace import Layout

_POD: Final = "volcano_pod.sh.j2"
_NODES: Final = "volcano_nodes.sh.j2"
_NODES_FILE: Final = "nodes.sh"
# Names in one call.
_BATCH: Final = 200
_DELETE_S: Final = 120.0
# Prints what tells a cluster from all others: the UID of a namespace that each has, and the address of its API server,
# which a kubeconfig inside a cluster does not have. Not every user may read the first, and rights may change from one
# call to the next. kubectl's warnings differ from call to call, and are no part of it.
_WHERE: Final = r"""
ask=("$@" get namespace kube-system -o 'jsonpath={.metadata.uid}')
if ! found=$("${ask[@]}" 2>/dev/null) || ! [[ $found ]]; then
    # Without what klog writes: it has a time and a pid, and says the same more than once.
    why=$("${ask[@]}" 2>&1 >/dev/null | grep -v '^[EFIW][0-9]\{4\} ')
    [[ $why == *'(Forbidden)'* ]] || { printf '%s' "$why" >&2; exit 1; }
    found=
fi
address=$("$@" config view --minify -o 'jsonpath={.clusters[0].cluster.server}' 2>/dev/null)
address=${address:-$KUBERNETES_SERVICE_HOST}
[[ $found$address ]] || { echo 'it has neither a UID that may be read nor an address' >&2; exit 1; }
printf '%s %s' "${found:--}" "${address:--}"
"""


class VolcanoScheduler:
    """The Jobs of one host with Volcano. `layout` is that of the workspace, whose templates may override ours.

    `grace_s` is what an attempt has from TERM to KILL. Raises ConfigError for a template that cannot be used.
    """

    # kubectl runs here, bash in the Kubernetes pods.
    programs: Sequence[str] = (PROGRAM, "bash")
    makes_arrays = True
    makes_packs = False

    def __init__(self, host: VolcanoHost, layout: Layout, grace_s: float) -> None:
        self._host = host
        self._layout = layout
        self._grace_s = grace_s
        self._kubectl = Kubectl(host, layout.root)
        try:
            self.submit(_EXAMPLE)
        except TemplateError as error:
            raise ConfigError(str(error)) from None

    def default_gpus(self, request: Request) -> int:
        return shape_of(self._host, request).gpus

    def gpu_kind(self, request: Request) -> SlotType:
        return "cuda"

    def refuses(self, request: Request) -> str:
        return refusal(self._host, request)

    def launcher(self, request: Request) -> Sequence[str]:
        if shape_of(self._host, request).nodes == 1:
            return ()
        # The Kubernetes pod's environment tells where its submission's files are.
        return ("bash", "-c", f'exec bash "$DISPATCHER_SUBMISSION_DIR/{_NODES_FILE}" "$@"', "nodes")

    def scripts(self, submission: Submission) -> Mapping[str, bytes]:
        script = submission.layout.submission_script(submission.name)
        nodes = shape_of(self._host, submission.request).nodes
        values = {"nodes": nodes, "grace_s": math.ceil(self._grace_s)}
        scripts = {os.fspath(script): render_launcher(self._layout, _POD, values)}
        if nodes > 1:
            scripts[os.fspath(script.with_name(_NODES_FILE))] = render_launcher(self._layout, _NODES, {"nodes": nodes})
        return {path: text.encode("utf-8", "surrogateescape") for path, text in scripts.items()}

    def submit(self, submission: Submission) -> Operation:
        return submitting.submit(self._kubectl, submission.name, self._jobs(submission))

    def accepted(self, submission: Submission, answer: Any) -> Accepted | Refused | NoRoom | Doubtful:
        return submitting.accepted(self._kubectl, submission, answer)

    def query(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        return questions.query(self._kubectl, attempts)

    def states(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        return questions.states(attempts, answers)

    def detail(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        return questions.detail(self._kubectl, attempts)

    def details(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        return questions.details(attempts, answers)

    def cancel(self, attempts: Sequence[Submitted], *, force: bool) -> Sequence[Operation]:
        """Jobs are deleted, and the cluster then ends their pods with the attempt's grace period.

        `force` leaves them one second, and not none: a pod that is removed at once may run on.
        """
        names = sorted(job_name(attempt.name, attempt.index) for attempt in attempts)
        calls = []
        for at in range(0, len(names), _BATCH):
            some = names[at : at + _BATCH]
            if force:
                # First, because a kubelet may not shorten a grace period that has begun (before Kubernetes 1.22).
                pods = f"volcano.sh/job-name in ({','.join(some)})"
                calls.append(self._delete("pods", "-l", pods, "--grace-period=1"))
            calls.append(self._delete(KIND, *some, "--ignore-not-found"))
        return calls

    def cancelled(self, answer: Any) -> str:
        if isinstance(answer, Failed):
            return answer.error
        if not isinstance(answer, Ran):
            raise OutletError(f"an answer of kubectl was expected, and not {answer!r}")
        left = [one for one in problems(answer.exit_code, answer.err) if one.reason is not Reason.NOT_FOUND]
        return "; ".join(dict.fromkeys(problem.message for problem in left))

    def error_log(self, attempt: Submitted) -> str:
        """What pods print is read from their logs."""
        return ""

    def where(self) -> LocationQuery:
        words = ("bash", "-c", _WHERE, "where", *self._kubectl.words())
        return LocationQuery(("cluster", "address"), Confirm(words=words, timeout_s=questions.TIMEOUT_S))

    def limits_query(self) -> Sequence[Operation]:
        return [limits.query(self._kubectl)]

    def limits(self, answers: Sequence[Any]) -> Limits:
        return limits.read(answers[0])

    def _delete(self, *words: str) -> Run:
        return Run(words=self._kubectl.words("delete", *words, "--wait=false"), timeout_s=_DELETE_S)

    def _jobs(self, submission: Submission) -> list[dict[str, Any]]:
        path = self._layout.templates_dir / FILE
        template = read_template(path)
        wanted = (index for index in range(len(submission.bundles)) if index not in submission.accepted)
        jobs = [job_of(self._host, submission, index, self._grace_s) for index in wanted]
        return [merged(job, template, path) for job in jobs] if template else jobs


# To see whether a template can be used before anything is claimed.
_EXAMPLE: Final = Submission(
    name="d-000000000000-0000000000",
    bundles=(
        Bundle(
            key=Key("example", 1), request=Request(0), slot=Slot(), files={}, environment={contract.ATTEMPT_DIR: "/"}
        ),
    ),
    directories=("/",),
    layout=Layout("/"),
    request=Request(0),
)
