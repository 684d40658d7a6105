"""`dispatcher diff JOB JOB`: what differs between two attempts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.cli.common import json_option, open_workspace
from dispatcher.cli.complete import complete_jobs
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import note, print_json, print_rows, print_text
from dispatcher.errors import DispatcherError, StateError, UsageError

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.query.differences import Difference, FieldDifference, Side

_NARROWING: Final = Narrowing(shrink=("a", "b", "what"), keep=("what",))
# As diff exits.
_TROUBLE: Final = 2


@click.command()
@click.argument("one", metavar="JOB[:ATTEMPT]", shell_complete=complete_jobs)
@click.argument("other", metavar="JOB[:ATTEMPT]", shell_complete=complete_jobs)
@json_option
def diff(one: str, other: str, as_json: bool) -> int:
    """Compare two jobs, or two attempts of one (`a:1 a:2`): what they ran with, what they ran from, what came of it.

    Without a number, the last attempt counts. Only what differs is printed: parameters, code, packages, environment,
    results. Exits with 0 if nothing differs and everything is known, with 1 if not, and with 2 on errors.
    """
    from dispatcher.query.differences import difference

    try:
        workspace = open_workspace()
        found = difference(workspace.layout, _side(workspace, one), _side(workspace, other))
    except DispatcherError as error:
        error.exit_code = _TROUBLE
        raise
    if as_json:
        document = msgspec.to_builtins(found)
        print_json({**document, "equal": found.is_equal})
    else:
        _print(found)
    return 0 if found.is_equal else 1


def _side(workspace: Workspace, word: str) -> Side:
    """The attempt that `JOB` or `JOB:ATTEMPT` means. Raises UsageError and StateError."""
    from dispatcher.query.differences import Side
    from dispatcher.query.selection import select

    name, colon, number = word.partition(":")
    if colon and not (number.isascii() and number.isdecimal() and int(number)):
        raise UsageError(f"{word}: expected JOB or JOB:ATTEMPT, with an attempt's number such as 1")
    jobs = select(workspace.snapshot(), [name])
    if len(jobs) != 1:
        raise UsageError(f"{name}: {len(jobs)} jobs; name one")
    rows = {row["attempt"]: row for row in workspace.attempts(jobs[0])}
    if not rows:
        raise StateError(f"{jobs[0]} has not run: it has no attempt to compare")
    attempt = int(number) if colon else max(rows)
    if attempt not in rows:
        raise StateError(f"{jobs[0]} has no attempt {attempt} (attempts: {', '.join(map(str, rows))})")
    return Side(jobs[0], attempt, _ended(rows[attempt]))


def _ended(row: dict[str, Any]) -> str:
    if row["exit_code"] is None and row["event"] is None:
        return "not ended"
    return row["reason"] or ("done" if row["exit_code"] == 0 else f"exit {row['exit_code']}")


def _print(found: Difference) -> None:
    for letter, side in (("a", found.a), ("b", found.b)):
        print_text(f"{letter}  {side.job}, attempt {side.attempt}: {side.ended}")
    _section("parameters", found.parameters)
    _section(f"code: {found.code}", found.code_rows, always=True)
    for line in (*found.commits, *filter(None, [found.stat])):
        print_text(f"  {line}")
    _section("packages", found.packages)
    _section("environment", found.environment)
    if found.results:
        click.echo("\nresults")
        rows = [
            {
                "what": row.what,
                **_shown(row.a, row.b),
                "b - a": "" if row.difference is None else f"{row.difference:+.4g}",
                "relative": "" if row.relative is None else f"{row.relative:+.1%}",
            }
            for row in found.results
        ]
        print_rows(rows, "plain", narrowing=_NARROWING)
    for what in found.unknown:
        note(f"unknown: {what}")
    if found.is_equal:
        click.echo("\nnothing differs")


def _section(title: str, rows: Iterable[FieldDifference], *, always: bool = False) -> None:
    listed = [{"what": row.what, **_shown(row.a, row.b)} for row in rows]
    if listed or always:
        click.echo(f"\n{title}")
    if listed:
        print_rows(listed, "plain", narrowing=_NARROWING)


def _shown(a: Any, b: Any) -> dict[str, str]:
    from dispatcher.query.differences import shown

    return {"a": shown(a), "b": shown(b)}
