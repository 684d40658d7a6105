"""Where and how jobs are submitted: the options of all commands that submit, the choice of a host, the submission.

Jobs are submitted by a pod that lives for as long as that takes: it claims them, hands them to the outlet, waits until
each was accepted or refused, and ends. Any other pod, or `dispatcher poll`, records how they end.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.base.messages import counted, indented
from dispatcher.cli.hardware import NO_HOSTS, HardwareOptions, hardware_options, hosts_option
from dispatcher.cli.host_overrides import override_options
from dispatcher.cli.one_argument import one_argument
from dispatcher.cli.outlet_option import read_outlets
from dispatcher.cli.printing import note, print_json, print_rows
from dispatcher.cli.vms import create_missing, yes_option
from dispatcher.config import CodeMode, Config, load_config
from dispatcher.errors import StateError, UsageError, nearest
from dispatcher.hosts.overrides import HostOverrides
from dispatcher.run_state.states import WAITING
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.matrix.entry import Entry
    from dispatcher.outlets.base import Request
    from dispatcher.outlets.solver.request import HardwareRequest
    from dispatcher.pod.options import Addition
    from dispatcher.run_state.states import Record

_ASK_LIMIT_S: Final = 30.0
_COLUMNS: Final = ("job", "outlet", "handle", "state", "error")


class SubmissionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was given on the command line. `code` None: the setting of dispatcher.yaml."""

    outlets: tuple[str, ...] = ()
    hosts_file: Path | None = None
    host_overrides: HostOverrides = HostOverrides()
    hardware: HardwareOptions = HardwareOptions()
    code: CodeMode | None = None
    is_dry_run: bool = False
    yes: bool = False
    as_json: bool = False

    def goes_to_hosts(self, hosts: Collection[str]) -> bool:
        """Whether a new job is submitted to one of these hosts at once, and not left to pods."""
        hardware = self.hardware
        asks = hardware.chip is not None or hardware.nodes is not None
        named = self.outlets or hardware.clusters or hardware.excluded_clusters or self.code is not None
        return bool(named) or self.host_overrides != HostOverrides() or (asks and bool(hosts))

    def config(self, layout: Layout) -> Config:
        """The configuration of the workspace with the hosts of `--hosts`, changed as the options say."""
        config = load_config(layout, self.hosts_file)
        named = [name.partition(":")[0] for name in self.outlets]
        meant = named if named and "auto" not in named else config.hosts.hosts
        return msgspec.structs.replace(config, hosts=self.host_overrides.over(config.hosts, meant))


class Target(msgspec.Struct, frozen=True):
    """Where a job goes: the manifest that lists it, the hosts that may take it, and what it asks for instead.

    `manifest` None: the default one, or none as the job was submitted without. `by_hardware`: among these hosts, the
    one where that is free.
    """

    manifest: Path | None
    outlets: tuple[str, ...]
    request: Request | None = None
    by_hardware: bool = False

    @property
    def outlets_text(self) -> str:
        return self.outlets[0] if self.by_hardware else " or ".join(self.outlets)


# Of commands that submit, as one argument `options`.
submission_options: Final = one_argument("options", SubmissionOptions, (
    click.option(
        "--outlet", "outlets", multiple=True, metavar="HOST",
        help="Submit to this configured host; repeat for several, the preferred first; auto: the best of all.",
    ),
    hardware_options,
    hosts_option,
    override_options(),
    click.option(
        "--dirty", "code", type=click.UNPROCESSED, flag_value=CodeMode.DIRTY, default=None,
        help="Run the tracked files as they are now, shipped to the host.",
    ),
    click.option(
        "--clean", "code", type=click.UNPROCESSED, flag_value=CodeMode.SHIP,
        help="Run the code of HEAD, shipped to the host.",
    ),
    click.option(
        "--dry-run", "is_dry_run", is_flag=True, help="Show the entries, or where the jobs would go; change nothing."
    ),
    yes_option,
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
))  # fmt: skip


