"""New jobs in a workspace: `Workspace.submit`, `dispatcher submit -- COMMAND` and `dispatcher job submit`.

The entries and the records come in one transaction, so a job that was reported is there, and one that was not is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher.base.messages import problems
from dispatcher.config import Config
from dispatcher.errors import StateError, TemplateError, UsageError, nearest
from dispatcher.matrix.entry import RESERVED, Entry
from dispatcher.matrix.manifest import read_entries
from dispatcher.matrix.new_jobs import NewJobs, check_key, product, stem_of
from dispatcher.run_state.change import Change
from dispatcher.run_state.events import Event
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.states import State
from dispatcher.run_state.submission import append_entries

if TYPE_CHECKING:
    from dispatcher.api import Workspace

# The method of commands; it has no settings unless dispatcher.yaml has some.
METHOD: Final = "command"


class Submission:
    """New jobs of one workspace: checked first, then added. `entries` are they as far as they are known before."""

    def __init__(self, workspace: Workspace, new: NewJobs) -> None:
        self._workspace = workspace
        self._new = new
        store = workspace.store
        store.refresh(to_the_end=True)
        self._listed = ManifestJobs(workspace.config).in_manifests()
        self._known = self._listed | store.records.keys()
        self._more: Sequence[Mapping[str, Any]] = [{}] * len(new.rows)
        self.documents = self._choose()
        self.entries = self._checked(self.documents)

    def complete(self, more: Callable[[str], Mapping[str, Any]]) -> None:
        """Add to each entry the keys that `more` gives for its id."""
        self._more = [more(one["job_id"]) for one in self.documents]
        self.documents = self._completed(self.documents)

    def add(self) -> list[str]:
        """Add the jobs to the queue; their ids, in the order of `documents`, which names free before may have changed.

        Raises StateError when an id that was given is taken; then nothing was added.
        """
        workspace = self._workspace
        with workspace.transaction() as tx:
            if any(tx.record(one["job_id"]) is not None for one in self.documents):
                # Somebody else has taken it meanwhile.
                self._known = self._listed | workspace.store.records.keys()
                self.documents = self._completed(self._choose())
            append_entries(workspace.store, tx, self.documents)
            for one in self.documents:
                tx.change(one["job_id"], Event.QUEUED, Change(state=State.QUEUED))
        return [one["job_id"] for one in self.documents]

    def _completed(self, documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**one, **more} for one, more in zip(documents, self._more, strict=True)]

    def _choose(self) -> list[dict[str, Any]]:
        documents = self._new.documents(self._known.__contains__)
        taken = [one["job_id"] for one in documents if one["job_id"] in self._known]
        if taken:
            record = self._workspace.store.records.get(taken[0])
            state = f" ({record.state})" if record is not None else ""
            more = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
            again = f"; `dispatcher requeue {taken[0]}` runs it again" if record is not None else ""
            raise StateError(f"there is a job {taken[0]} already{state}{more}: choose another name{again}")
        return documents

    def _checked(self, documents: Iterable[Mapping[str, Any]]) -> dict[str, Entry]:
        ids = {one["job_id"] for one in documents}
        for need in self._new.common.get("needs", ()):
            if need not in self._known and need not in ids:
                raise UsageError(f"needs {need}: there is no such job{nearest(str(need), sorted(self._known)[:5000])}")
        entries, faults = read_entries([dict(one) for one in documents], self._known)
        if not faults:
            faults = _value_faults(self._workspace.config, entries.values())
        if faults:
            listed = list(dict.fromkeys(faults))
            more = [f"and {len(listed) - 10} more"] if len(listed) > 10 else []
            raise UsageError(problems("nothing was submitted", [*listed[:10], *more]))
        return entries


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
    try:
        "\0".join(words).encode()
    except UnicodeEncodeError:
        raise UsageError("the command has a word that is not UTF-8, which an entry cannot hold") from None
    if not words[0]:
        raise UsageError("the command begins with an empty word: expected a program")
    if name is not None and rows and "name" in rows[0]:
        raise UsageError("--name: the CSV file gives the names")
    values = {key: _values_of(key, value) for key, value in params.items()}
    telling = [*values] if rows and "name" in rows[0] else [*(rows[0] if rows else ()), *values]
    return NewJobs(
        common={"command": command if isinstance(command, str) else words, **common},
        name=name,
        stem=stem_of(_split(command) if isinstance(command, str) else words),
        rows=product(values, rows),
        telling=telling,
    )


def _values_of(key: str, value: Any) -> Sequence[Any]:
    check_key(key, f"parameter {key}")
    found = value if isinstance(value, (list, tuple, range)) else [value]
    if not found:
        raise UsageError(f"parameter {key}: has no value")
    return found


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"command: cannot be split like a shell line ({error}); a list of arguments is safer"
        ) from None


def check_names(workspace: Workspace, jobs: Iterable[str]) -> list[str]:
    """The jobs, all of which there are; UsageError for another."""
    workspace.store.refresh(to_the_end=True)
    records = workspace.store.records
    named = list(dict.fromkeys(jobs))
    for job in named:
        if job not in records:
            raise UsageError(f"unknown job {job!r}{nearest(job, list(records)[:5000])}")
    return named
