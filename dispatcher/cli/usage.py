"""`dispatcher usage`: where the time of slots and GPUs went."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final

import click

from dispatcher.base.times import Clock, parse_since
from dispatcher.base.values import BadValueError
from dispatcher.cli.common import format_option, keys_option, open_workspace, utc_option, where_option
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import note, print_json, print_rows, print_text, terminal_width
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where

if TYPE_CHECKING:
    from dispatcher.query.usage.ledger import Usage

_BY_DEFAULT: Final = ("method",)


@click.command()
@keys_option("--by", help="Add up by these keys, e.g. method,lang: of jobs, or pod, host, user, outlet, day.")
@click.option("--since", default="7d", metavar="TIME", help="The beginning: 7d or 12h ago, 2026-06-17.  [default: 7d]")
@click.option("--until", metavar="TIME", help="The end, likewise.  [default: now]")
@where_option
@click.option("--disk", is_flag=True, help="Show what takes up the space on the disk instead.")
@utc_option
@format_option
def usage(by: tuple[str, ...], since: str, until: str | None, where: Where, disk: bool, utc: bool, style: str) -> None:
    """Show where the time of slots and GPUs went.

    Adds up what attempts used, by how they ended, and what was idle: together, the number of slots times the time in
    which their pods ran. With --disk: how much space the workspace takes up now, or its attempts by the keys of --by.
    """
    if disk:
        from dispatcher.cli.disk import show_disk

        if until is not None or where:
            raise UsageError("--disk shows the disk as it is now: leave --until and --where out")
        show_disk(open_workspace(), by, style)
        return
    from dispatcher.query.usage import tables

    clock = Clock(time.time(), utc)
    since_s = _moment("--since", since, clock)
    # The workspace knows better what time it is where this host's clock is off.
    until_s = None if until is None else _moment("--until", until, clock)
    if (clock.now_s if until_s is None else until_s) <= since_s:
        raise UsageError(f"--until {until} is not after --since {since}")
    # The lines of a long journal are no garbage: to look for some among them takes a fifth of the time.
    gc.disable()
    account = open_workspace().usage(by=by or _BY_DEFAULT, since_s=since_s, until_s=until_s, where=where, utc=utc)
    gc.enable()
    if style == "json":
        print_json(tables.document(account))
    elif style == "csv":
        print_rows(tables.long_rows(account), style, [*account.keys, "time", "slot_hours", "gpu_hours"])
    elif not account.total.total.slots:
        click.echo(f"no pod and no attempt ran: {tables.window_text(account, clock)}", err=style != "plain")
    elif style == "plain":
        _show(account, clock, is_default=not by)
    else:
        rows = tables.by_keys(account)
        print_rows(rows, style, numbers=_numbers(rows, account))
    for text in tables.notes(account, clock):
        note(text)


def _moment(option: str, text: str, clock: Clock) -> float:
    try:
        return parse_since(text, clock)
    except BadValueError as error:
        raise UsageError(f"{option} {text}: {error}") from None


def _show(account: Usage, clock: Clock, *, is_default: bool) -> None:
    from dispatcher.query.usage import tables

    print_text(tables.window_text(account, clock))
    click.echo()
    if is_default:
        sums = tables.sums(account)
        print_rows(sums, "plain", numbers=list(sums[0])[1:])
        click.echo()
    rows = _fitting(account)
    if not is_default or len(rows) > 1:
        print_text(tables.shares_text(account))
        print_rows(rows, "plain", narrowing=Narrowing(keep=account.keys), numbers=_numbers(rows, account))
        click.echo()
    for line in tables.check(account):
        print_text(line)


def _fitting(account: Usage) -> list[dict[str, str]]:
    """The rows with a column for as many kinds of time as the terminal has room for."""
    from dispatcher.base.terminal import width_of
    from dispatcher.cli.tables import render
    from dispatcher.query.usage import tables

    width = terminal_width()
    most = tables.kinds_in(account)
    rows = tables.by_keys(account, most)
    while width is not None and most > 1 and width_of(render(rows, "plain").partition("\n")[0]) > width:
        most -= 1
        rows = tables.by_keys(account, most)
    return rows


def _numbers(rows: list[dict[str, str]], account: Usage) -> set[str]:
    return rows[0].keys() - set(account.keys)
