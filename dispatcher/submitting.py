"""New jobs in a workspace (`Workspace.submit`, `dispatcher submit -- COMMAND` and `dispatcher job submit`), and hosts.

The entries and the records come in one transaction, so a job that was reported is there, and one that was not is not.

Jobs are handed to hosts by a pod that lives for as long as that takes: it claims them, hands them to the outlet, waits
until each was accepted or refused, and ends. Any other pod, or `dispatcher poll`, records how they end.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatcher.base.messages import counted, indented, problems
from dispatcher.base.users import owner_by
from dispatcher.config import CodeMode, Config
from dispatcher.errors import CodeError, StateError, StorageError, TemplateError, UsageError, nearest
from dispatcher.matrix.entry import OWNER, Entry
from dispatcher.matrix.manifest import read_entries
from dispatcher.matrix.new_jobs import NewJobs, as_written
from dispatcher.matrix.submitted import append_entries
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store, Transaction

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.outlets.base import Request
    from dispatcher.outlets.solver.request import HardwareRequest
    from dispatcher.pod.options import Addition


# How often others may choose the same ids at the same moment.
_TRIES: Final = 20
_ASK_LIMIT_S: Final = 30.0


class IdsTakenError(Exception):
    """Others have submitted jobs of these ids at the same moment."""


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """Where jobs go, as it was asked for.

    hosts: one of these, the preferred first; empty: one that the entry names, or the only one.
    by_hardware: the best host, where neither `hosts` nor an entry names one.
    over: what is asked for instead of a job's own request. changes_requests: that is other hardware.
    """

    hosts: tuple[str, ...]
    by_hardware: bool
    over: Callable[[Request], HardwareRequest]
    changes_requests: bool


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
        """The hosts in words."""
        return self.outlets[0] if self.by_hardware else " or ".join(self.outlets)


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are handed to the hosts of `config`. `code` None: the setting of dispatcher.yaml."""

    config: Config
    code: CodeMode | None
    log: Callable[[str], None]

    def run(self, target: Target, jobs: Sequence[str], addition: Addition | None = None) -> None:
        """One short-lived pod for jobs that go to the same place."""
        from dispatcher.pod.options import PodOptions
        from dispatcher.pod.run import run_pod
        from dispatcher.pod.short_lived import unique_name

        options = PodOptions(
            pod=unique_name("submit"),
            submissions=dict.fromkeys(target.outlets, len(jobs)),
            by_hardware=target.by_hardware,
            matrix=target.manifest,
            jobs=frozenset(jobs),
            request=target.request,
            addition=addition,
            max_jobs=len(jobs),
            code=self.code,
            once=True,
            on_exit="leave",
        )
        self.log(f"submitting {counted(len(jobs), 'job')} to {target.outlets_text}")
        run_pod(self.config.layout, self.config, options, log=self.log)


