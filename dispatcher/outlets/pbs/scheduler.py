"""The Scheduler of `type: pbs` hosts.

Each attempt is a job of its own, because a server that restarts may forget and rerun members of an array; all those
that are submitted together still go with one remote call. A job is asked for by its id as long as it has one, and
counts only under the name that it was submitted with, since ids are used again; without an id it is searched by name
among the user's jobs. One `qstat` tells the states of all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dispatcher.base.messages import shortened
from dispatcher.errors import ConfigError, OutletError
from dispatcher.hosts.options import project_of
from dispatcher.hosts.types import PbsHost, PbsOptions, SlotType
from dispatcher.outlets.base import NOT_REACHED, Bundle, Key, Request
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
from dispatcher.outlets.pbs import arguments, programs, resources, states
from dispatcher.outlets.remote.operations import Failed, Operation, Ran
from dispatcher.templates.launcher import render_launcher
from dispatcher.workspace import Layout

# So much longer than the attempt's own time limit is the job's: for the set-up before it and the grace period after it.
_MARGIN_S: Final = 300.0
_BATCH: Final = 100
# Jobs in one answer: each is some 5 KB of JSON, more with -V, and an answer of 16 MiB is too long.
_MOST_SHOWN: Final = 1000
_JOB_ID: Final = re.compile(r"^\d+(\.[\w.-]+)?$", re.ASCII)
_OUTPUT_FILE: Final = "output.log"
_NODES_FILE: Final = "nodes.sh"
_USER_LIMIT: Final = re.compile(r"\[u:([^=\]]+)=(\d+)\]")


class PbsScheduler:
    """PBS on one configured host. The templates of `layout`, the workspace here, override the packaged ones."""

    programs: Sequence[str] = ("qsub", "qstat", "qdel", "qselect", "qsig")
    makes_arrays = False
    makes_packs = True

    def __init__(self, host: PbsHost, layout: Layout) -> None:
        self._host = host
        self._layout = layout
        self._hosts_for: dict[Request, PbsHost] = {}
        for queue in host.queues or (None,):
            options = None if queue is None else PbsOptions(queue=queue.name)
            self._options("d-...", "/dev/null", Request(0, pbs=options), None)

    def default_gpus(self, request: Request) -> int:
        return 0

    def gpu_kind(self, request: Request) -> SlotType:
        return self._host_for(request).slot_type

    def refuses(self, request: Request) -> str:
        why = resources.refuses(self._host_for(request), request)
        if why:
            return why
        try:
            self._options("d-...", "/dev/null", request, None)
        except ConfigError as error:
            heading, *faults = str(error).splitlines()
            return ": ".join(filter(None, (heading, "; ".join(fault.strip() for fault in faults))))
        return ""

    def scripts(self, submission: Submission) -> Mapping[str, bytes]:
        script = submission.layout.submission_script(submission.name)
        limit_s = submission.time_limit_s
        text = render_launcher(
            self._layout,
            "pbs.sh.j2",
            {
                "submission": os.fspath(script.parent),
                "attempt_s": int(limit_s + _MARGIN_S) if limit_s else 0,
                "walltime_s": int(self._walltime_s(submission) or 0),
                "refused": states.REFUSED,
                "not_reached": NOT_REACHED,
                "attempts": [
                    {"directory": submission.directories[index], "environment": _env(submission.bundles[index])}
                    for index in _members(submission)
                ],
            },
        )
        files = {os.fspath(script): text.encode("utf-8", "surrogateescape")}
        if self.launcher(submission.request):
            nodes = render_launcher(self._layout, "pbs_nodes.sh.j2", {})
            files[os.fspath(script.with_name(_NODES_FILE))] = nodes.encode("utf-8", "surrogateescape")
        return files

    def launcher(self, request: Request) -> Sequence[str]:
        if resources.node_count(self._host_for(request), request) == 1:
            return ()
        # The batch script tells where its submission's files are.
        return ("bash", "-c", f'exec bash "$DISPATCHER_SUBMISSION_DIR/{_NODES_FILE}" "$@"', "nodes")

    def submit(self, submission: Submission) -> Operation:
        script = submission.layout.submission_script(submission.name)
        output = os.fspath(script.with_name(_OUTPUT_FILE))
        try:
            options = self._options(submission.name, output, submission.request, self._walltime_s(submission))
        except ConfigError as error:
            # Only a walltime can be new here: that of an attempt with a time limit.
            raise OutletError(str(error)) from None
        queues = self._host_for(submission.request).queues
        return programs.submit([queue.name for queue in queues], [*options, os.fspath(script)])

    def accepted(self, submission: Submission, answer: Any) -> Accepted | Refused | Doubtful:
        if isinstance(answer, Failed):
            return Refused(why=answer.error, is_transient=True)
        ran = _ran(answer)
        if ran.exit_code == 0:
            ids = [line.strip() for line in ran.out.splitlines() if _JOB_ID.match(line.strip())]
            return Accepted(handle=ids[-1]) if ids else Doubtful(why=f"no job id: {_words('qsub', ran)}")
        if ran.exit_code is None or ran.exit_code < 0 or ran.exit_code in programs.TRANSIENT:
            # What has failed may be the answer.
            return Doubtful(why=_words("qsub", ran))
        return Refused(why=_words("qsub", ran) + _cure(ran), is_transient=ran.exit_code in programs.BUSY)

    def query(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        return [programs.query(ids, names) for ids, names in _questions(attempts)]

    def states(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        jobs: list[states.PbsJob] = []
        for (ids, _), answer in zip(_questions(attempts), answers, strict=True):
            found = _jobs(answer, ids)
            _check_complete(answer, ids, found)
            jobs += found.values()
        return _states_of(attempts, jobs)

    def detail(self, attempts: Sequence[Submitted]) -> Sequence[Operation]:
        """By name: an id may be one that another job has got meanwhile."""
        names = _unique(attempt.name for attempt in attempts)
        return [programs.query((), names)] if names else []

    def details(self, attempts: Sequence[Submitted], answers: Sequence[Any]) -> Mapping[Key, JobState]:
        named = [attempt.handle for attempt in attempts if attempt.handle]
        return _states_of(attempts, [job for answer in answers for job in _jobs(answer, named).values()])

    def cancel(self, attempts: Sequence[Submitted], *, force: bool) -> Sequence[Operation]:
        ids = _unique(attempt.handle for attempt in attempts if attempt.handle)
        names = _unique(attempt.name for attempt in attempts if not attempt.handle)
        calls = [programs.cancel(ids[at : at + _BATCH], (), force=force) for at in range(0, len(ids), _BATCH)]
        return [*calls, programs.cancel((), names, force=force)] if names else calls

    def cancelled(self, answer: Any) -> str:
        if isinstance(answer, Failed):
            return answer.error
        ran = _ran(answer)
        return "" if ran.exit_code in programs.NOTHING_TO_DELETE else _words("qdel", ran)

    def error_log(self, attempt: Submitted) -> str:
        if not attempt.directory:
            return ""
        layout = Layout.of_attempt(attempt.directory)
        return os.fspath(layout.submission_script(attempt.name).with_name(_OUTPUT_FILE))

    def where(self) -> LocationQuery:
        return LocationQuery(("server",), programs.where())

    def limits_query(self) -> Sequence[Operation]:
        return [programs.limits()]

    def limits(self, answers: Sequence[Any]) -> Limits:
        """The server's `max_queued` for the user; the limits of queues are told by qsub."""
        ran = _ran(answers[0]) if answers and not isinstance(answers[0], Failed) else None
        if ran is None or ran.exit_code != 0:
            return Limits()
        user, _, text = ran.out.partition("\n")
        try:
            servers = json.loads(text, strict=False).get("Server") or {}
        except (ValueError, AttributeError):
            return Limits()
        most = [_most_queued(user.strip(), server) for server in servers.values() if isinstance(server, dict)]
        return Limits(in_flight=min((each for each in most if each is not None), default=None))

    def _options(self, name: str, output: str, request: Request, walltime_s: float | None) -> list[str]:
        host = self._host_for(request)
        added = arguments.read(host)
        wanted = resources.resource_arguments(host, request, walltime_s, added.of_chunks)
        project = project_of(host, self._layout.root.name, dict(request.projects))
        return arguments.arguments(host, name, output, wanted, project, added)

    def _host_for(self, request: Request) -> PbsHost:
        if request not in self._hosts_for:
            self._hosts_for[request] = resources.host_for(self._host, request)
        return self._hosts_for[request]

    def _walltime_s(self, submission: Submission) -> float | None:
        if not submission.time_limit_s:
            return None
        return len(_members(submission)) * (submission.time_limit_s + _MARGIN_S)


