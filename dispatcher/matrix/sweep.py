"""Sweep files: a few lines of YAML that expand to many entries.

    defaults: {method: fft, run_kind: main}
    job_id: "{method}_{lang}_cfg{config_id}_s{seed}_{run_kind}"
    derive: {output_dir: "/checkpoints/{job_id}"}
    sweeps:
      - name: languages
        defaults: {asr_ratio: 0.5}
        grid: {config_id: [A, B], seed: [42, 43]}
        zip: {lang: [spanish, german], fleurs_code: [es_419, de_de]}
        random: {seed: 7, count: 10, draw: {lr: {log_uniform: [1e-5, 1e-3]}}}
        exclude: [{lang: german, config_id: B}]
        needs: ["pretrain_*"]

An entry consists of the defaults, the sweep's own defaults, one point of grid x zip x random (the first key varies
slowest), the `derive` texts and its job_id. The lists of `zip` advance together; several groups are a list. Every grid
point gets the same random draws; `{draw}` is the number of the draw in patterns. `include` keeps the points that meet
one of its conditions, `exclude` drops those that meet one; a condition is a value, a glob, a list or bounds
(`{lr: {above: 1e-4}}`). `needs` are ids, or globs over all ids of the file, with fields filled from the entry. A sweep
may have its own `job_id` and `derive`.

To add a keyword of a sweep, add an annotated field to Sweep and apply it in `_sweep` (the points and their entries) or
`_axes` (what is combined); one of the whole file, to SweepFile and `_expand`.
"""

import bisect
import copy
import fnmatch
import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from dispatcher.base import values
from dispatcher.base.schema import reading
from dispatcher.base.schema.faults import PartFault, PartsError, read_all
from dispatcher.base.schema.kinds import TEXT, number, one_or_many, read_later
from dispatcher.base.schema.types import Key, Value
from dispatcher.base.values import BadValueError, is_name, shown
from dispatcher.errors import ManifestError, nearest
from dispatcher.matrix.condition import check_condition, holds
from dispatcher.matrix.draw import DISTRIBUTIONS, Drawer, draw, make_drawer
from dispatcher.matrix.entry import Entry
from dispatcher.matrix.faults import derived_text, draw_advice, grid_advice, named
from dispatcher.matrix.manifest import read_entries
from dispatcher.matrix.pattern import fill

# More is a mistake, and would fill the memory.
_MOST_ENTRIES: Final = 1_000_000
# Of as many faults of one kind each is listed.
_MOST_ALIKE: Final = 20

# What is combined to entries.
_COMBINED: Final = ("grid", "zip", "random")

# One axis of a sweep: its points, each a few keys and their values.
_Axis = list[dict[str, Any]]


def _parse_pattern(value: object) -> str:
    if not isinstance(value, str):
        raise BadValueError(_PATTERN_EXPECTED)
    return value


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise BadValueError(f"expected a list of values{grid_advice(name, value)}")
    return value


def _parse_zip(value: object) -> list[dict[str, list[Any]]]:
    """One group of lists that advance together, or several."""
    if isinstance(value, list):
        return read_all((f"[{place}]", group, _parse_group) for place, group in enumerate(value))
    return [_parse_group(value)]


def _parse_group(value: object) -> dict[str, list[Any]]:
    lists = named(value, _list)
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise PartsError([PartFault("", None, f"expected lists of one length, but {listed}", is_hidden=True)])
    return lists


def _parse_conditions(value: object) -> list[Mapping[str, Any]]:
    conditions = [value] if isinstance(value, Mapping) else value
    if not isinstance(conditions, list) or not all(isinstance(one, Mapping) and one for one in conditions):
        raise BadValueError("expected a list of conditions such as {lang: german}")
    return conditions


def _parse_needs(value: object) -> list[str]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise BadValueError("expected a list of job ids or globs over them")
    return words


def _drawer(name: str, distribution: object) -> Drawer:
    try:
        return make_drawer(distribution)
    except ValueError as error:
        raise BadValueError(f"{error}{draw_advice(name, distribution)}") from None


def _parse_draw(value: object) -> dict[str, Drawer]:
    drawers = named(value, _drawer)
    if not drawers:
        raise BadValueError("expected parameters such as lr: {log_uniform: [1e-5, 1e-3]}")
    return drawers


def _parse_count(value: object) -> int:
    count = values.parse_positive(value)
    if count > _MOST_ENTRIES:
        raise BadValueError(f"more than the limit of {_MOST_ENTRIES:,}")
    return count


_PATTERN_EXPECTED: Final = 'expected a pattern such as "{method}_{lang}_s{seed}"'
_LISTS: Final = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
_CONDITIONS: Final = one_or_many({"type": "object", "minProperties": 1})