class Submission:
    """New jobs of one workspace: checked first, then added. `entries` are they as far as they are known before.

    `warning`: what went wrong after they were added; empty when nothing did. `code` is the copy of the code that they
    run, empty for none.
    """

    def __init__(self, workspace: Workspace, new: NewJobs, manifests: ManifestJobs | None = None) -> None:
        """`manifests`, of a process that submits several times: what it has read of them."""
        self._workspace = workspace
        self._new = new
        store = workspace.store
        store.refresh(to_the_end=True)
        self._listed = (manifests or ManifestJobs(workspace.config)).ids()
        self._owner = {OWNER: owner_by(store.by)}
        self._more: Sequence[Mapping[str, Any]] = [{}] * len(new.rows)
        self.warning = ""
        self.code = ""
        self.documents = self._choose()
        self.entries = self._checked(self.documents)

    def name_hosts(self, config: Config, targets: Mapping[str, Target]) -> None:
        """Add to each entry where it goes and on how many GPUs, for later attempts."""
        self._more = [_asked(config, targets[job], self.entries[job]) for job in self.ids]
        self.documents = self._completed(self.documents)

    def add(self) -> list[str]:
        """Add the jobs to the queue; their ids, in the order of `documents`, which names free before may have changed.

        Raises StateError when an id that was given is taken, CodeError when there can be no copy of the code for jobs
        with `snapshot`, and StorageError; then nothing was added.
        """
        store = self._workspace.store
        self.keep_code()
        is_complete = False
        try:
            with self._workspace.transaction() as tx:
                if self._are_taken(tx):
                    self.documents = self._completed(self._choose())
                self.append(store, tx)
                is_complete = True
        except StorageError as error:
            # A caller repeats a submission that failed, so it must not have happened.
            if not is_complete or any(one["job_id"] not in store.records for one in self.documents):
                raise
            self.warning = str(error)
        return self.ids

    def hand_over(
        self, handover: Handover, targets: Sequence[Target], added: Callable[[], None], *, holds_rest: bool
    ) -> bool:
        """Queue the jobs in the transaction in which they are claimed, so no other pod with these hosts is first.

        False: a signal came first, and nothing was submitted. `added` is called once they are there. `holds_rest`: jobs
        that cannot be claimed are held, as no other pod would run them as was asked.
        """
        for _ in range(_TRIES):
            try:
                return self._hand_over_once(handover, targets, added, holds_rest=holds_rest)
            except IdsTakenError:
                self._choose_again()
        raise StateError(f"{self.ids[0]}: others chose the same name {_TRIES} times: use --name")

    def _hand_over_once(
        self, handover: Handover, targets: Sequence[Target], added: Callable[[], None], *, holds_rest: bool
    ) -> bool:
        from dispatcher.pod.offers import request_of
        from dispatcher.pod.options import Addition

        is_added = False

        def tell() -> None:
            nonlocal is_added
            is_added = True
            added()

        asked = zip(targets, self.entries.values(), strict=True)
        addition = Addition(
            append=self.append, added=tell, code=self.code, holds_rest=holds_rest,
            requests=frozenset(request_of(handover.config, entry, target.request) for target, entry in asked),
        )  # fmt: skip
        try:
            handover.run(merged(targets), self.ids, addition)
        except StorageError as error:
            # A caller repeats a submission that failed, so it must not have happened.
            if is_added or not self._was_added():
                raise
            self.warning = str(error)
            tell()
        return is_added

    @property
    def ids(self) -> list[str]:
        """The jobs, in the order of `documents`."""
        return [one["job_id"] for one in self.documents]

    def append(self, store: Store, tx: Transaction) -> None:
        """As `add`, in a transaction of any store. Raises IdsTakenError where others have got these ids meanwhile."""
        if self._are_taken(tx):
            raise IdsTakenError
        append_entries(
            store.layout.submitted_manifest, self.documents,
            counts=store.records.is_ad_hoc, guard=store.guard, when_over=tx.when_over,
        )  # fmt: skip
        for one in self.documents:
            copy = Change(snapshot=self.code) if self._wants_copy(one) else Change()
            tx.change(one["job_id"], Event.QUEUED, Change(state=State.QUEUED, ad_hoc=True) | copy)

    def keep_code(self, *, is_extracted: bool = False) -> None:
        """Keep the code as it is now, if jobs run a copy of it; before the lock is taken. Raises CodeError.

        `is_extracted`: the copy is ready for attempts.
        """
        if self.code or not any(map(self._wants_copy, self.documents)):
            return
        from dispatcher.outlets.code import copies

        try:
            snapshot = copies.take(self._workspace.layout)
            if is_extracted:
                copies.extract(self._workspace.layout, snapshot)
        except CodeError as error:
            raise CodeError(f"nothing was submitted, as there is no copy of the code (snapshot): {error}") from None
        except StorageError as error:
            raise StorageError(f"nothing was submitted: {error}, then submit again") from None
        self.code = snapshot.label

    def _choose_again(self) -> None:
        """Outside of a transaction: choose other ids. Raises StateError when an id that was given is taken."""
        self._workspace.store.refresh(to_the_end=True)
        self.documents = self._completed(self._choose())

    def _was_added(self) -> bool:
        """Whether the jobs are there, although the transaction that added them has failed."""
        self._workspace.store.refresh(to_the_end=True)
        return all(map(self._workspace.store.records.is_ad_hoc, self.ids))

    def _are_taken(self, tx: Transaction) -> bool:
        return any(tx.record(job) is not None for job in self.ids)

    def _wants_copy(self, document: Mapping[str, Any]) -> bool:
        return self._workspace.config.wants_copy(document["method"], document.get("snapshot"))

    def _is_known(self, job: str) -> bool:
        return job in self._listed or job in self._workspace.store.records

    def _completed(self, documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**one, **more} for one, more in zip(documents, self._more, strict=True)]

    def _choose(self) -> list[dict[str, Any]]:
        documents = [_owned(one, self._owner) for one in self._new.documents(self._is_known)]
        taken = [one["job_id"] for one in documents if self._is_known(one["job_id"])]
        if taken:
            record = self._workspace.store.records.get(taken[0])
            state = f" ({record.state})" if record is not None else ""
            more = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
            again = f"; `dispatcher requeue {taken[0]}` runs it again" if record is not None else ""
            raise StateError(f"there is a job {taken[0]} already{state}{more}: choose another name{again}")
        return documents

    def _checked(self, documents: Iterable[Mapping[str, Any]]) -> dict[str, Entry]:
        known = self._listed | self._workspace.store.records.keys()
        ids = {one["job_id"] for one in documents}
        needs = self._new.common.get("needs", ())
        for need in needs if isinstance(needs, (list, tuple)) else ():
            if need not in known and need not in ids:
                raise UsageError(f"needs {need}: there is no such job{nearest(str(need), sorted(known)[:5000])}")
        # What is read is what pods will read, and not what was given.
        entries, faults = read_entries([as_written(one, one["job_id"]) for one in documents], known)
        if not faults:
            faults = _value_faults(self._workspace.config, entries.values())
        if faults:
            raise UsageError(problems("nothing was submitted", dict.fromkeys(faults), most=10))
        return entries