def choose_targets(
    config: Config, options: SubmissionOptions, entries: Mapping[str, Entry], manifests: Mapping[str, Path | None]
) -> dict[str, Target]:
    """Where each job goes; raises UsageError when that is not clear, or no host can run one."""
    from dispatcher.pod.offers import request_of

    if not config.hosts.hosts:
        raise UsageError(NO_HOSTS.format(config.layout.config_file))
    options.hardware.check_clusters(config.hosts)
    named = _named(config, options)
    by_solver = options.hardware.are_given or "auto" in options.outlets
    outlets = {job: named or _outlets_of(config, entry, by_solver=by_solver) for job, entry in entries.items()}
    own = {job: request_of(config, entry) for job, entry in entries.items()}
    solved = _solve(config, {job: options.hardware.over(own[job]) for job, found in outlets.items() if not found})
    equal = Counter(solved.values())
    targets = {}
    for job in entries:
        # The best host is enough for one job; several find room by what is free meanwhile.
        by_hardware = job in solved and equal[solved[job]] > 1
        targets[job] = Target(
            manifest=manifests[job],
            outlets=outlets[job] or (solved[job] if by_hardware else solved[job][:1]),
            request=_request(options.hardware, own[job]) if options.hardware.are_given else None,
            by_hardware=by_hardware,
        )
    return targets


def submit_jobs(config: Config, options: SubmissionOptions, targets: Mapping[str, Target]) -> int:
    """Submit these queued jobs, or show what would be done; the exit code: 1 when one was not accepted."""
    if options.is_dry_run:
        rows = [{"job": job, "outlet": target.outlets_text} for job, target in targets.items()]
        print_submitted(rows, options, ("job", "outlet"))
        return 0
    rows = hand_over(config, options, targets)
    print_submitted(rows, options)
    return int(not all(row["handle"] for row in rows))


def hand_over(config: Config, options: SubmissionOptions, targets: Mapping[str, Target]) -> list[dict[str, Any]]:
    """Submit these queued jobs, and say of each what has become of it; without a `handle` it was not accepted."""
    groups: dict[Target, list[str]] = {}
    for job, target in targets.items():
        groups.setdefault(target, []).append(job)
    for outlets in dict.fromkeys(target.outlets for target in groups):
        create_missing(config, outlets, yes=options.yes)
    for target, jobs in groups.items():
        _run(config, options, target, jobs)
    return submitted_rows(config, targets)


def hand_over_new(
    config: Config, options: SubmissionOptions, targets: Mapping[str, Target], addition: Addition
) -> list[dict[str, Any]]:
    """As `hand_over` for new jobs, which are queued in the transaction in which they are claimed."""
    outlets = tuple(dict.fromkeys(name for target in targets.values() for name in target.outlets))
    create_missing(config, outlets, yes=options.yes)
    target = Target(None, outlets, by_hardware=any(one.by_hardware for one in targets.values()))
    _run(config, options, target, list(targets), addition)
    return submitted_rows(config, targets)


def _run(
    config: Config, options: SubmissionOptions, target: Target, jobs: Sequence[str], addition: Addition | None = None
) -> None:
    """One short-lived pod for jobs that go to the same place."""
    from dispatcher.pod.options import PodOptions
    from dispatcher.pod.run import run_pod
    from dispatcher.pod.short_lived import unique_name

    pod_options = PodOptions(
        pod=unique_name("submit"),
        submissions=dict.fromkeys(target.outlets, len(jobs)),
        by_hardware=target.by_hardware,
        matrix=target.manifest,
        jobs=frozenset(jobs),
        request=target.request,
        addition=addition,
        max_jobs=len(jobs),
        code=options.code,
        once=True,
        on_exit="leave",
    )
    note(f"submitting {counted(len(jobs), 'job')} to {target.outlets_text}")
    run_pod(config.layout, config, pod_options, log=note)


