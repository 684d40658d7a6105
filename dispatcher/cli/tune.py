"""`dispatcher matrix tune` and `dispatcher matrix trials`: adaptive sweeps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.base.messages import counted, first_names
from dispatcher.base.terminal import one_line
from dispatcher.cli.common import confirm, format_option, open_workspace
from dispatcher.cli.complete import complete_studies
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import note, print_rows
from dispatcher.cli.time_limit import timeout_option
from dispatcher.errors import LockError, StaleViewError, StorageError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dispatcher.api import Workspace
    from dispatcher.tuning.settings import Settings
    from dispatcher.tuning.trials import TrialState
    from dispatcher.tuning.tuner import Step, StudyPlan, Tuner

# These end by themselves, and so may the reason of them.
_TROUBLE: Final = (StorageError, LockError, StaleViewError, OSError)
_TELL_PAUSE_S: Final = 10.0


@click.command()
@click.argument("study", required=False, type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Ask for the trials that are due now, and end: for cron.")
@click.option("--resume", is_flag=True, help="Go on with a study that was stopped.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a new version of the study.")
@click.option(
    "--stop",
    "stopped",
    metavar="NAME",
    shell_complete=complete_studies,
    help="No new trials of the study NAME; what runs goes on.",
)
@click.option(
    "--cancel",
    "cancelled",
    metavar="NAME",
    shell_complete=complete_studies,
    help="As --stop, and cancel its trials that have not ended.",
)
@timeout_option
def tune(study: Path | None, once: bool, resume: bool, yes: bool, stopped: str | None, cancelled: str | None) -> int:
    """Run the adaptive sweep that the file STUDY describes: trials whose parameters depend on what others have found.

    Trials are jobs, which pods run. This command only asks for them, `parallel` at a time, until there are `trials` of
    them and all have ended. It may be killed and started again, and run on several hosts at once.
    """
    if sum(given is not None for given in (study, stopped, cancelled)) != 1:
        raise UsageError("expected the file of a study, or --stop NAME, or --cancel NAME")
    workspace = open_workspace()
    if study is None:
        _end(workspace, str(stopped or cancelled), is_cancelled=cancelled is not None)
        return 0
    from dispatcher.base.files import read_plain
    from dispatcher.matrix.faults import respelt
    from dispatcher.tuning.settings import read_settings
    from dispatcher.tuning.tuner import Tuner

    settings = read_settings(study)
    for line in respelt(read_plain(study)):
        click.echo(f"warning: {one_line(line)}", err=True)
    _check_libraries(settings)
    tuner = Tuner(workspace, settings)
    plan = tuner.plan(resume=resume)
    if plan.changed:
        _tell_version(settings, plan)
        confirm(f"begin version {plan.version} of {settings.name}?", yes=yes)
    progress = _Progress(workspace, settings)
    try:
        tuner.begin(plan)
        return progress.once(tuner) if once else progress.follow(tuner)
    finally:
        tuner.close()


@click.command()
@click.argument("name", shell_complete=complete_studies)
@click.option("--sort", type=click.Choice(["number", "value"]), default="number", help="[default: number]")
@format_option
def trials(name: str, sort: str, style: str) -> None:
    """Show the trials of the study NAME: parameters, state, value. The best one has a star."""
    from dispatcher.tuning.trials import best_of, comparable, trial_states

    workspace = open_workspace()
    workspace.store.refresh(to_the_end=True, for_display=True)
    study = workspace.store.fold.studies.get(name)
    if study is None:
        raise _unknown(workspace, name)
    goal = study.settings["objective"]["goal"]
    found = trial_states(study, workspace.store.records)
    kept = {one.number for one in comparable(study, found)}
    best = best_of((one for one in found if one.number in kept), goal)
    if sort == "value":
        sign = 1 if goal == "min" else -1
        # Values of pruned trials are those of other steps.
        found.sort(key=lambda one: (one.value is None, one.why != "", sign * (one.value or 0.0), one.number))
    value, halving = study.settings["objective"]["value"], study.settings.get("halving")
    rows = [_row(workspace, one, value, halving and halving["metric"], is_best=one is best) for one in found]
    if len(study.versions) > 1:
        for row, one in zip(rows, found, strict=True):
            row["version"] = one.trial.version
    params = list(dict.fromkeys(key for one in found for key in one.params))
    keep = ("trial", "state", value)
    print_rows(rows, style, none="no trials yet", narrowing=Narrowing(drop=("job", "best", *params), keep=keep))
    if study.stopped_by:
        note(f"{name} was stopped by {study.stopped_by} at {study.stopped_at}")


def _row(workspace: Workspace, one: TrialState, value: str, metric: str | None, *, is_best: bool) -> dict[str, Any]:
    from dispatcher.tuning.trials import Status

    # What a pruned trial had last is a value at another step, and maybe of another key.
    final = None if one.status is Status.PRUNED else one.value
    row: dict[str, Any] = {"trial": one.number, "state": _state(workspace, one), value: final}
    if metric is not None:
        row[f"last {metric}"] = one.rungs[max(one.rungs)] if one.rungs else None
    return {**row, "best": "*" if is_best else None, **one.params, "job": one.job}


def _state(workspace: Workspace, one: TrialState) -> str:
    from dispatcher.pod.outcome import read_step
    from dispatcher.tuning.trials import Status

    if one.status is Status.RUNNING:
        step = read_step(workspace.layout.attempt(one.job, one.attempt).progress)
        return str(one.status) if step is None else f"{one.status} at step {step:g}"
    if one.status is Status.FAILED and one.why:
        return f"{one.status}: {one.why}"
    return f"{one.status} {one.why}".rstrip()


def _check_libraries(settings: Settings) -> None:
    """Say before anything is written that the extra is missing."""
    from dispatcher.base.libraries import missing_libraries_named
    from dispatcher.tuning.settings import QMC

    with missing_libraries_named():
        import dispatcher.tuning.sampling

        if settings.sampler == QMC:
            import dispatcher.tuning.quasi  # noqa: F401


def _unknown(workspace: Workspace, name: str) -> UsageError:
    known = workspace.store.fold.studies
    return UsageError(f"there is no study {name!r}" + (nearest(name, known) if known else ": none was begun here"))


def _end(workspace: Workspace, name: str, *, is_cancelled: bool) -> None:
    from dispatcher.tuning.ending import end_study

    workspace.store.refresh(to_the_end=True)
    if name not in workspace.store.fold.studies:
        raise _unknown(workspace, name)
    left = end_study(workspace, name, is_cancelled=is_cancelled)
    rest = f"; {counted(len(left), 'trial')} {'stopped' if is_cancelled else 'still open'}" if left else ""
    click.echo(f"{name}: no new trials{rest}")


def _tell_version(settings: Settings, plan: StudyPlan) -> None:
    kept = f"{plan.kept} of its {counted(plan.before, 'trial')} so far count" if plan.before else "it has no trials yet"
    note(
        f"{settings.name}: {first_names(plan.changed)} changed since version {plan.version - 1}: "
        f"{kept} for what is suggested next, and for the best"
    )


class _Progress:
    """What a tuner says: trials that were asked for, and what they have found."""

    def __init__(self, workspace: Workspace, settings: Settings) -> None:
        from dispatcher.cli.wait_notes import START_A_POD, WaitNotes

        self._workspace = workspace
        self._settings = settings
        self._told: dict[tuple[int, int], str] = {}
        self._notes = WaitNotes(workspace, START_A_POD)
        self._is_first = True

    def once(self, tuner: Tuner) -> int:
        self._tell(tuner.step())
        return 0

    def follow(self, tuner: Tuner) -> int:
        """Until the study is over; 0 if it has a best trial."""
        from dispatcher.cli.waiting import look_after
        from dispatcher.pod.waiting import SLOT
        from dispatcher.query.ends import NextChange
        from dispatcher.tuning.trials import Status

        next_tell_s, trouble = 0.0, ""
        changes = NextChange(self._workspace.layout)
        try:
            while True:
                pause_s = _TELL_PAUSE_S
                try:
                    step = tuner.step()
                    self._tell(step)
                    if step.is_over:
                        return self._finish(step)
                    if time.monotonic() >= next_tell_s:
                        waiting = [one.job for one in step.trials if one.status in (Status.QUEUED, Status.HELD)]
                        self._notes.tell(waiting, expected=SLOT)
                        running = [one.job for one in step.trials if one.status is Status.RUNNING]
                        look_after(self._workspace, running, None)
                        next_tell_s = time.monotonic() + _TELL_PAUSE_S
                    pause_s, trouble = next_tell_s - time.monotonic(), ""
                except _TROUBLE as error:
                    if str(error) != trouble:
                        note(f"{error}; tuning goes on")
                    trouble = str(error)
                changes.pause(pause_s)
        except KeyboardInterrupt:
            note(
                f"trials that were asked for go on; start this again to go on with {self._settings.name}, "
                f"`dispatcher matrix tune --cancel {self._settings.name}` gives up"
            )
            raise
        finally:
            changes.close()

    def _tell(self, step: Step) -> None:
        from dispatcher.tuning.trials import OPEN

        if step.asked:
            click.echo(f"{counted(len(step.asked), 'trial')} queued: {first_names(step.asked)}")
        news = [one for one in step.trials if self._told.get((one.number, one.attempt)) != one.status]
        self._told |= {(one.number, one.attempt): one.status for one in news}
        for one in news if not self._is_first else ():
            if one.status not in OPEN:
                click.echo(self._line(one, is_best=one is step.best))
        self._is_first = False

    def _line(self, one: TrialState, *, is_best: bool) -> str:
        from dispatcher.base.messages import number_text
        from dispatcher.tuning.trials import Status

        halving = self._settings.halving
        name = halving.metric if one.status is Status.PRUNED and halving is not None else self._settings.value
        value = f", {name} {number_text(one.value)}" if one.value is not None else ""
        return f"{one.job}: {one.status}{f' {one.why}' if one.why else ''}{value}{' (best so far)' if is_best else ''}"

    def _finish(self, step: Step) -> int:
        click.echo(_summary(step.trials))
        if step.stopped_by:
            note(f"{self._settings.name} was stopped by {step.stopped_by} at {step.stopped_at}")
        if step.is_exhausted and len(step.trials) < step.total:
            note(f"all combinations of the space were tried, so that there are fewer than {step.total} trials")
        if step.best is None:
            return 1
        click.echo(f"best: {self._line(step.best, is_best=False)}")
        for key, value in step.best.params.items():
            click.echo(f"  {key}: {value}")
        return 0


def _summary(found: Sequence[TrialState]) -> str:
    counts = _counts(str(one.status) for one in found)
    return f"{counted(len(found), 'trial')}: {', '.join(f'{count} {word}' for word, count in counts.items())}"


def _counts(words: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
