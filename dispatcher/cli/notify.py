"""`dispatcher notify`: the notices that were sent; test notices; sending from cron, without a pod."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from dispatcher.base.messages import counted
from dispatcher.base.times import Clock
from dispatcher.cli.common import json_option, open_workspace, utc_option
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import print_json, print_rows
from dispatcher.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dispatcher.api import Workspace

_COLUMNS: Final = ("time", "target", "state", "what", "why")
_NARROWING: Final = Narrowing(shrink=("why", "what", "target"), drop=("why",), keep=("state",))
_ALL: Final = ""
_NOT_SENT: Final = 1


@click.command()
@click.option(
    "--test", is_flag=False, flag_value=_ALL, default=None, metavar="[TARGET]",
    help="Send a test notice to TARGET, or to all targets, and say how it went.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Send what is due now, and end. For cron, where no pod may be running.")
@click.option(
    "--clear", is_flag=True, help="Dismiss notices that failed or may not have arrived: `status` no longer shows them."
)
@utc_option
@json_option
def notify(test: str | None, once: bool, clear: bool, utc: bool, as_json: bool) -> int:
    """Show the notices that were sent, and those that are pending.

    Targets are in dispatcher.yaml. The exit status is 1 if a notice of --test or --once may not have arrived.
    """
    if (test is not None) + once + clear > 1:
        raise UsageError("--test, --once and --clear are three different things: give one of them")
    workspace = open_workspace()
    if test is not None:
        return _test(workspace, [test] if test != _ALL else [], as_json=as_json)
    if once:
        return _once(workspace, as_json=as_json)
    if clear:
        numbers = workspace.clear_notices()
        if as_json:
            print_json({"cleared": numbers})
        else:
            click.echo(f"{counted(len(numbers), 'notice')} dismissed" if numbers else "there is nothing to dismiss")
        return 0
    _show(workspace, Clock(time.time(), utc), as_json=as_json)
    return 0


def _test(workspace: Workspace, targets: list[str], *, as_json: bool) -> int:
    outcomes = workspace.test_notice(*targets)
    if as_json:
        print_json({name: {"state": one.state, "why": one.why or None} for name, one in outcomes.items()})
    else:
        for name, one in outcomes.items():
            click.echo(f"{name}: {one.state}" + (f": {one.why}" if one.why else ""))
    return _NOT_SENT if any(one.state != "sent" for one in outcomes.values()) else 0


def _once(workspace: Workspace, *, as_json: bool) -> int:
    rows = workspace.tell()
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            click.echo(f"{row['target']}: {row['state']}: {row['what']}" + (f" ({row['why']})" if row["why"] else ""))
    return _NOT_SENT if any(row["state"] != "sent" for row in rows) else 0


def _show(workspace: Workspace, clock: Clock, *, as_json: bool) -> None:
    rows = workspace.notices()
    if as_json:
        print_json(rows)
    elif rows:
        print_notices(rows, clock)
    else:
        notify = workspace.config.notify
        targets = "no targets: docs/notify.md" if notify is None else f"targets: {', '.join(notify.targets)}"
        click.echo(f"no notices yet ({targets})")


def print_notices(rows: Iterable[dict[str, Any]], clock: Callable[[str | None], str]) -> None:
    """Print rows of `Workspace.notices` as a table."""
    shown = [_shown(row, clock) for row in rows]
    used = [name for name in _COLUMNS if any(row[name] for row in shown)]
    print_rows(shown, "plain", used, narrowing=_NARROWING)


def _shown(row: dict[str, Any], clock: Callable[[str | None], str]) -> dict[str, Any]:
    next_try = row["state"] == "failed"
    until = "" if row["until"] is None else f"{'at' if next_try else 'until'} {clock(row['until'])}"
    state = "failed, tried again" if next_try and until else row["state"]
    return {
        "time": clock(row["at"]),
        "target": row["target"],
        "state": f"{state} {until}".strip(),
        "what": row["what"],
        "why": row["why"] or "",
    }