def _questions(attempts: Sequence[Submitted]) -> list[tuple[list[str], list[str]]]:
    """The ids of jobs and the names without an id to ask for, so many at once that the answer is not too long."""
    ids = _unique(attempt.handle for attempt in attempts if attempt.handle)
    names = _unique(attempt.name for attempt in attempts if not attempt.handle)
    most = max(len(ids), len(names))
    return [(ids[at : at + _MOST_SHOWN], names[at : at + _MOST_SHOWN]) for at in range(0, most, _MOST_SHOWN)]


def _members(submission: Submission) -> Sequence[int]:
    """The indices of the attempts that the job runs: without arrays there is one group."""
    return submission.groups[0] if submission.groups else range(len(submission.bundles))


def _env(bundle: Bundle) -> list[str]:
    """The variables of an attempt's wrapper as arguments of `env`."""
    unset = [word for name, value in bundle.environment.items() if value is None for word in ("-u", name)]
    return [*unset, *(f"{name}={value}" for name, value in bundle.environment.items() if value is not None)]


def _ran(answer: Any) -> Ran:
    if not isinstance(answer, Ran):
        raise OutletError(f"an answer of PBS's programs was expected, and not {answer!r}")
    return answer


def _words(program: str, ran: Ran) -> str:
    """What a program said, or why it said nothing."""
    if ran.exit_code is None:
        return f"{program}: it did not answer in time"
    said = " ".join((ran.err.strip() or ran.out.strip()).split())[:500]
    prefix = "" if said.startswith(f"{program}:") else f"{program}: "
    return f"{prefix}{said} (exit status {ran.exit_code})" if said else f"{program}: exit status {ran.exit_code}"


