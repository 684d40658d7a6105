"""`dispatcher results`: the results of jobs."""

from __future__ import annotations

import click

from dispatcher.base.messages import counted
from dispatcher.cli.common import format_option, keys_option, open_workspace, read_list, state_option, where_option
from dispatcher.cli.complete import complete_result_key
from dispatcher.cli.printing import note, print_rows
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where


@click.command()
@keys_option("--rows", help="Keys whose values become rows, e.g. lang.")
@keys_option("--cols", help="Keys whose values become columns, e.g. method.")
@click.option("--value", metavar="KEY", shell_complete=complete_result_key, help="The result shown in the cells.")
@click.option("--agg", callback=read_list, default="mean", metavar="LIST", help="mean,std,median,min,max,sum,best,n.")
@click.option(
    "--best",
    type=click.Choice(["min", "max"]),
    help="The value that the aggregate best takes.",
)
@where_option
@state_option
@format_option
def results(
    rows: tuple[str, ...],
    cols: tuple[str, ...],
    value: str | None,
    agg: tuple[str, ...],
    best: str | None,
    where: Where,
    states: tuple[str, ...],
    style: str,
) -> None:
    """Show the results of jobs and the parameters they ran with.

    Without options, one row per job. With --rows, --cols and --value, a pivot table:
    dispatcher results --rows lang --cols method --value test_bpc --agg mean,std,best,n --best min
    """
    from dispatcher.report.pivot import pivot, without_value

    unsure: list[str] = []
    table = open_workspace().results(states=states, where=where, unsure=unsure)
    if unsure:
        note(
            f"{counted(len(unsure), 'result')} with the parameters of the current manifest, because their attempts "
            f"have no entry.json: {', '.join(unsure[:3])}"
        )
    if not (rows or cols or value):
        print_rows(table, style, none="no results yet")
        return
    if value is None:
        raise UsageError("a pivot table needs a value: add --value KEY, for example --value test_bpc")
    lacking = without_value(table, value)
    print_rows(pivot(table, rows, cols, value, agg, best), style, none="no results yet")
    if lacking and len(lacking) < len(table):
        note(f"{counted(len(lacking), 'result')} without {value} left out: {', '.join(lacking[:3])}")