def _owned(document: dict[str, Any], owner: Mapping[str, str]) -> dict[str, Any]:
    return {**document, **owner} if document.get(OWNER) is None else document


def _value_faults(config: Config, entries: Iterable[Entry]) -> list[str]:
    """Why attempts could not be started: a placeholder without a parameter, a value that no argument can have."""
    # Imported here: an id that is taken is found without them.
    from dispatcher.templates.command import command_line
    from dispatcher.templates.readiness import Readiness

    ready = Readiness(config, on_pod=False)
    faults = []
    for entry in entries:
        fault = ready.fault(entry)
        if not fault:
            try:
                command_line(config.method(entry.method), entry, Path("script.py"))
            except TemplateError as error:
                fault = str(error).removeprefix(f"{entry.job_id}: ")
        if fault:
            faults.append(f"{entry.job_id}: {fault}")
    return faults


def choose_targets(
    config: Config, destination: Destination, entries: Mapping[str, Entry], manifests: Mapping[str, Path | None]
) -> dict[str, Target]:
    """Where each job goes; raises UsageError when that is not clear, StateError when no host can run one."""
    from dispatcher.pod.offers import request_of

    outlets = {job: destination.hosts or _outlets_of(config, destination, entry) for job, entry in entries.items()}
    requests = {job: destination.over(request_of(config, entry)) for job, entry in entries.items()}
    solved = _solve(config, {job: requests[job] for job, found in outlets.items() if not found})
    equal = Counter(solved.values())
    targets = {}
    for job in entries:
        # The best host is enough for one job; several find room by what is free meanwhile.
        by_hardware = job in solved and equal[solved[job]] > 1
        targets[job] = Target(
            manifest=manifests[job],
            outlets=outlets[job] or (solved[job] if by_hardware else solved[job][:1]),
            request=requests[job].for_outlet() if destination.changes_requests else None,
            by_hardware=by_hardware,
        )
    return targets


def merged(targets: Sequence[Target]) -> Target:
    """The one target of new jobs that go to these."""
    outlets = tuple(dict.fromkeys(name for target in targets for name in target.outlets))
    return Target(None, outlets, by_hardware=any(one.by_hardware for one in targets))


def _asked(config: Config, target: Target, entry: Entry) -> dict[str, Any]:
    """The keys of the entry that say where it goes and on how many GPUs."""
    from dispatcher.pod.offers import request_of

    asked: dict[str, Any] = {"outlet": list(target.outlets)}
    if target.request is not None and request_of(config, entry).gpus is None:
        asked["gpus"] = target.request.gpus
    return asked


def _outlets_of(config: Config, destination: Destination, entry: Entry) -> tuple[str, ...]:
    """The configured hosts that an entry asks for, or the only one that there is; none: the solver chooses."""
    known = config.hosts.hosts
    if entry.outlet:
        found = tuple(name for name in entry.outlet if name in known)
        if not found:
            raise UsageError(f"{entry.job_id} asks for outlet {' or '.join(entry.outlet)}, which is no configured host")
        return found
    if destination.by_hardware:
        return ()
    if len(known) > 1:
        listed = ", ".join(known)
        raise UsageError(f"submit {entry.job_id} where? --outlet HOST (configured: {listed}), --outlet auto or --chip")
    return tuple(known)


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
