"""Rows of results: what `Workspace.results` returns."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dispatcher.base.values import identity
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.entry import Entry

if TYPE_CHECKING:
    import pandas
    import polars

M = TypeVar("M", bound=Hashable)
# Columns of every row: their values never come from a job, whatever it calls its parameters and results.
BEFORE: Final = ("job_id", "state", "method")
AFTER: Final = ("attempt", "started_at", "finished_at")
_FIXED: Final = frozenset((*BEFORE, *AFTER))
TIMES: Final = ("started_at", "finished_at")


def no_value_text(key: str, known: Collection[str]) -> str:
    """Why no result can be shown under `key`; `known` are the keys of results."""
    if key in known:
        return f"no result has a value for {key!r}: it is null in all of them, as NaN and infinity are in JSON"
    within = key.partition(".")[0]
    if within != key and within in known:
        return (
            f"no result has {key!r}, but {within!r}: with `result: {{path: FILE, values: [{key}]}}` the method in "
            "dispatcher.yaml takes it out of there"
        )
    return f"no result has {key!r}{nearest(key, known)}"


def methods_without(reporting: Iterable[M], having: Iterable[M]) -> set[M]:
    """The methods that report results, but never a value: their jobs do not lack it, and count in none of its cells.

    `reporting`: the method of each job with a result; `having`: of each whose result has the value, be it null.
    """
    return set(reporting).difference(having)


class Results(list[dict[str, Any]]):
    """A list of rows, one dict per job. `parameters` and `values` are the keys of parameters and of results.

    `with_result`: jobs with a `result.json`. `unreadable`: why it has no values, of those where that is so. `lacking`:
    what of a result their scripts have not left where their methods say, of jobs where that is so. `unsure`: jobs whose
    row has the parameters of the current manifest, because their attempt has no `entry.json`. `failed`: jobs that wrote
    a result, but failed. `older`: jobs that are older than jobs that they need.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parameters: list[str] = []
        self.values: list[str] = []
        self.unsure: list[str] = []
        self.failed: list[str] = []
        self.older: list[str] = []
        self.unreadable: dict[str, str] = {}
        self.lacking: dict[str, str] = {}
        self.with_result: set[str] = set()
        self._of_parameters: dict[str, None] = {}
        self._of_values: dict[str, None] = {}

    def add(self, fixed: Mapping[str, Any], entry: Entry | None, result: Mapping[str, Any]) -> None:
        """Append the row of a job: `fixed` has the columns _FIXED but the method."""
        row = {"job_id": fixed["job_id"], "state": fixed["state"], "method": None if entry is None else entry.method}
        parameters = {} if entry is None else entry.params
        if not (_FIXED.isdisjoint(parameters) and _FIXED.isdisjoint(result) and parameters.keys().isdisjoint(result)):
            parameters, result = _apart(parameters, result)
        row.update(parameters)
        for key in AFTER:
            row[key] = fixed[key]
        row.update(result)
        self.append(row)
        self._of_parameters.update(dict.fromkeys(parameters))
        self._of_values.update(dict.fromkeys(result))
        if len(self._of_parameters) != len(self.parameters):
            self.parameters = list(self._of_parameters)
        if len(self._of_values) != len(self.values):
            self.values = list(self._of_values)

    def placed(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The rows that have a place in a table by these keys: what has a result, and jobs with a value for each key.

        Jobs that lack a key have one where a result does that lacks it, too. Of a key that only results have, the
        results that have it.
        """
        only = [key for key in keys if key in self._of_values and key not in self._of_parameters and key not in _FIXED]
        rows = [row for row in self if all(key in row for key in only)]
        places = {_place(row, keys) for row in rows if row["job_id"] in self.with_result}
        return [row for row in rows if all(row.get(key) is not None for key in keys) or _place(row, keys) in places]

    def methods_without(self, values: Iterable[str]) -> dict[str, set[str | None]]:
        """By value, the methods that never report it: see methods_without."""
        reporting = {row["method"] for row in self if row["job_id"] in self.with_result}
        return {value: methods_without(reporting, (row["method"] for row in self if value in row)) for value in values}

    def check_value(self, key: str) -> None:
        """Raise UsageError for a key that no row has; it names the results before the parameters."""
        if self and all(row.get(key) is None for row in self):
            raise UsageError(no_value_text(key, [*self.values, *self.parameters]))

    @property
    def columns(self) -> list[str]:
        """The keys of all rows: what identifies a row, the parameters, the attempt and its times, the results."""
        return list(dict.fromkeys([*BEFORE, *self.parameters, *AFTER, *self.values]))

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas frame, in whose nullable columns a missing value is `<NA>` and a NaN is NaN.

        Numbers without a fraction stay integers; times are in UTC. Lists, objects and values of several kinds are text.
        UsageError where pandas is not installed.
        """
        from dispatcher.query.results import frames

        return frames.pandas_of(self._columns())

    def to_polars(self) -> polars.DataFrame:
        """The rows as a polars frame, where a missing value is null and a NaN is NaN; otherwise as `to_pandas`."""
        from dispatcher.query.results import frames

        return frames.polars_of(self._columns())

    def _columns(self) -> dict[str, Any]:
        from dispatcher.query.results import columns

        kinds = {"attempt": columns.ColumnType.INT, **dict.fromkeys(TIMES, columns.ColumnType.TIME)}
        kinds |= dict.fromkeys(BEFORE, columns.ColumnType.TEXT)
        return {name: columns.column_of(self, name, kinds.get(name)) for name in self.columns}


def _apart(parameters: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and results under names that do not collide.

    A parameter whose result has another value is `parameter.NAME`; what is called like a column of every row is
    `parameter.NAME` or `result.NAME`.
    """
    result = {f"result.{key}" if key in _FIXED else key: value for key, value in result.items()}
    apart = {}
    for key, value in parameters.items():
        if key in _FIXED or (key in result and identity(result[key]) != identity(value)):
            apart[f"parameter.{key}"] = value
        elif key not in result:
            apart[key] = value
    return apart, result


def _place(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[Hashable, ...]:
    return tuple(identity(row.get(key)) for key in keys)