def _entry_schema() -> Mapping[str, Any]:
    """The schema of keys of entries, of which some may be missing: every key may also be a parameter."""
    from dispatcher.base.schema.json_schema import of_struct

    name = {"type": "string", "description": "which template and which settings of dispatcher.yaml"}
    return of_struct(Entry, {"method": name}, is_open=True)


Defaults: TypeAlias = Annotated[dict[str, Any], Value(named, _entry_schema)]
Texts: TypeAlias = Annotated[
    dict[str, str],
    Value(functools.partial(named, read=derived_text), {"type": "object", "additionalProperties": {"type": "string"}}),
]
Pattern: TypeAlias = Annotated[str, Value(_parse_pattern, {"type": "string"})]


class Random(msgspec.Struct, kw_only=True):
    """The drawn values of a sweep."""

    seed: Annotated[int, Value(values.parse_any_integer, {"type": "integer"}), Key("of the generator")]
    count: Annotated[int, number(1, _MOST_ENTRIES, _parse_count), Key("how many draws")]
    draw: Annotated[
        dict[str, Drawer],
        Value(_parse_draw, DISTRIBUTIONS),
        Key("parameters with their distributions, `{lr: {log_uniform: [1e-5, 1e-3]}}`"),
    ]


class Sweep(msgspec.Struct, kw_only=True):
    """One sweep of a file."""

    name: Annotated[Any, Key("what messages call the sweep", default="its number")] = None
    defaults: Annotated[Defaults, Key("the sweep's own; a key replaces that of the file, the others stay")] = {}
    job_id: Annotated[Pattern | None, Key("the sweep's own pattern of ids", default="that of the file")] = None
    derive: Annotated[Texts, Key("the sweep's own; a text replaces that of the file, the others stay")] = {}
    grid: Annotated[
        dict[str, list[Any]],
        Value(functools.partial(named, read=_list), _LISTS),
        Key("lists of values: every combination"),
    ] = {}
    zip: Annotated[
        list[dict[str, list[Any]]],
        Value(_parse_zip, one_or_many(_LISTS)),
        Key("lists of values that advance together; a list of such groups"),
    ] = []
    random: Annotated[Random | None, Key("drawn values ([`random`](sweeps.md#random))")] = None
    include: Annotated[
        list[Mapping[str, Any]],
        Value(_parse_conditions, _CONDITIONS),
        Key(
            "[conditions](sweeps.md#include-and-exclude): a point that meets one of them is kept", default="every point"
        ),
    ] = []
    exclude: Annotated[
        list[Mapping[str, Any]],
        Value(_parse_conditions, _CONDITIONS),
        Key("conditions: a point that meets one of them is dropped"),
    ] = []
    needs: Annotated[
        list[str],
        Value(_parse_needs, one_or_many(TEXT)),
        Key("ids, patterns or globs of jobs that must be done first"),
    ] = []


def _sweeps_schema() -> Mapping[str, Any]:
    from dispatcher.base.schema.json_schema import of_struct

    return {"type": "array", "items": of_struct(Sweep), "minItems": 1}


class SweepFile(msgspec.Struct, kw_only=True):
    """A sweep file."""

    sweeps: Annotated[
        Any,
        read_later(_sweeps_schema),
        Key("the list of sweeps. Each is expanded by itself, the entries follow each other", default="required"),
    ] = None
    defaults: Annotated[
        Defaults,
        Key("keys of every entry: parameters, and what [entries](entries.md) have besides (`gpus`, `priority`, "
            "`time_limit` ...). Without `user`, jobs that the manifest does not have yet are yours"),
    ] = {}  # fmt: skip
    job_id: Annotated[
        Pattern | None, Key("the pattern of the job ids; required here or in each sweep", default="the sweeps' own")
    ] = None
    derive: Annotated[Texts, Key("texts with fields, filled last")] = {}


