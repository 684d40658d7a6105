"""Asks for the trials of a study, and records what they have found; see the package's page."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatcher.base import files
from dispatcher.base.mounts import mount_of
from dispatcher.base.values import identity, shown
from dispatcher.errors import StateError, StorageError
from dispatcher.matrix.new_jobs import NAME, NewJobs
from dispatcher.query.attempts import read_or_why
from dispatcher.run_state.facets.studies import Study, StudySet, TrialAsked, TrialMeasured
from dispatcher.run_state.known_jobs import ManifestJobs
from dispatcher.run_state.results import parse_result
from dispatcher.run_state.states import State
from dispatcher.submitting import IdsTakenError, Submission
from dispatcher.tuning.rungs import Rungs
from dispatcher.tuning.settings import Settings
from dispatcher.tuning.space import combinations
from dispatcher.tuning.trials import (
    NOT_FINITE,
    OCCUPYING,
    OPEN,
    Status,
    TrialState,
    best_of,
    comparable,
    counted_trials,
    trial_states,
)
from dispatcher.tuning.writing import Writer

if TYPE_CHECKING:
    from dispatcher.api import Workspace

# How often other tuners may be first before this one leaves it to its next step.
_TRIES: Final = 5
# What a tuner that runs takes over when another one has changed it.
_TOTALS: Final = ("trials", "parallel")


class StudyPlan(msgspec.Struct, frozen=True):
    """What it means to begin with some settings. `seen` is the study as the journal has it, None for a new one.

    `changed` are the parameters and constants that make a new version. `kept` of the `before` trials count in it.
    """

    seen: Study | None
    version: int
    changed: tuple[str, ...] = ()
    kept: int = 0
    before: int = 0


class Step(msgspec.Struct, frozen=True):
    """What a step has found: all trials, those that were asked for in it, and whether the study has come to its end.

    `best` is the best of those that count for the present version; None: none of them has a value. `stopped_by` is who
    has stopped the study, `stopped_at` when; empty while it goes on. `is_exhausted`: all that the space has was tried.
    """

    trials: Sequence[TrialState]
    best: TrialState | None
    total: int
    asked: Sequence[str]
    stopped_by: str
    stopped_at: str
    is_exhausted: bool = False

    @property
    def is_over(self) -> bool:
        """Whether there will be no more trials, and all have ended."""
        is_complete = bool(self.stopped_by) or self.is_exhausted or counted_trials(self.trials) >= self.total
        return is_complete and not any(one.status in OPEN for one in self.trials)


class Tuner:
    """The study `settings` of a workspace, as one process works on it."""

    def __init__(self, workspace: Workspace, settings: Settings) -> None:
        self._workspace = workspace
        self._store = workspace.store
        self._settings = settings
        self._version = 0
        self._writer = Writer(workspace)
        self._listed = ManifestJobs(workspace.config)
        self._known: tuple[tuple[int, int], list[TrialState]] | None = None
        known = combinations(settings.space)
        self._combinations = None if known is None else frozenset(map(identity, known))
        self._rungs: Rungs | None = None
        if settings.halving is not None:
            self._rungs = Rungs(workspace, self._writer, settings.name, settings.halving, settings.goal)

    def plan(self, *, resume: bool = False) -> StudyPlan:
        """What beginning would change.

        Raises UsageError with the faults of the entries, and StateError where the study cannot go on with these
        settings.
        """
        self._store.refresh(to_the_end=True)
        name, wanted = self._settings.name, self._settings.journalled()
        study = self._store.fold.studies.get(name)
        # An entry is read as pods will read it.
        self._submission({0 if study is None else study.next_number: self._settings.example()})
        if study is None:
            return StudyPlan(None, 1)
        for key, value in self._settings.identity().items():
            if identity(study.settings.get(key)) != identity(value):
                raise StateError(
                    f"{name}: {key} is {shown(value)}, but the study has {shown(study.settings.get(key))}, and values "
                    "of the two cannot be compared: choose another name for this study"
                )
        if study.stopped_by and not resume:
            raise StateError(
                f"{name} was stopped by {study.stopped_by} at {study.stopped_at}: --resume goes on with it"
            )
        seen, changed = study.copy(), _changed(study.settings, wanted)
        if not changed:
            return StudyPlan(seen, study.version)
        after = Study(study.version + 1, wanted, {**study.versions, study.version + 1: wanted}, study.trials)
        trials = trial_states(after, self._store.records)
        return StudyPlan(seen, after.version, changed, len(comparable(after, trials)), len(trials))

    def begin(self, plan: StudyPlan) -> None:
        """Record the settings. Raises StateError where another tuner has changed them since `plan`."""
        name, wanted = self._settings.name, self._settings.journalled()
        with self._writer.transaction() as tx:
            study = self._store.fold.studies.get(name)
            if study is None or identity(study.settings) != identity(wanted) or study.stopped_by:
                if _head_of(study) != _head_of(plan.seen):
                    raise StateError(f"{name}: the study was changed or stopped at the same moment; start again")
                tx.note(StudySet(study=name, version=plan.version, settings=wanted))
        self._version = self._study().version

    def close(self) -> None:
        """Bring the status file up to date."""
        self._writer.close()

    def step(self) -> Step:
        """Record what trials have reached, stop those that do not go on, and ask for those that are due."""
        self._store.refresh()
        self._writer.keep_up()
        if self._rungs is not None:
            self._rungs.decide(self._trials())
        self._measure()
        asked: list[str] = []
        for _ in range(_TRIES):
            found = self._ask()
            if found is not None:
                asked = found
                break
        study, trials = self._study(), self._trials()
        best = best_of(comparable(study, trials), self._settings.goal)
        total, is_exhausted = study.settings["trials"], self._untried(study) == 0
        return Step(trials, best, total, asked, study.stopped_by, study.stopped_at, is_exhausted)

    def _untried(self, study: Study) -> int | None:
        """How many combinations of the space no trial has; None where they are endless."""
        if self._combinations is None:
            return None
        tried = [identity(one.params) for one in comparable(study, self._trials()) if one.was_tried]
        return len(self._combinations.difference(tried))

    def _study(self) -> Study:
        name = self._settings.name
        study = self._store.fold.studies.get(name)
        if study is None:
            raise StateError(f"{name}: the journal has no such study any more; start again")
        return study

    def _current(self) -> Study:
        """The study. Raises StateError where another tuner has changed more of it than how many trials there are."""
        study = self._study()
        wanted = self._settings.journalled()
        known = {**study.settings, **{key: wanted[key] for key in _TOTALS}}
        if identity(known) != identity(wanted) or study.version != self._version:
            raise StateError(
                f"{self._settings.name} goes on with other settings (version {study.version}): this tuner ends; the "
                "trials that run are not affected"
            )
        return study

    def _trials(self) -> list[TrialState]:
        """All trials, as far as the journal was read; built again when it says more."""
        read = self._store.reloads, self._store.seq
        if self._known is None or self._known[0] != read:
            self._known = read, trial_states(self._study(), self._store.records)
        return self._known[1]

    # Values.

    def _measure(self) -> None:
        unread = [one for one in self._trials() if one.status is Status.UNREAD]
        if not unread:
            return
        notes = [self._value_of(one) for one in unread]
        with self._writer.transaction() as tx:
            study = self._study()
            for one, note in zip(unread, notes, strict=True):
                record, known = tx.record(one.job), study.measured.get(one.number)
                is_known = known is not None and known.attempt == one.attempt
                if record is not None and record.state is State.DONE and record.attempt == one.attempt and not is_known:
                    tx.note(note, job=one.job)

    def _value_of(self, one: TrialState) -> TrialMeasured:
        """The objective in the `result.json` of the trial's last attempt."""
        path = self._workspace.layout.attempt(one.job, one.attempt).result
        # The directory of the attempt may have been removed.
        with contextlib.suppress(OSError):
            if mount_of(path.parent).is_network:
                files.refresh_names(path.parent)
        value, why = read_value(path, self._settings.value)
        return TrialMeasured(study=self._settings.name, number=one.number, attempt=one.attempt, value=value, why=why)

    # New trials.

    def _ask(self) -> list[str] | None:
        """The jobs of new trials; None when another tuner was first."""
        study = self._current()
        numbers, settings = self._due(study), study.settings
        if not numbers:
            return []
        seen, first = self._store.seq, study.next_number
        params = self._suggest(study, numbers)
        try:
            submission = self._submission(params)
        except StateError:
            self._store.refresh(to_the_end=True)
            if self._study().next_number != first:
                return None
            raise
        submission.keep_code()
        name, asked = self._settings.name, False
        try:
            with self._writer.transaction() as tx:
                study = self._current()
                is_same = study.next_number == first and identity(study.settings) == identity(settings)
                if is_same and not study.stopped_by:
                    submission.append(self._store, tx)
                    for number, job in zip(numbers, submission.ids, strict=True):
                        trial = TrialAsked(
                            study=name, version=study.version, number=number, params=params[number], seen=seen
                        )  # fmt: skip
                        tx.note(trial, job=job)
                    asked = True
        except IdsTakenError:
            raise StateError(
                f"{name}: there is a job {submission.ids[0]} that is no trial: choose another job_id"
            ) from None
        except StorageError:
            # The trials are there where only the status file could not be written.
            if not asked or first not in self._study().trials:
                raise
        return submission.ids if asked else None

    def _due(self, study: Study) -> range:
        """The numbers of the trials that may be asked for now."""
        if study.stopped_by:
            return range(0)
        trials = self._trials()
        missing = study.settings["trials"] - counted_trials(trials)
        room = study.settings["parallel"] - sum(one.status in OCCUPYING for one in trials)
        untried = self._untried(study)
        due = min(missing, room) if untried is None else min(missing, room, untried)
        return range(study.next_number, study.next_number + max(0, due))

    def _suggest(self, study: Study, numbers: range) -> dict[int, dict[str, Any]]:
        # Imported when it is needed: Optuna takes longer than everything else.
        from dispatcher.tuning.sampling import Sampling

        sampling = Sampling(study.settings, comparable(study, self._trials()))
        return {number: sampling.suggest(number) for number in numbers}

    def _submission(self, params: Mapping[int, Mapping[str, Any]]) -> Submission:
        entries = [self._settings.entry(number, found) for number, found in params.items()]
        rows = [{NAME: entry.pop("job_id"), **entry} for entry in entries]
        return Submission(self._workspace, NewJobs(common=self._settings.defaults, rows=rows), self._listed)


def read_value(path: Path, key: str) -> tuple[float | None, str]:
    """The number that a `result.json` has under `key`, or why there is none."""
    found = read_or_why(path)
    result = parse_result(found) if isinstance(found, bytes) else None
    if result is None:
        why = f"cannot be read: {found}" if isinstance(found, str) else "is no JSON object"
        return None, "no result.json" if found is None else f"result.json {why}"
    if key not in result:
        return None, f"result.json has no {key}"
    number = result[key]
    if number is None or (isinstance(number, float) and not math.isfinite(number)):
        return None, f"{key} {NOT_FINITE}"
    if isinstance(number, bool) or not isinstance(number, (int, float)) or abs(number) > sys.float_info.max:
        return None, f"{key} is {shown(number)}"
    return float(number), ""


def _head_of(study: Study | None) -> tuple[object, ...]:
    return () if study is None else (study.version, identity(study.settings), study.stopped_by)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes trials before and after different: `space.lr`, `defaults.lang`."""
    found = []
    for key, word in (("space", "space"), ("constants", "defaults")):
        one, other = before[key], after[key]
        names = dict.fromkeys([*one, *other])
        found += [f"{word}.{name}" for name in names if identity(one.get(name)) != identity(other.get(name))]
    return tuple(found)
