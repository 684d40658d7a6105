"""New jobs in a workspace: `Workspace.submit`, `dispatcher submit -- COMMAND` and `dispatcher job submit`.

The entries and the records come in one transaction, so a job that was reported is there, and one that was not is not.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.base.messages import problems
from dispatcher.base.users import owner_by
from dispatcher.base.values import shown
from dispatcher.config import Config
from dispatcher.errors import CodeError, StateError, StorageError, TemplateError, UsageError, nearest
from dispatcher.matrix.entry import OWNER, RESERVED, Entry
from dispatcher.matrix.manifest import read_entries
from dispatcher.matrix.new_jobs import NAME, NO_PARAMS, NewJobs, check_key, check_param, product, stem_of
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.states import State
from dispatcher.run_state.store import Store, Transaction
from dispatcher.run_state.submission import append_entries

if TYPE_CHECKING:
    from dispatcher.api import Workspace

# The method of commands; it has no settings unless dispatcher.yaml has some.
METHOD: Final = "command"


class IdsTakenError(Exception):
    """Others have submitted jobs of these ids at the same moment."""


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

    def complete(self, more: Callable[[str], Mapping[str, Any]]) -> None:
        """Add to each entry the keys that `more` gives for its id."""
        self._more = [more(one["job_id"]) for one in self.documents]
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

    @property
    def ids(self) -> list[str]:
        """The jobs, in the order of `documents`."""
        return [one["job_id"] for one in self.documents]

    def append(self, store: Store, tx: Transaction) -> None:
        """As `add`, in a transaction of any store. Raises IdsTakenError where others have got these ids meanwhile."""
        if self._are_taken(tx):
            raise IdsTakenError
        append_entries(store, tx, self.documents)
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

    def choose_again(self) -> None:
        """Outside of a transaction: choose other ids. Raises StateError when an id that was given is taken."""
        self._workspace.store.refresh(to_the_end=True)
        self.documents = self._completed(self._choose())

    def was_added(self) -> bool:
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
        entries, faults = read_entries([_as_written(one, one["job_id"]) for one in documents], known)
        if not faults:
            faults = _value_faults(self._workspace.config, entries.values())
        if faults:
            raise UsageError(problems("nothing was submitted", dict.fromkeys(faults), most=10))
        return entries


def _owned(document: dict[str, Any], owner: Mapping[str, str]) -> dict[str, Any]:
    return {**document, **owner} if document.get(OWNER) is None else document


def _as_written(value: Any, what: str) -> Any:
    """The value as it comes back from the file. Raises UsageError where it cannot be written."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError as error:
        fault = f"{shown(error.object[error.start : error.start + 20])}: not UTF-8, which an entry cannot hold"
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"an entry holds text, finite numbers, lists and mappings: {error}"
    raise UsageError(f"{what}: {fault}")


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


def new_jobs(
    command: str | Sequence[str],
    *,
    name: str | None,
    params: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | None,
    common: Mapping[str, Any],
) -> NewJobs:
    """The jobs of a command: one for each combination of the values of `params` (a list or a range has several).

    `rows` are further parameters, one job each. Raises UsageError.
    """
    unknown = [key for key in common if key not in RESERVED - {"job_id", "command"}]
    if unknown:
        raise UsageError(f"{unknown[0]}: no key of entries{nearest(unknown[0], RESERVED)}; parameters go into params")
    words = [command] if isinstance(command, str) else list(command)
    if not words or not all(isinstance(word, str) for word in words):
        raise UsageError("expected a command: a program and its arguments, all of them text")
    if not words[0]:
        raise UsageError("the command begins with an empty word: expected a program")
    if name is not None and rows and NAME in rows[0]:
        raise UsageError("--name: the CSV file gives the names")
    _check_rows(rows)
    values = {key: _values_of(key, value) for key, value in params.items()}
    columns = [key for key in (rows[0] if rows else ()) if key not in NO_PARAMS]
    telling = [*values] if NAME in columns else [*columns, *values]
    return NewJobs(
        common={"command": command if isinstance(command, str) else words, **common},
        name=name,
        stem=stem_of(_split(command) if isinstance(command, str) else words),
        rows=product(values, rows),
        telling=telling,
    )


def _check_rows(rows: Sequence[Mapping[str, Any]] | None) -> None:
    if rows is None:
        return
    if not rows:
        raise UsageError("rows: there are none, so there is no job")
    for number, row in enumerate(rows, 1):
        if row.keys() != rows[0].keys():
            raise UsageError(
                f"rows: row {number} has other keys ({', '.join(row)}) than the first ({', '.join(rows[0])})"
            )
    for key in rows[0].keys() - {NAME, *NO_PARAMS}:
        check_key(key, "rows")
    _as_written([dict(row) for row in rows], "rows")


def _values_of(key: str, value: Any) -> Sequence[Any]:
    check_param(key, f"parameter {key}")
    found = value if isinstance(value, (list, tuple, range)) else [value]
    if not found:
        raise UsageError(f"parameter {key}: has no value")
    if not isinstance(found, range):
        _as_written(found, f"parameter {key}")
    return found


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"command: cannot be split like a shell line ({error}); a list of arguments is safer"
        ) from None