def submitted_rows(config: Config, targets: Mapping[str, Target]) -> list[dict[str, Any]]:
    """What has become of jobs that were submitted."""
    records = _records(config, targets)
    return [_row(job, records.get(job), target) for job, target in targets.items()]


def _records(config: Config, jobs: Mapping[str, Target]) -> dict[str, Record]:
    from dispatcher.api import Workspace

    records = Workspace(config.layout.root).records()
    return {job: records[job] for job in jobs if job in records}


def _row(job: str, record: Record | None, target: Target) -> dict[str, Any]:
    is_queued = record is None or record.state in WAITING
    return {
        "job": job,
        "outlet": target.outlets_text if record is None or is_queued else record.outlet,
        "handle": None if record is None else record.handle,
        "state": "queued" if record is None else record.state.value,
        "error": None if record is None else record.error,
    }


def print_submitted(rows: list[dict[str, Any]], options: SubmissionOptions, columns: Sequence[str] = _COLUMNS) -> None:
    """The rows of `hand_over`, as a table or as JSON."""
    if options.as_json:
        print_json(rows)
    else:
        print_rows(rows, "plain", columns)


def _named(config: Config, options: SubmissionOptions) -> tuple[str, ...]:
    """The hosts that `--outlet` names; none for `auto`, or without it."""
    names = [name for name in options.outlets if name != "auto"]
    asked = read_outlets(names, 1, config.hosts)
    for name in asked.submissions:
        if name not in config.hosts.hosts:
            raise UsageError(f"--outlet {name}: no such host is configured{nearest(name, config.hosts.hosts)}")
    if asked.cpu_slots and names:
        raise UsageError("--outlet local: jobs of this host are run by a pod: `dispatcher --pod NAME --slots N`")
    return tuple(asked.submissions)


def _outlets_of(config: Config, entry: Entry, *, by_solver: bool) -> tuple[str, ...]:
    """The configured hosts that an entry asks for, or the only one that there is; none: the solver chooses."""
    known = config.hosts.hosts
    if entry.outlet:
        found = tuple(name for name in entry.outlet if name in known)
        if not found:
            raise UsageError(f"{entry.job_id} asks for outlet {' or '.join(entry.outlet)}, which is no configured host")
        return found
    if by_solver:
        return ()
    if len(known) > 1:
        listed = ", ".join(known)
        raise UsageError(f"submit {entry.job_id} where? --outlet HOST (configured: {listed}), --outlet auto or --chip")
    return tuple(known)


def _request(hardware: HardwareOptions, own: Request) -> Request:
    """A job's own request with the options that were given instead."""
    return hardware.over(own).for_outlet()


def _solve(config: Config, requests: Mapping[str, HardwareRequest]) -> dict[str, tuple[str, ...]]:
    """The hosts that can run these jobs, the best first; all are asked once, at the same time.

    Only those of preferred clusters, if one of these is the best. StateError, with the reason of each host, when none
    can run one of the jobs.
    """
    from dispatcher.outlets.solver.solve import solve, worth_asking
    from dispatcher.outlets.solver.survey import ask_hosts

    asked = {host.name: host for request in requests.values() for host in worth_asking(request, config.hosts)}
    reports = ask_hosts(asked.values(), config, _ASK_LIMIT_S)
    found = {}
    for job, request in requests.items():
        solution = solve(request, config.hosts, reports)
        if not solution.choices:
            reasons = [f"{refusal.host}: {refusal.why}" for refusal in solution.refusals]
            raise StateError(indented(f"no host can run {job} ({request.chips_text})", reasons))
        names = tuple(choice.host for choice in solution.choices)
        preferred = [config.hosts.hosts[name].cluster in request.preferred_clusters for name in names]
        found[job] = tuple(itertools.compress(names, preferred)) if preferred[0] else names
    return found
