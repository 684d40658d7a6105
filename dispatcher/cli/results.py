"""`dispatcher results`: the results of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dispatcher.base.messages import counted, first_names
from dispatcher.cli.common import format_option, keys_option, open_workspace, read_list, state_option, where_option
from dispatcher.cli.complete import complete_result_key
from dispatcher.cli.printing import note, print_rows
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where
from dispatcher.report.columns import Narrowing

if TYPE_CHECKING:
    from dispatcher.report.tables import Rows


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

    Only of attempts that have succeeded: a job that has failed has no result, even if it wrote one.

    Without options, one row per job. With --rows, --cols and --value, a pivot table:
    dispatcher results --rows lang --cols method --value test_bpc --agg mean,std,best,n --best min
    """
    from dispatcher.report.pivot import pivot, without_value

    unsure: list[str] = []
    failed: list[str] = []
    table = open_workspace().results(states=states, where=where, unsure=unsure, failed=failed)
    if unsure:
        note(
            f"{counted(len(unsure), 'result')} with the parameters of the current manifest, because their attempts "
            f"have no entry.json: {first_names(unsure)}"
        )
    if failed:
        note(f"{counted(len(failed), 'job')} left out that wrote a result, but failed: {first_names(failed)}")
    if not (rows or cols or value):
        print_rows(table, style, none="no results yet", narrowing=_narrowing(table))
        return
    if value is None:
        raise UsageError("a pivot table needs a value: add --value KEY, for example --value test_bpc")
    lacking = without_value(table, value)
    pivoted = pivot(table, rows, cols, value, agg, best)
    print_rows(pivoted, style, none="no results yet", narrowing=Narrowing(keep=rows))
    if lacking and len(lacking) < len(table):
        note(f"{counted(len(lacking), 'result')} without {value} left out: {first_names(lacking)}")


def _narrowing(table: Rows) -> Narrowing:
    """The job and its first value stay; what is the same for all jobs goes first, other parameters before values."""
    names = dict.fromkeys(name for row in table for name in row)
    values = list(dict.fromkeys(name for row in table for name in _values(row)))
    parameters = [name for name in reversed(names) if name not in (*values, "job_id", "method", "attempt")]
    same = [name for name in parameters if len(table) > 1 and len({str(row.get(name)) for row in table}) == 1]
    return Narrowing(drop=("attempt", *same, *parameters, "method", *reversed(values)), keep=("job_id", *values[:1]))


def _values(row: Mapping[str, Any]) -> list[str]:
    """The keys of a row's result, which follow the attempt's number."""
    names = list(row)
    return names[names.index("attempt") + 1 :]
