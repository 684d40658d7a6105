"""`dispatcher results`: the results of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from dispatcher.base.messages import counted, first_names, indented
from dispatcher.base.values import identity, split_names
from dispatcher.cli.common import (
    F,
    WholeNumber,
    format_option,
    open_workspace,
    read_list,
    state_option,
    where_option,
)
from dispatcher.cli.complete import complete_keys, complete_result_key, complete_sort_key, complete_words
from dispatcher.cli.fitting import Narrowing
from dispatcher.cli.printing import note, print_rows, print_text
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where
from dispatcher.query.inputs import RUN_AGAIN

if TYPE_CHECKING:
    from dispatcher.query.results.rows import Results

_AGGREGATES: Final = ("mean", "std", "mean+-std", "median", "min", "max", "sum", "best", "n")
_FOR_PROGRAMS: Final = ("csv", "json")
# Of jobs whose result cannot be read.
_NAMED: Final = 20
_KINDS: Final = ("bars", "heatmap", "curves")


def _kept(context: click.Context, param: click.Parameter, value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Lists as they are typed: a name may have a comma itself, which only the results tell (split_names)."""
    given = (value,) if isinstance(value, str) else value or ()
    if given and not any(part.strip() for text in given for part in text.split(",")):
        raise UsageError(f"{param.opts[0]} {given[0]!r} names no key: expected keys with commas between them")
    return given


def _names_option(name: str, help: str) -> Callable[[F], F]:
    return click.option(name, callback=_kept, metavar="KEYS", shell_complete=complete_keys, help=help)


@click.command()
@_names_option("--by", help="Group by these keys, e.g. lang,method: mean ± std of --value, and n of N jobs.")
@_names_option("--rows", help="Keys whose values become rows, e.g. lang.")
@_names_option("--cols", help="Keys whose values become columns, e.g. method.")
@click.option(
    "--value", "values", metavar="KEY", multiple=True, callback=_kept, shell_complete=complete_result_key,
    help="The result shown in the cells; may be repeated, or a list with commas.",
)  # fmt: skip
@click.option(
    "--agg", callback=read_list, metavar="LIST", shell_complete=complete_words(_AGGREGATES),
    help="mean,std,mean+-std,median,min,max,sum,best,n. std is that of a sample (n - 1).  [default: mean; with --by "
    "mean+-std]",
)  # fmt: skip
@click.option(
    "--best",
    type=click.Choice(["min", "max"]),
    help="The value that the aggregate best takes.",
)
@click.option(
    "--sort", callback=_kept, metavar="COLUMNS", shell_complete=complete_sort_key,
    help="Sort by these columns of the table; -COLUMN descends, as in --sort -accuracy. Missing values come last.",
)  # fmt: skip
@click.option("--top", type=WholeNumber(1), metavar="N", help="Only the first N rows of --sort.")
@click.option(
    "--plot", type=click.Path(dir_okay=False), metavar="FILE",
    help="Draw what the table would show, into a .png, .svg or .pdf.",
)  # fmt: skip
@click.option(
    "--kind", type=click.Choice(_KINDS),
    help="What --plot draws.  [default: heatmap with --cols, curves with --curves, else bars]",
)  # fmt: skip
@click.option(
    "--curves", metavar="METRIC",
    help="With --plot: this metric over the steps, mean and std over the jobs of each group.",
)  # fmt: skip
@where_option
@state_option
@format_option
def results(**given: Any) -> None:
    """Show the results of jobs and the parameters they ran with.

    Only of attempts that have succeeded: a job that has failed has no result, even if it wrote one.

    Without options, one row per job. With --by, or --rows and --cols, and --value, a table by keys:
    dispatcher results --by lang,method --value test_bpc --sort test_bpc --top 5
    dispatcher results --rows lang --cols method --value test_bpc --agg mean,std,best,n --best min
    """
    asked = ResultsOptions(**given)
    asked.check()
    workspace = open_workspace()
    found = workspace.results(states=asked.states, where=asked.where, every_job=bool(asked.by or asked.plot))
    _tell(found)
    asked = asked.named(found.columns)
    for value in asked.values:
        found.check_value(value)
    if asked.plot is not None:
        from dispatcher.cli.plotting import plot

        keys = (asked.by or asked.rows, asked.cols)
        print_text(plot(workspace, found, asked.plot, asked.chosen_kind, keys, asked.values, asked.curves))
    elif asked.values:
        _show_table(found, asked)
    else:
        # Programs get the state and the times, too.
        hidden = () if asked.style in _FOR_PROGRAMS else ("state", "started_at", "finished_at")
        columns = [name for name in found.columns if name not in hidden]
        print_rows(asked.first(found), asked.style, columns, none="no results yet", narrowing=_narrowing(found))


class ResultsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    by: tuple[str, ...]
    rows: tuple[str, ...]
    cols: tuple[str, ...]
    values: tuple[str, ...]
    agg: tuple[str, ...]
    best: str | None
    sort: tuple[str, ...]
    top: int | None
    plot: str | None
    kind: str | None
    curves: str | None
    where: Where
    states: tuple[str, ...]
    style: str

    def check(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.by and self.rows:
            raise UsageError("--by and --rows both name the rows of a table: leave one of them out")
        if self.top is not None and not self.sort:
            raise UsageError(
                f"--top {self.top}: the first by which column? Add --sort COLUMN, or --sort -COLUMN for the greatest"
            )
        if self.plot is not None:
            self._check_plot()
        elif self.kind or self.curves:
            raise UsageError("--kind and --curves are for a picture: add --plot FILE.png, .svg or .pdf")
        elif (self.by or self.rows or self.cols) and not self.values:
            raise UsageError("a pivot table needs a value: add --value KEY, for example --value test_bpc")

    def _check_plot(self) -> None:
        kind = self.chosen_kind
        if (kind == "curves") != bool(self.curves):
            raise UsageError("curves are those of one metric: --curves METRIC, without another --kind")
        if kind == "curves" and self.values:
            raise UsageError("--curves draws a metric and --value a result: leave one of them out")
        if kind != "curves" and not self.values:
            raise UsageError("a picture needs a value: add --value KEY, or --curves METRIC")
        if kind == "heatmap" and not ((self.by or self.rows) and self.cols):
            raise UsageError("a heat map needs keys for both sides: --rows KEY --cols KEY")
        if kind == "bars" and not (self.by or self.rows):
            raise UsageError("bars need a key that tells them apart: --by KEY")
        if self.sort or self.agg:
            raise UsageError("a picture has its own order and shows mean ± std: leave --sort, --top and --agg out")

    def named(self, known: Collection[str]) -> ResultsOptions:
        """With the names in lists of keys and values; `known` are the columns of the results."""
        lists = {name: split_names(getattr(self, name), known) for name in ("by", "rows", "cols", "values")}
        return msgspec.structs.replace(self, **lists)

    @property
    def chosen_kind(self) -> str:
        return self.kind or ("curves" if self.curves else "heatmap" if self.cols else "bars")

    @property
    def aggregates(self) -> tuple[str, ...]:
        return self.agg or (("mean+-std",) if self.by else ("mean",))

    def first(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows that are asked for, in their order."""
        from dispatcher.query.sorting import sort_rows

        columns = {name for row in rows for name in row}
        keys = split_names(self.sort, columns | {f"-{name}" for name in columns})
        ordered = sort_rows(rows, keys) if keys else list(rows)
        if self.top is not None and len(ordered) > self.top:
            note(f"the first {self.top} of {len(ordered)} rows")
        return ordered[: self.top]


def _show_table(found: Results, asked: ResultsOptions) -> None:
    from dispatcher.query.numbers import Spread
    from dispatcher.query.pivot import expanded, pivot, without_value

    rows = asked.by or asked.rows
    placed = found.placed([*rows, *asked.cols])
    others = found.methods_without(asked.values)
    made = pivot(placed, rows, asked.cols, asked.values, asked.aggregates, asked.best, others)
    table = asked.first(made)
    spreads = {name for row in table for name, cell in row.items() if isinstance(cell, Spread)}
    headings = None if asked.style in _FOR_PROGRAMS else made.headings
    if asked.style in _FOR_PROGRAMS:
        table = expanded(table)
    else:
        table = [{name: str(cell) if isinstance(cell, Spread) else cell for name, cell in row.items()} for row in table]
    narrowing = Narrowing(keep=rows)
    print_rows(table, asked.style, headings or None, none="no results yet", narrowing=narrowing, numbers=spreads)
    with_result = [row for row in placed if row["job_id"] in found.with_result]
    for value in asked.values:
        counted_rows = [row for row in with_result if row["method"] not in others[value]]
        lacking = without_value(counted_rows, value)
        if lacking and len(lacking) < len(counted_rows):
            note(f"{counted(len(lacking), 'result')} without {value} left out: {first_names(lacking)}")


def _tell(results: Results) -> None:
    """Say which results are not what they seem."""
    if results.unsure:
        note(
            f"{counted(len(results.unsure), 'result')} with the parameters of the current manifest, because their "
            f"attempts have no entry.json that can be read: {first_names(results.unsure)}"
        )
    if results.unreadable:
        jobs = [f"{job}: {why}" for job, why in results.unreadable.items()]
        note(indented(f"{counted(len(jobs), 'result')} without values, because of result.json:", jobs, _NAMED))
    if results.older:
        needed = "what its job needs" if len(results.older) == 1 else "what their jobs need"
        older = f"{counted(len(results.older), 'result')} from before {needed} was done again"
        note(f"{older}: {first_names(results.older)}. {RUN_AGAIN}")
    if results.lacking:
        jobs = [f"{job}: {why}" for job, why in results.lacking.items()]
        note(indented(f"{counted(len(jobs), 'job')} done without a result, or not with all of it:", jobs, _NAMED))
    if results.failed:
        note(
            f"{counted(len(results.failed), 'job')} left out that wrote a result, but failed: "
            f"{first_names(results.failed)}"
        )


def _narrowing(results: Results) -> Narrowing:
    """The job and its first value stay; what is the same for all jobs goes first, other parameters before values."""
    parameters = results.parameters[::-1]
    same = [name for name in parameters if len(results) > 1 and len({identity(row.get(name)) for row in results}) == 1]
    drop = ("attempt", *same, *parameters, "method", *reversed(results.values))
    return Narrowing(drop=drop, keep=("job_id", *results.values[:1]))
