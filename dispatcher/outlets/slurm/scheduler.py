"""SLURM as a Scheduler: everything that differs from other kinds of hosts."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatcher.errors import ConfigError, TemplateError
from dispatcher.hosts.options import project_of
from dispatcher.hosts.types import Hosts, SlotType, SlurmHost
from dispatcher.outlets.base import Key, Request
from dispatcher.outlets.batch.scheduler import (
    Accepted,
    Doubtful,
    JobState,
    Limits,
    LocationQuery,
    Refused,
    Submission,
    Submitted,
)
from dispatcher.outlets.remote.operations import Operation, Run
from dispatcher.outlets.slurm import cancelling, gres, questions, submitting
from dispatcher.outlets.slurm.directives import (
    LONGEST_NAME,
    Job,
    accounting,
    check_configured,
    contradictions,
    directives,
    file_pattern,
    own_variables,
    read_arguments,
)
from dispatcher.outlets.slurm.questions import R
from dispatcher.outlets.slurm.resources import host_for, partition_options, refusal, resource_options, shape_of
from dispatcher.outlets.slurm.steps import start_on_nodes
from dispatcher.templates.launcher import render_launcher
from dispatcher.workspace import Layout

_TEMPLATE: Final = "sbatch.sh.j2"


class SlurmScheduler:
    """The jobs of one host with SLURM. `layout` is that of the workspace, whose templates may override the launcher.

    `grace_s` is what an attempt has from TERM to KILL. Raises ConfigError for `sbatch_args` that cannot be used.
    """

    programs: Sequence[str] = ("sbatch", "squeue", "scancel", "scontrol", "bash")
    makes_arrays = True
    makes_packs = True

    def __init__(self, host: SlurmHost, hosts: Hosts, layout: Layout, grace_s: float) -> None:
        self._host = host
        self._hosts = hosts
        self._layout = layout
        self._grace_s = grace_s
        self._hosts_for: dict[Request, SlurmHost] = {}
        check_configured(host)

    def default_gpus(self, request: Request) -> int:
        return shape_of(self._host_for(request), request).gpus

    def gpu_kind(self, request: Request) -> SlotType:
        return self._host_for(request).slot_type

    def refuses(self, request: Request) -> str:
        host = self._host_for(request)
        return refusal(host, request) or "; ".join(self._contradictions(host, request))

    def launcher(self, request: Request) -> Sequence[str]:
        return start_on_nodes(shape_of(self._host_for(request), request).nodes, request.cpus)

    def scripts(self, submission: Submission) -> Mapping[str, bytes]:
        if len(submission.name) > LONGEST_NAME:
            raise TemplateError(f"{submission.name}: SLURM takes names up to {LONGEST_NAME} characters")
        path = submission.layout.submission_script(submission.name)
        try:
            return {str(path): self._script(submission).encode("utf-8", "surrogateescape")}
        except ConfigError as error:
            raise TemplateError(str(error)) from None

    def submit(self, submission: Submission) -> Operation:
        script = str(submission.layout.submission_script(submission.name))
        own = own_variables(self._host_for(submission.request), self._wckey(submission.request))
        return self._named(submitting.submit(script, own))

    def accepted(self, submission: Submission, answer: Any) -> Accepted | Refused | Doubtful:
        return submitting.accepted(answer)

    def query(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        return self._all_named(questions.query(attempts))

    def states(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        return questions.select(attempts, questions.read_query(answers))

    def detail(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        return self._all_named(questions.detail(attempts))

    def details(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        return questions.read_detail(attempts, answers)

    def cancel(self, attempts: Sequence[Submitted], *, force: bool) -> Sequence[Operation]:
        return self._all_named(cancelling.cancel(attempts, force=force))

    def cancelled(self, answer: Any) -> str:
        return cancelling.cancelled(answer)

    def error_log(self, attempt: Submitted) -> str:
        return _log(Layout.of_attempt(attempt.directory), attempt.name, str(attempt.index))

    def where(self) -> LocationQuery:
        return LocationQuery(("cluster",), self._named(questions.where()))

    def limits_query(self) -> Sequence[Operation]:
        return self._all_named([*submitting.limits_query(self._host.qos), gres.query(self._host)])

    def limits(self, answers: Sequence[Any]) -> Limits:
        *limits, types = answers
        self._hosts = gres.existing_first(self._hosts, gres.read_types(types))
        return submitting.limits(limits, self._host.account)

    def _host_for(self, request: Request) -> SlurmHost:
        if request not in self._hosts_for:
            self._hosts_for[request] = host_for(self._host, request)
        return self._hosts_for[request]

    def _named(self, run: R) -> R:
        return questions.in_cluster(run, self._host.clusters)

    def _all_named(self, runs: Sequence[Run]) -> Sequence[Run]:
        return [self._named(run) for run in runs]

    def _contradictions(self, host: SlurmHost, request: Request) -> list[str]:
        """What of `sbatch_args` contradicts what such an attempt asks for."""
        generated = [
            *partition_options(host),
            *resource_options(host, self._hosts, request),
            *accounting(host, self._wckey(request)),
        ]
        try:
            return contradictions(read_arguments(host.sbatch_args), generated)
        except ConfigError as error:
            # Those of the host itself were read before.
            return [str(error)]

    def _wckey(self, request: Request) -> str | None:
        return project_of(self._host, self._layout.root.name, dict(request.projects))

    def _script(self, submission: Submission) -> str:
        jobs = len(submission.groups)
        job = Job(
            name=submission.name,
            chdir=str(submission.layout.root),
            output=_output(submission.layout, submission.name, is_array=jobs > 1),
            attempts=max(len(group) for group in submission.groups),
            array_size=jobs,
            time_limit_s=submission.time_limit_s,
            grace_s=self._grace_s,
            wckey=self._wckey(submission.request),
        )
        head = directives(self._host_for(submission.request), self._hosts, submission.request, job)
        values = {
            "directories": list(submission.directories),
            "groups": [" ".join(str(index) for index in group) for group in submission.groups],
        }
        shebang, body = render_launcher(self._layout, _TEMPLATE, values).split("\n", 1)
        # Not in the template: sbatch reads quotes in these lines in another way than a shell.
        return "\n".join([shebang, *head, body])


def _output(layout: Layout, name: str, *, is_array: bool) -> str:
    """Where SLURM writes what a batch script prints: `%a` is the task's index."""
    folder = file_pattern(str(layout.submission_script(name).parent))
    return posixpath.join(folder, "%a.log" if is_array else "0.log")


def _log(layout: Layout, name: str, index: str) -> str:
    return posixpath.join(str(layout.submission_script(name).parent), f"{index}.log")
