"""New entries from one command and values for its placeholders: their parameters and their ids. Pure.

`dispatcher submit --param lr=1e-3,1e-4 --param seed=1..3 -- python train.py --lr {lr}` makes one entry for each
combination.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dispatcher.base.messages import counted
from dispatcher.base.values import NAME_EXPECTED, is_name, shown, text_of
from dispatcher.base.yaml_text import missing_end, read_value, split_values
from dispatcher.errors import UsageError, nearest
from dispatcher.matrix.entry import RESERVED

# The method of commands; it has no settings unless dispatcher.yaml has some.
METHOD: Final = "command"
# More are a matrix: `dispatcher matrix make` writes one.
MOST: Final = 100_000
# The column of a CSV file with the ids.
NAME: Final = "name"

# The keys of entries that a CSV file may have as columns; an empty cell sets none.
_ROW_KEYS: Final = frozenset(
    {"gpus", "gpu_memory", "priority", "needs", "retries", "time_limit", "queue_limit", "outlet", "cwd", "env_file"}
)
# The columns that are resources of the job; an empty cell asks for none.
_ROW_RESOURCES: Final = frozenset({"cpus", "memory"})
_NO_PARAMS: Final = _ROW_KEYS | _ROW_RESOURCES

_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_A_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_RANGE: Final = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})", re.ASCII)
# A cell of a CSV file with what ends it: in quotes, or as it is.
_CELL: Final = re.compile(r"""[ \t]*"([^"]*(?:""[^"]*)*)"[ \t]*(,|\r\n|\r|\n|\Z)|([^,\r\n]*)(,|\r\n|\r|\n|\Z)""")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
# Columns whose cells are text, whatever they look like.
_TEXTS: Final = (NAME, "outlet", "cwd", "env_file")
_NOT_IN_IDS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_SUFFIX: Final = 100
# Programs that run what follows: the name of a job tells little with theirs.
_INTERPRETER: Final = re.compile(
    r"(python|pypy|bash|sh|zsh|dash|perl|ruby|node|Rscript|julia|env|nice|ionice|time|timeout|nohup|stdbuf|uv|run|srun"
    r"|mpirun|mpiexec|torchrun|accelerate|launch|deepspeed|\{python\})[\d.]*"
)
# Nothing, a variable's value (`env A=b`), a number or a time (`timeout 90s`).
_NO_NAME: Final = re.compile(r"|[A-Za-z_][A-Za-z0-9_]*=.*|[\d.,:]+[smhd]?", re.DOTALL)
_ENDING: Final = re.compile(r"\.(py|sh|bash|R|jl|pl|rb|js|exe)$")


class _Cell(NamedTuple):
    text: str
    is_quoted: bool


class NewJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Entries without ids.

    `rows` has the parameters of each job, and under NAME the id that its row gives it. `common` are the keys that all
    jobs share. `name` was given; `stem` is what ids begin with where it was not. `telling` are the parameters whose
    values tell the ids apart.
    """

    common: Mapping[str, Any]
    stem: str = "job"
    name: str | None = None
    rows: Sequence[Mapping[str, Any]] = ({},)
    telling: Sequence[str] = ()

    @property
    def has_names(self) -> bool:
        """Whether the ids, or what they begin with, were given."""
        return self.name is not None or NAME in self.rows[0]

    def documents(self, is_taken: Callable[[str], bool]) -> list[dict[str, Any]]:
        """The entries. Where no ids were given they have such as no job has yet."""
        return [
            {"job_id": job, **self.common, **_keys_of(row, self.common.get("resources"))}
            for job, row in zip(self._ids(is_taken), self.rows, strict=True)
        ]

    def _ids(self, is_taken: Callable[[str], bool]) -> list[str]:
        suffixes = self._suffixes() if self.telling else [""] * len(self.rows)
        if self.has_names:
            return [f"{row.get(NAME, self.name)}{suffix}" for row, suffix in zip(self.rows, suffixes, strict=True)]
        stems = (f"{self.stem}-{number}" for number in itertools.count(2 if self.telling else 1))
        for stem in itertools.chain([self.stem], stems) if self.telling else stems:
            ids = [f"{stem}{suffix}" for suffix in suffixes]
            if not any(map(is_taken, ids)):
                return ids
        raise AssertionError("unreachable")

    def _suffixes(self) -> list[str]:
        """`_lr0.001_seed2` for each job, or a number where that is too long, or not enough to tell them apart."""
        found = ["".join(f"_{key}{_id_part(row[key])}" for key in self.telling) for row in self.rows]
        names = {f"{row.get(NAME, '')}{suffix}".lower() for row, suffix in zip(self.rows, found, strict=True)}
        if len(names) == len(self.rows) and all(len(suffix) <= _LONGEST_SUFFIX for suffix in found):
            return found
        return [f"_{number}" for number in range(1, len(self.rows) + 1)]


def new_jobs(
    command: str | Sequence[str],
    *,
    name: str | None,
    params: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] | None,
    common: Mapping[str, Any],
) -> NewJobs:
    """The jobs of a command: one for each combination of the values of `params` (a list or a range has several).

    `rows` are further parameters, one job each. Raises UsageError.
    """
    unknown = [key for key in common if key not in RESERVED - {"job_id", "command"}]
    if unknown:
        raise UsageError(f"{unknown[0]}: no key of entries{nearest(unknown[0], RESERVED)}; parameters go into params")
    words = [command] if isinstance(command, str) else list(command)
    if not words or not all(isinstance(word, str) for word in words):
        raise UsageError("expected a command: a program and its arguments, all of them text")
    if not words[0]:
        raise UsageError("the command begins with an empty word: expected a program")
    if name is not None and rows and NAME in rows[0]:
        raise UsageError("--name: the CSV file gives the names")
    _check_rows(rows)
    values = {key: _values_of(key, value) for key, value in params.items()}
    columns = [key for key in (rows[0] if rows else ()) if key not in _NO_PARAMS]
    telling = [*values] if NAME in columns else [*columns, *values]
    return NewJobs(
        common={"command": command if isinstance(command, str) else words, **common},
        name=name,
        stem=stem_of(_split(command) if isinstance(command, str) else words),
        rows=product(values, rows),
        telling=telling,
    )


def _check_rows(rows: Sequence[Mapping[str, Any]] | None) -> None:
    if rows is None:
        return
    if not rows:
        raise UsageError("rows: there are none, so there is no job")
    for number, row in enumerate(rows, 1):
        if row.keys() != rows[0].keys():
            raise UsageError(
                f"rows: row {number} has other keys ({', '.join(row)}) than the first ({', '.join(rows[0])})"
            )
    for key in rows[0].keys() - {NAME, *_NO_PARAMS}:
        check_key(key, "rows")
    as_written([dict(row) for row in rows], "rows")


def _values_of(key: str, value: Any) -> Sequence[Any]:
    _check_param(key, f"parameter {key}")
    found = value if isinstance(value, (list, tuple, range)) else [value]
    if not found:
        raise UsageError(f"parameter {key}: has no value")
    if not isinstance(found, range):
        as_written(found, f"parameter {key}")
    return found


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(
            f"command: cannot be split like a shell line ({error}); a list of arguments is safer"
        ) from None


def as_written(value: Any, what: str) -> Any:
    """The value as it comes back from the file. Raises UsageError where it cannot be written."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError as error:
        fault = f"{shown(error.object[error.start : error.start + 20])}: not UTF-8, which an entry cannot hold"
    except (TypeError, ValueError, RecursionError) as error:
        fault = f"an entry holds text, finite numbers, lists and mappings: {error}"
    raise UsageError(f"{what}: {fault}")


def _keys_of(row: Mapping[str, Any], resources: Any) -> dict[str, Any]:
    """The keys that a row sets in its entry; its resources come before those that all jobs ask for."""
    found = {key: value for key, value in row.items() if key != NAME and not (value is None and key in _NO_PARAMS)}
    own = {key: found.pop(key) for key in row if key in _ROW_RESOURCES and key in found}
    # What is no mapping stays, and is refused.
    if own and (resources is None or isinstance(resources, Mapping)):
        found["resources"] = {**(resources or {}), **own}
    return found


def _id_part(value: Any) -> str:
    if isinstance(value, (int, float)):
        # The sign tells 1 from -1; that of an exponent is needed only where it is negative.
        return text_of(value).replace("+", "")
    return _NOT_IN_IDS.sub("-", text_of(value)).strip("-")


def read_params(options: Iterable[str]) -> dict[str, Sequence[Any]]:
    """The values of each `key=value,value`; whole numbers also as a range, `1..3`. Raises UsageError."""
    found: dict[str, Sequence[Any]] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            raise UsageError(f"--param {option}: expected KEY=VALUE,VALUE or KEY=1..3, as in --param lr=1e-3,1e-4")
        _check_param(key, f"--param {option}")
        if key in found:
            raise UsageError(f"--param {option}: {key} has values already: give all of them in one option")
        found[key] = _values(text, f"--param {option}")
        _refuse_equal(found[key], f"--param {option}")
    return found


def _check_param(key: str, where: str) -> None:
    """UsageError where `key` cannot be a parameter with several values."""
    if key == NAME:
        raise UsageError(f"{where}: {NAME} is the column of a CSV file with the ids: use another word, or --name")
    if key in _ROW_RESOURCES:
        raise UsageError(f"{where}: {key} is what a job asks for and no parameter: use another word, or the option")
    check_key(key, where)


def check_key(key: str, where: str) -> None:
    """UsageError where `key` cannot be a parameter."""
    if key in RESERVED:
        raise UsageError(f"{where}: {key} is a key of every entry and no parameter: use another word, or the option")
    if not _KEY.fullmatch(key):
        raise UsageError(
            f"{where}: {shown(key)} cannot be a parameter: letters, digits, '.', '_', '-', not beginning with a digit"
        )


def _values(text: str, where: str) -> Sequence[Any]:
    written = split_values(text)
    if len(written) > 1 and not all(map(str.strip, written)):
        raise UsageError(f"{where}: one of the values is empty: remove the comma, or write the value")
    parts: list[Sequence[Any]] = [_part(part.strip(), where) for part in written]
    if len(parts) == 1:
        return parts[0]
    _refuse_too_many(sum(map(len, parts)))
    return list(itertools.chain.from_iterable(parts))


def _refuse_equal(values: Sequence[Any], where: str) -> None:
    """Equal values would be equal jobs."""
    if isinstance(values, range):
        return
    seen: set[str] = set()
    for value in values:
        if text_of(value) in seen:
            raise UsageError(f"{where}: the value {shown(value)} is there twice: write it once")
        seen.add(text_of(value))


def _part(text: str, where: str) -> Sequence[Any]:
    """The values of `1..3`, or the one value that it is.

    With a number at either end, as in `0.1..0.5`, `1..` or `1..9..2`, it is a range to those who write it.
    """
    found = _RANGE.fullmatch(text)
    if found:
        first, last = int(found[1]), int(found[2])
        if first > last:
            raise UsageError(f"{where}: the range is empty: expected the smaller number first")
        return range(first, last + 1)
    ends = text.split("..")
    if len(ends) > 1 and (_A_NUMBER.fullmatch(ends[0]) or _A_NUMBER.fullmatch(ends[-1])):
        raise UsageError(f"{where}: {text}: a range is one of whole numbers, as in 1..3: write each value, with commas")
    if end := missing_end(text):
        raise UsageError(
            f"{where}: {text} begins with {text[0]} and lacks {end}: add it, or put the value in quotes, within those "
            "of the shell"
        )
    return [read_value(text)]


def _refuse_too_many(count: int) -> None:
    if count > MOST:
        raise UsageError(f"{count} jobs at once, at most {MOST}: write a matrix with `dispatcher matrix make`")


def read_csv(data: bytes, where: str) -> list[dict[str, Any]]:
    """One job for each row after the header, whose words are the parameters; NAME is the id. Raises UsageError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: the byte {data[error.start]:#04x} is not UTF-8: save the file as UTF-8") from None
    lines = list(_lines(text, where))
    header = [cell.text.strip() for cell in lines[0][1]] if lines else []
    if not any(header):
        raise UsageError(f"{where}: is empty: expected a header with the parameters, then a line for each job")
    _refuse_other_separator(header, where)
    for place, key in enumerate(header, 1):
        if not key:
            raise UsageError(f"{where}, header: column {place} has no name: name it, or remove the last comma")
        if header.count(key) > 1:
            raise UsageError(f"{where}: the column {shown(key)} is there twice")
        if key != NAME and key not in _NO_PARAMS:
            check_key(key, f"{where}, header")
    # A spreadsheet writes an empty line as commas.
    rows = [
        _row(header, cells, f"{where}, line {number}")
        for number, cells in lines[1:]
        if any(cell.text.strip() for cell in cells)
    ]
    if not rows:
        raise UsageError(f"{where}: has a header, but no line with a job")
    return rows


def _lines(text: str, where: str) -> Iterator[tuple[int, list[_Cell]]]:
    """The cells of each line, and its number."""
    cells: list[_Cell] = []
    number, begun, place = 1, 1, 0
    while place < len(text):
        found = _CELL.match(text, place)
        assert found is not None, "any text is a cell"
        quoted, plain, end = found[1], found[3], found[2] if found[3] is None else found[4]
        if plain is not None and plain.lstrip().startswith('"'):
            problem = (
                "there is more in a cell behind its quoted text: quote all of it, and double the quotation marks in it"
                if '"' in plain.lstrip()[1:]
                else 'a quotation mark (") is opened and never closed'
            )
            raise UsageError(f"{where}, line {number}: {problem}")
        cells.append(_Cell(quoted.replace('""', '"'), True) if plain is None else _Cell(plain.strip(), False))
        number += len(_LINE_END.findall(found[0]))
        place = found.end()
        if end != ",":
            yield begun, cells
            cells, begun = [], number
        elif place == len(text):
            yield begun, [*cells, _Cell("", False)]


def _refuse_other_separator(header: Sequence[str], where: str) -> None:
    if len(header) == 1 and (found := re.search(r"[;\t]", header[0])):
        name = "semicolons" if found[0] == ";" else "tabs"
        raise UsageError(f"{where}: its columns are separated by {name}: save it with commas")


def _row(header: Sequence[str], cells: Sequence[_Cell], where: str) -> dict[str, Any]:
    # Here a backslash escapes no comma.
    written = ",".join("" if cell.is_quoted else cell.text.removesuffix("\\") for cell in cells)
    if whole := next((value.strip() for value in split_values(written) if "," in value), None):
        raise UsageError(f'{where}: {whole} has a comma within brackets or quotes: put "..." around it')
    if len(cells) != len(header):
        raise UsageError(
            f"{where}: {counted(len(cells), 'value')}, but the header has {len(header)}: quote commas of a value"
        )
    row: dict[str, Any] = {}
    for key, (cell, is_quoted) in zip(header, cells, strict=True):
        if key == "needs":
            row[key] = re.split(r"[,\s]+", cell.strip()) if cell.strip() else None
        elif key in _NO_PARAMS and not cell:
            row[key] = None
        elif key in _TEXTS or cell.startswith(('"', "'")) or (is_quoted and cell != cell.strip()):
            # The file's own quotation marks are gone: these belong to the text, and so do blanks within them.
            row[key] = cell
        else:
            row[key] = read_value(cell)
    if NAME in row and not is_name(row[NAME]):
        raise UsageError(f"{where}: {NAME} = {shown(row[NAME])}: {NAME_EXPECTED}")
    return row


def product(params: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Every combination of the values of each parameter, with every row; the last parameter changes first."""
    count = math.prod(len(values) for values in params.values()) * (1 if rows is None else len(rows))
    _refuse_too_many(count)
    both = [key for key in params if rows and key in rows[0]]
    if both:
        raise UsageError(f"--param {both[0]}: the CSV file has a column of that name")
    return list(_combined(params, rows or [{}]))


def _combined(params: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for values in itertools.product(*params.values()):
            yield {**row, **dict(zip(params, values, strict=True))}


def stem_of(command: Sequence[str]) -> str:
    """What jobs of this command are called: its first word that is a file, a module or a program, no interpreter."""
    interpreter = ""
    for before, word in itertools.pairwise(("", *command)):
        name = word.rstrip("/").rpartition("/")[2]
        if before == "-m":
            return _id_stem(name.rpartition(".")[2])
        if word.startswith("-") or before == "-c" or _NO_NAME.fullmatch(name):
            continue
        if not _INTERPRETER.fullmatch(name):
            return _id_stem(_ENDING.sub("", name))
        interpreter = interpreter or name
    return _id_stem(interpreter)


def _id_stem(name: str) -> str:
    return _NOT_IN_IDS.sub("-", name).strip("-.")[:60] or "job"
