"""Long frames of metrics: a row per value, made of whole columns."""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dispatcher.query.results.frames import library

if TYPE_CHECKING:
    import pandas
    import polars

    from dispatcher.query.metrics import Series

COLUMNS = ("job_id", "metric", "attempt", "step", "wall_s", "value")


def pandas_of(metrics: Sequence[Series]) -> pandas.DataFrame:
    """A pandas frame of all series, one below the other."""
    pd: Any = library("pandas", "a pandas frame")
    numpy: Any = importlib.import_module("numpy")
    lengths = [len(series) for series in metrics]

    def categories(names: list[str]) -> Any:
        known = {name: number for number, name in enumerate(dict.fromkeys(names))}
        codes = numpy.repeat(numpy.array([known[name] for name in names], dtype="int32"), lengths)
        return pd.Categorical.from_codes(codes, categories=list(known))

    def joined(column: Callable[[Series], array[Any]], empty: str) -> Any:
        parts = [numpy.frombuffer(column(series), dtype=column(series).typecode) for series in metrics]
        return numpy.concatenate(parts) if parts else numpy.array([], dtype=empty)

    frame: pandas.DataFrame = pd.DataFrame(
        {
            "job_id": categories([series.job_id for series in metrics]),
            "metric": categories([series.metric for series in metrics]),
            "attempt": joined(lambda series: series.attempts, "q"),
            "step": joined(lambda series: series.steps, "q"),
            "wall_s": joined(lambda series: series.wall_s, "d"),
            "value": joined(lambda series: series.values, "d"),
        }
    )
    return frame


def polars_of(metrics: Sequence[Series]) -> polars.DataFrame:
    """A polars frame of all series, one below the other."""
    pl: Any = library("polars", "a polars frame")
    step = pl.Float64 if any(series.steps.typecode == "d" for series in metrics) else pl.Int64
    types = dict(zip(COLUMNS, (pl.Categorical, pl.Categorical, pl.Int64, step, pl.Float64, pl.Float64), strict=True))
    parts = [
        pl.DataFrame(
            {
                "job_id": pl.repeat(series.job_id, len(series), dtype=pl.String, eager=True),
                "metric": pl.repeat(series.metric, len(series), dtype=pl.String, eager=True),
                "attempt": pl.Series(series.attempts),
                "step": pl.Series(series.steps, dtype=step),
                "wall_s": pl.Series(series.wall_s),
                "value": pl.Series(series.values),
            }
        ).cast(types)
        for series in metrics
    ]
    frame: polars.DataFrame = pl.concat(parts) if parts else pl.DataFrame(schema=types)
    return frame
