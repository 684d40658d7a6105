"""`dispatcher submit -- COMMAND`: new jobs, left to pods or handed to hosts at once."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.base.messages import counted
from dispatcher.cli.command_options import CommandOptions
from dispatcher.cli.common import confirm, layout
from dispatcher.cli.printing import note, print_json
from dispatcher.cli.submission import (
    SubmissionOptions,
    Target,
    choose_targets,
    hand_over_new,
    print_submitted,
    submitted_rows,
)
from dispatcher.errors import INTERRUPTED, StateError, StorageError, UsageError
from dispatcher.hosts.overrides import HostOverrides
from dispatcher.run_state.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dispatcher.api import Workspace
    from dispatcher.config import Config
    from dispatcher.matrix.entry import Entry
    from dispatcher.submitting import Submission

# More new jobs than this are added only after a question.
_MANY: Final = 1000
# How often others may choose the same ids at the same moment.
_TRIES: Final = 20


def submit_new(
    workspace: Workspace,
    command: tuple[str, ...],
    job: CommandOptions,
    options: SubmissionOptions,
    *,
    is_awaited: bool,
    follow: bool,
) -> tuple[list[str], int]:
    """Add jobs of a command, and submit them where that was asked for; their ids and the exit status."""
    from dispatcher.submitting import Submission

    config = options.config(layout())
    new = job.new_jobs(command, workspace.layout, options.hardware)
    if follow:
        refuse_several(len(new.rows))
    if len(new.rows) > _MANY and not options.is_dry_run:
        confirm(f"submit {counted(len(new.rows), 'job')}?", yes=options.yes)
    submission = Submission(workspace, new)
    if options.goes_to_hosts(config.hosts.hosts):
        return submit_at_once(submission, config, options)
    if options.is_dry_run:
        _print_documents(submission.documents, options)
        return [], 0
    ids = _added(submission)
    rows = [{"job": one, "outlet": None, "handle": None, "state": State.QUEUED.value, "error": None} for one in ids]
    _print_ids(ids, rows, options)
    if not is_awaited:
        _note_where(workspace, ids)
    return ids, 0


def submit_at_once(submission: Submission, config: Config, options: SubmissionOptions) -> tuple[list[str], int]:
    """Hand new jobs to hosts, which their entries name; their ids and the exit status.

    They are queued in the transaction in which they are claimed, so no other pod with these hosts is first. What their
    entries cannot say (`--dirty`, `--volcano-image` ...) no other pod would do: jobs that cannot be claimed are held.
    """
    chosen = choose_targets(config, options, submission.entries, dict.fromkeys(submission.entries))
    submission.complete(lambda one: _asked(chosen[one], submission.entries[one], config))
    if options.is_dry_run:
        _print_documents(submission.documents, options)
        return [], 0
    submission.keep_code(is_extracted=True)
    in_order = list(chosen.values())
    for _ in range(_TRIES):
        targets = dict(zip(submission.ids, in_order, strict=True))
        rows = _add_and_hand_over(submission, targets, config, options)
        if rows:
            return _report(rows, options)
        if rows is not None:
            note("interrupted: nothing was submitted")
            return [], INTERRUPTED
        submission.choose_again()
    raise StateError(f"{submission.ids[0]}: others chose the same name {_TRIES} times: use --name")


def _asked(target: Target, entry: Entry, config: Config) -> dict[str, Any]:
    """The keys of the entry that say where it goes and on how many GPUs, for later attempts."""
    from dispatcher.pod.offers import request_of

    asked: dict[str, Any] = {"outlet": list(target.outlets)}
    if target.request is not None and request_of(config, entry).gpus is None:
        asked["gpus"] = target.request.gpus
    return asked


def _add_and_hand_over(
    submission: Submission, targets: Mapping[str, Target], config: Config, options: SubmissionOptions
) -> list[dict[str, Any]] | None:
    """What has become of the jobs; nothing when a signal came first, None when others have got their ids."""
    from dispatcher.pod.offers import request_of
    from dispatcher.pod.options import Addition
    from dispatcher.submitting import IdsTakenError

    added = False

    def tell() -> None:
        nonlocal added
        added = True
        _print_ids(list(targets), [], options)

    asked = zip(targets.values(), submission.entries.values(), strict=True)
    requests = frozenset(request_of(config, entry, target.request) for target, entry in asked)
    addition = Addition(
        append=submission.append, added=tell, requests=requests, code=submission.code,
        holds_rest=options.code is not None or options.host_overrides != HostOverrides(),
    )  # fmt: skip
    try:
        rows = hand_over_new(config, options, targets, addition)
    except IdsTakenError:
        return None
    except StorageError as error:
        # A caller repeats a submission that failed, so it must not have happened.
        if added or not submission.was_added():
            raise
        note(str(error))
        tell()
        rows = submitted_rows(config, targets)
    return rows if added else []


def _report(rows: list[dict[str, Any]], options: SubmissionOptions) -> tuple[list[str], int]:
    if options.as_json:
        print_submitted(rows, options)
    else:
        for row in rows:
            known = [row["outlet"], row["handle"] and f"handle {row['handle']}", row["state"], row["error"]]
            note(f"{row['job']}: {', '.join(filter(None, known))}")
    return [row["job"] for row in rows], int(not all(row["handle"] for row in rows))


def _added(submission: Submission) -> list[str]:
    ids = submission.add()
    if submission.warning:
        note(submission.warning)
    return ids


def _print_documents(documents: list[dict[str, Any]], options: SubmissionOptions) -> None:
    """The entries as they would be written."""
    if options.as_json:
        print_json(documents)
        return
    for one in documents:
        click.echo(json.dumps(one, ensure_ascii=False))


def _print_ids(ids: list[str], rows: list[dict[str, Any]], options: SubmissionOptions) -> None:
    """The ids and nothing else: a script reads them. At once, as waiting for the jobs may take days."""
    if options.as_json:
        if rows:
            print_submitted(rows, options)
    else:
        click.echo("\n".join(ids))
    sys.stdout.flush()


def _note_where(workspace: Workspace, ids: list[str]) -> None:
    """Say why the jobs may not begin soon."""
    from dispatcher.cli.wait_notes import START_A_POD, WaitNotes
    from dispatcher.pod.waiting import SLOT

    WaitNotes(workspace, START_A_POD).tell(ids, expected=SLOT)


def refuse_several(count: int) -> None:
    if count > 1:
        raise UsageError(
            f"--follow is for one job, and this would be {count}, so nothing was submitted: use --wait for several, "
            "and `dispatcher logs -f` beside it"
        )