def expand(sweep: Mapping[str, Any] | str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The entries of a sweep, given as a mapping or as the path of a YAML file; ManifestError lists every fault.

    The same sweep always expands to the same entries in the same order. For duplicate ids the fault names the
    combinations. Needed ids that are not among the entries are not checked here: they may be in the run state.
    """
    if isinstance(sweep, Mapping):
        where, document = "the sweep", sweep
    else:
        where, document = str(sweep), _load(sweep)
    faults: list[str] = []
    entries, sources = _expand(document, faults)
    if not faults:
        faults.extend(_limited(_collisions(entries, sources)))
    if not faults:
        # The checks of a manifest; on copies, because reading removes the items.
        faults.extend(read_entries([dict(entry) for entry in entries], known_ids=None)[1])
    if faults:
        raise ManifestError(where, faults)
    return entries


def _load(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    from dispatcher.base import files, yaml_text

    try:
        return yaml_text.load_mapping(files.read_plain(path), f"the keys {', '.join(reading.fields(SweepFile))}")
    except OSError as error:
        raise ManifestError(str(path), [f"cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ManifestError(str(path), [str(error)]) from None


def _expand(document: Mapping[str, Any], faults: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries, and for each the name of its sweep."""
    found, wrong = reading.parse(SweepFile, document)
    faults += [fault.line() for fault in wrong]
    sweeps = found.pop("sweeps", None)
    if not isinstance(sweeps, list) or not sweeps:
        faults.append(f"sweeps = {shown(sweeps)}: expected a list of sweeps, each with grid, zip or random")
        return [], []
    of_file = SweepFile(**found)
    entries: list[dict[str, Any]] = []
    sources: list[str] = []
    patterns: list[list[str]] = []
    for place, sweep in enumerate(sweeps, 1):
        if not isinstance(sweep, Mapping):
            faults.append(f"sweep {place} = {shown(sweep)}: expected keys such as grid, zip, random")
            continue
        name = f"sweep {sweep.get('name', place)}"
        keys, wrong = reading.parse(Sweep, sweep)
        faults += [f"{name}: {fault.line()}" for fault in wrong]
        given = Sweep(**keys)
        if given.job_id is None and "job_id" not in sweep:
            given.job_id = of_file.job_id
            if given.job_id is None and "job_id" not in document:
                faults.append(f"{name}: job_id = null: {_PATTERN_EXPECTED}")
        given.defaults = {**of_file.defaults, **given.defaults}
        given.derive = {**of_file.derive, **given.derive}
        if any(key not in keys and sweep.get(key) is not None for key in _COMBINED):
            # Of an entry without all of its keys, other faults would only follow from these.
            continue
        made = _sweep(given, f"{name}: ", faults)
        entries += made
        sources += [name] * len(made)
        patterns += [given.needs] * len(made)
    if not faults:
        _resolve_needs(entries, sources, patterns, faults)
    return entries, sources


def _sweep(sweep: Sweep, place: str, faults: list[str]) -> list[dict[str, Any]]:
    axes = _axes(sweep, place, faults)
    size = math.prod(len(axis) for axis in axes)
    if size > _MOST_ENTRIES:
        factors = " x ".join(f"{len(axis):,}" for axis in axes if len(axis) > 1)
        faults.append(f"{place}{factors} = {size:,} combinations: more than the limit of {_MOST_ENTRIES:,}")
        return []
    keys = {key for axis in axes for point in axis[:1] for key in point} | sweep.defaults.keys()
    for word, conditions in (("include", sweep.include), ("exclude", sweep.exclude)):
        _check_conditions(conditions, word, keys, place, faults)
    if sweep.job_id is None:
        return []
    made = []
    unusable: dict[str, dict[str, Any]] = {}
    for point in _points(axes, sweep.defaults):
        if (sweep.include and not _fits(sweep.include, point)) or _fits(sweep.exclude, point):
            continue
        try:
            entry = _finished(point, sweep.derive, sweep.job_id)
        except ValueError as error:
            # The other points of this sweep have the same fault.
            faults.append(f"{place}{error}")
            return []
        made.append(entry)
        if not is_name(entry["job_id"]):
            unusable.setdefault(entry["job_id"], point)
    faults += _limited([f"{place}{fault}" for fault in _unusable_ids(unusable)])
    if not made and not faults:
        faults.append(f"{place}include and exclude drop all of its {size} combinations")
    return made


def _axes(sweep: Sweep, place: str, faults: list[str]) -> list[_Axis]:
    axes: list[_Axis] = [[{key: value} for value in values] for key, values in sweep.grid.items()]
    for group in sweep.zip:
        if group:
            axes.append([dict(zip(group, row, strict=True)) for row in _rows(group)])
    if sweep.random is not None:
        axes.append(_random_axis(sweep.random))
    seen: set[str] = set()
    for axis in axes:
        for key in axis[0]:
            if key in seen:
                faults.append(f"{place}{key}: is in more than one of grid, zip and random: keep one")
            seen.add(key)
    return axes


def _random_axis(random: Random) -> _Axis:
    columns = {name: draw(drawer, random.seed, name, random.count) for name, drawer in random.draw.items()}
    return [{"draw": number, **dict(zip(columns, row, strict=True))} for number, row in enumerate(_rows(columns))]


def _rows(columns: Mapping[str, list[Any]]) -> Iterator[tuple[Any, ...]]:
    return zip(*columns.values(), strict=True)


def _points(axes: list[_Axis], defaults: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for point in itertools.product(*axes):
        # A deep copy: entries must not share nested values, which a script may change.
        values = {key: value for part in point for key, value in part.items()}
        yield copy.deepcopy({**defaults, **values}) if _nested(defaults, values) else {**defaults, **values}


def _nested(*parts: Mapping[str, Any]) -> bool:
    return any(isinstance(value, (list, dict)) for part in parts for value in part.values())


def _finished(point: dict[str, Any], texts: Mapping[str, str], pattern: str) -> dict[str, Any]:
    """The entry of one point: its job_id first, its derived texts last, without the number of the draw."""
    job_id = fill(pattern, point)
    fields = {**point, "job_id": job_id}
    first = {"job_id": job_id, "method": point["method"]} if "method" in point else {"job_id": job_id}
    entry = {**first, **{key: value for key, value in point.items() if key != "draw"}}
    for key, text in texts.items():
        entry[key] = fields[key] = fill(text, fields)
    return entry


def _unusable_ids(points: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A fault for each of these ids; the first says what to do."""
    advice = (
        ": expected at most 200 letters, digits, '.', '_' or '-', not beginning with '.' or '-': use another key in "
        "the pattern, or give each value a plain name by zip"
    )
    for job_id, point in points.items():
        values = ", ".join(
            f"{key}={shown(value)}" for key, value in point.items() if not isinstance(value, (dict, list))
        )
        yield f"job_id {shown(job_id)} cannot be used (from {values}){advice}"
        advice = ""


def _limited(faults: list[str]) -> list[str]:
    """The first of many faults of one kind, and how many more there are."""
    more = len(faults) - _MOST_ALIKE
    return [*faults[:_MOST_ALIKE], f"... and {more:,} more like this"] if more > 0 else faults


def _check_conditions(
    conditions: list[Mapping[str, Any]], word: str, keys: set[str], place: str, faults: list[str]
) -> None:
    for condition in conditions:
        for key, expected in condition.items():
            if key not in keys:
                faults.append(f"{place}{word}: {key} is not a key of this sweep{nearest(str(key), sorted(keys))}")
                continue
            try:
                check_condition(expected)
            except ValueError as error:
                faults.append(f"{place}{word}.{key}: {error}")


def _fits(conditions: list[Mapping[str, Any]], point: Mapping[str, Any]) -> bool:
    return any(all(holds(expected, point.get(key)) for key, expected in one.items()) for one in conditions)


def _resolve_needs(
    entries: list[dict[str, Any]], sources: list[str], patterns: list[list[str]], faults: list[str]
) -> None:
    """Set `needs` of each entry to the ids that its patterns match; a glob without a match is a fault."""
    ids = sorted(str(entry["job_id"]) for entry in entries)
    found: dict[str, list[str]] = {}
    reported: set[str] = set()
    for entry, source, needed in zip(entries, sources, patterns, strict=True):
        if not needed:
            continue
        own = entry.get("needs", [])
        wanted = dict.fromkeys(own if isinstance(own, list) else [own])
        for pattern in needed:
            try:
                text = fill(pattern, entry, escape_globs=any(character in pattern for character in "*?["))
            except ValueError as error:
                if pattern not in reported:
                    faults.append(f"{source}: needs {shown(pattern)}: {error}")
                reported.add(pattern)
                continue
            if text not in found:
                found[text] = _matching(text, ids)
            others = [job_id for job_id in found[text] if job_id != entry["job_id"]]
            if not others and text not in reported:
                faults.append(f"{source}: needs {shown(text)}: no other job id in this file matches")
                reported.add(text)
            wanted.update(dict.fromkeys(others))
        entry["needs"] = list(wanted)


def _matching(pattern: str, ids: list[str]) -> list[str]:
    """The ids that a glob matches; text without wildcards is an id itself, perhaps of another manifest."""
    prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    if prefix == pattern:
        return [pattern]
    # Ids with this prefix are adjacent in the sorted list: trying every id for every pattern would be quadratic.
    start = bisect.bisect_left(ids, prefix)
    end = bisect.bisect_right(ids, prefix + "\U0010ffff")
    return fnmatch.filter(ids[start:end], pattern)


def _collisions(entries: list[dict[str, Any]], sources: list[str]) -> list[str]:
    first: dict[str, int] = {}
    faults = []
    for position, entry in enumerate(entries):
        other = first.setdefault(entry["job_id"], position)
        if other != position:
            faults.append(_collision(entries[other], sources[other], entry, sources[position]))
    return faults


def _collision(one: Mapping[str, Any], source: str, other: Mapping[str, Any], other_source: str) -> str:
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    if not keys:
        return f"duplicate job_id: {one['job_id']}, for equal combinations in {source} and {other_source}: remove one"
    told = [", ".join(f"{key}={shown(values.get(key))}" for key in keys) for values in (one, other)]
    return (
        f"duplicate job_id: {one['job_id']}, for {told[0]} ({source}) and {told[1]} ({other_source}): "
        f"put {{{keys[0]}}} into the job_id pattern"
    )