def _cure(ran: Ran) -> str:
    """What to do about a resource that the server does not know: sites define those for GPUs themselves."""
    if ran.exit_code != programs.UNKNOWN_RESOURCE:
        return ""
    if "ngpus" in ran.err:
        return (
            '. An administrator defines it (qmgr -c "create resource ngpus type=long, flag=hn", and in `resources` of '
            "sched_config), or `gres_supported: false` of the host takes whole nodes"
        )
    if resources.CHIP_RESOURCE in ran.err:
        return (
            f'. An administrator defines it (qmgr -c "create resource {resources.CHIP_RESOURCE} type=string, flag=h")'
        )
    return ""


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


def _jobs(answer: Any, asked: Sequence[str]) -> dict[str, states.PbsJob]:
    """The jobs of an answer; OutletError for one that is none, or that complains of something else than a job.

    The texts of errors differ between versions, but each names its job.
    """
    if isinstance(answer, Failed):
        raise OutletError(answer.error)
    ran = _ran(answer)
    if ran.exit_code not in (0, programs.UNKNOWN_JOB, programs.FINISHED_JOB):
        raise OutletError(_words("qstat", ran))
    strange = [line for line in ran.err.splitlines() if line.strip() and not any(_names(line, one) for one in asked)]
    if ran.exit_code != 0 and strange:
        raise OutletError(_words("qstat", ran))
    if ran.out.strip():
        return states.read_jobs(ran.out)
    if ran.exit_code == 0:
        # An answer without jobs is JSON too.
        raise OutletError("qstat: it printed nothing (exit status 0)")
    return {}


def _check_complete(answer: Any, asked: Sequence[str], jobs: Iterable[str]) -> None:
    """OutletError for an answer that lacks a job without a complaint that names it: that is no absence."""
    shown = {_number(name) for name in jobs}
    silent = [name for name in asked if _number(name) not in shown and not _names(_ran(answer).err, name)]
    if silent:
        raise OutletError(f"qstat: it neither shows {', '.join(shortened(silent))} nor says why not")


def _names(complaint: str, job_id: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(job_id)}(?!\w)", complaint) is not None


def _number(job_id: str) -> str:
    return job_id.partition(".")[0]


def _states_of(attempts: Sequence[Submitted], jobs: Iterable[states.PbsJob]) -> dict[Key, JobState]:
    """By name. A submission may have been made twice when its answer was lost: the job that was not refused counts."""
    by_name: dict[str, states.PbsJob] = {}
    for job in jobs:
        known = by_name.get(job.name)
        if known is None or known.exit_status == states.REFUSED or job.exit_status != states.REFUSED:
            by_name[job.name] = job
    return {attempt.key: states.state_of(by_name[attempt.name]) for attempt in attempts if attempt.name in by_name}


def _most_queued(user: str, server: Mapping[str, Any]) -> int | None:
    found = {name: int(most) for name, most in _USER_LIMIT.findall(str(server.get("max_queued", "")))}
    return found.get(user, found.get("PBS_GENERIC"))
