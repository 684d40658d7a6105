"""`dispatcher results`: what the jobs that are done have found out."""

from __future__ import annotations

import click

from dispatcher.cli.common import format_option, open_workspace, read_list, state_option, where_option
from dispatcher.cli.printing import note, print_rows
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where


@click.command()
@click.option("--rows", callback=read_list, metavar="KEYS", help="The keys whose values go down, e.g. lang.")
@click.option("--cols", callback=read_list, metavar="KEYS", help="The keys whose values go across, e.g. method.")
@click.option("--value", metavar="KEY", help="The result that the cells show.")
@click.option("--agg", callback=read_list, default="mean", metavar="LIST", help="mean,std,median,min,max,sum,best,n.")
@click.option("--best", type=click.Choice(["min", "max"]), help="Which value the aggregate best takes.")
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
    """Show the results of jobs that are done, with the parameters that they ran with.

    Without options one row per job. With --rows, --cols and --value a pivot:
    dispatcher results --rows lang --cols method --value test_bpc --agg mean,std,best,n --best min
    """
    from dispatcher.report.pivot import pivot, without_value
    from dispatcher.report.selection import parse_states, select

    workspace = open_workspace()
    snapshot = workspace.snapshot()
    jobs = select(snapshot, (), parse_states(states), where)
    unsure: list[str] = []
    table = workspace.results(snapshot.only({job: snapshot.records[job] for job in jobs}), unsure)
    if unsure:
        note(
            f"{len(unsure)} results have the parameters of today's manifest, because their attempts left no "
            f"entry.json: {', '.join(unsure[:3])}"
        )
    if not (rows or cols or value):
        print_rows(table, style, none="no results yet")
        return
    if value is None:
        raise UsageError("a pivot needs a value: --value KEY, for example --value test_bpc")
    lacking = without_value(table, value)
    print_rows(pivot(table, rows, cols, value, agg, best), style, none="no results yet")
    if lacking and len(lacking) < len(table):
        note(f"{len(lacking)} results without {value} are left out: {', '.join(lacking[:3])}")
