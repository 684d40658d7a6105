"""Frames of pandas and polars, made of columns."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from dispatcher.errors import UsageError
from dispatcher.query.results.columns import ColumnType, TypedColumn

if TYPE_CHECKING:
    import pandas
    import polars

_NULLABLE: Final = {ColumnType.BOOL: "boolean", ColumnType.INT: "Int64", ColumnType.TEXT: "string"}


def library(name: str, purpose: str, extra: str = "") -> Any:
    """The module `name`. Raises UsageError, which says what to install for this purpose."""
    package = name.partition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise UsageError(
            f"{purpose} needs {package}, which is not installed: pip install 'dispatcher[{extra or package}]'"
        ) from None
    return importlib.import_module(name)


def pandas_of(columns: Mapping[str, TypedColumn]) -> pandas.DataFrame:
    """A pandas frame. Its columns are nullable: a missing value is NA, a NaN stays NaN."""
    pd: Any = library("pandas", "a pandas frame")
    frame: pandas.DataFrame = pd.DataFrame({name: _pandas_array(pd, column) for name, column in columns.items()})
    return frame


def polars_of(columns: Mapping[str, TypedColumn]) -> polars.DataFrame:
    """A polars frame: a missing value is null, a NaN stays NaN."""
    pl: Any = library("polars", "a polars frame")
    types = {
        ColumnType.BOOL: pl.Boolean, ColumnType.INT: pl.Int64, ColumnType.FLOAT: pl.Float64, ColumnType.TEXT: pl.String,
        ColumnType.TIME: pl.Datetime("us", "UTC"),
    }  # fmt: skip
    frame: polars.DataFrame = pl.DataFrame(
        [pl.Series(name, column.values, dtype=types[column.kind]) for name, column in columns.items()]
    )
    return frame


def _pandas_array(pd: Any, column: TypedColumn) -> Any:
    values = column.values
    if column.kind is ColumnType.TIME:
        return pd.to_datetime(pd.array(values, dtype="Int64"), unit="us", utc=True)
    if column.kind is not ColumnType.FLOAT:
        return pd.array(values, dtype=_NULLABLE[column.kind])
    # pandas.array would make a missing value of each NaN.
    numpy: Any = importlib.import_module("numpy")
    mask = numpy.array([value is None for value in values], dtype=bool)
    numbers = numpy.array([0.0 if value is None else value for value in values], dtype="float64")
    return pd.arrays.FloatingArray(numbers, mask)
