"""`dispatcher results --plot`: pictures of results and of metrics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dispatcher.cli.printing import note
from dispatcher.errors import UsageError
from dispatcher.query.plots.canvas import check_path

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.query.results.rows import Results


def plot(
    workspace: Workspace,
    found: Results,
    path: str,
    kind: str,
    keys: tuple[Sequence[str], Sequence[str]],
    values: Sequence[str],
    metric: str | None,
) -> str:
    """Draw a picture into the file; a line that says where it is, what it shows, and of how many jobs."""
    check_path(path)
    rows, cols = keys
    if not found:
        raise UsageError("there is nothing to draw: no job matches")
    if metric is not None:
        shown, of = _curves(workspace, found, path, [*rows, *cols], metric)
        values = [metric]
    else:
        shown, of = _table(found, path, kind, keys, values)
    by = f" by {', '.join([*rows, *cols])}" if rows or cols else ""
    return f"{os.path.abspath(path)}: {kind} of {', '.join(values)}{by}, {shown} of {of} jobs"


def _table(
    found: Results, path: str, kind: str, keys: tuple[Sequence[str], Sequence[str]], values: Sequence[str]
) -> tuple[int, int]:
    from dispatcher.query.numbers import finite_number
    from dispatcher.query.pivot import cells
    from dispatcher.query.plots.tables import draw_bars, draw_heatmap

    rows, cols = keys
    placed = found.placed([*rows, *cols])
    draw = draw_heatmap if kind == "heatmap" else draw_bars
    others = found.methods_without(values)
    draw(path, cells(placed, rows, cols, values, others), rows, cols, values, note)
    counted = [row for row in placed if any(row["method"] not in others[value] for value in values)]
    return sum(all(finite_number(row, value) is not None for value in values) for row in counted), len(counted)


def _curves(workspace: Workspace, found: Results, path: str, keys: Sequence[str], metric: str) -> tuple[int, int]:
    from dispatcher.query.curves import mean_curves
    from dispatcher.query.pivot import check_key, group_keys
    from dispatcher.query.plots.curves import draw_curves

    for key in keys:
        check_key(found, key)
    placed = found.placed(keys)
    groups = {row["job_id"]: key for row, key in zip(placed, group_keys(placed, keys), strict=True)}
    metrics = workspace.metrics(groups, names=metric)
    for fault in metrics.faults():
        note(fault)
    series = [one for one in metrics if one.metric == metric]
    if not series:
        raise UsageError(f"--curves {metric}: name one metric, not a glob")
    # Jobs of methods with results, none of which has the metric, do not lack it.
    having = {one.job_id for one in series}
    reporting = {row["method"] for row in placed if row["job_id"] in found.with_result}
    others = reporting - {row["method"] for row in placed if row["job_id"] in having}
    groups = {row["job_id"]: groups[row["job_id"]] for row in placed if row["method"] not in others}
    draw_curves(path, mean_curves(groups, series), keys, metric, note)
    return len(series), len(groups)
