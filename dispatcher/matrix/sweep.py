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

To add a keyword of a sweep, add it to _SWEEP_KEYS and apply it in `_sweep` (the points and their entries) or `_axes`
(what is combined); one of the whole file, to _TOP_KEYS and `_expand`.
"""

from __future__ import annotations

import bisect
import copy
import fnmatch
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dispatcher.base.values import is_name, shown
from dispatcher.errors import ManifestError, nearest
from dispatcher.matrix.condition import check_condition, holds
from dispatcher.matrix.draw import draw, make_drawer
from dispatcher.matrix.faults import Faults, draw_advice, grid_advice
from dispatcher.matrix.manifest import read_entries
from dispatcher.matrix.pattern import fill

# More is a mistake, and would fill the memory.
_MOST_ENTRIES: Final = 1_000_000
# Of as many faults of one kind each is listed.
_MOST_ALIKE: Final = 20

_TOP_KEYS: Final = ("defaults", "job_id", "derive", "sweeps")
_SWEEP_KEYS: Final = ("name", "defaults", "job_id", "derive", "grid", "zip", "random", "include", "exclude", "needs")
_RANDOM_KEYS: Final = ("seed", "count", "draw")

# One axis of a sweep: its points, each a few keys and their values.
_Axis = list[dict[str, Any]]


def expand(sweep: Mapping[str, Any] | str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The entries of a sweep, given as a mapping or as the path of a YAML file; ManifestError lists every fault.

    The same sweep always expands to the same entries in the same order. For duplicate ids the fault names the
    combinations. Needed ids that are not among the entries are not checked here: they may be in the run state.
    """
    if isinstance(sweep, Mapping):
        where, document = "the sweep", sweep
    else:
        where, document = str(sweep), _load(sweep)
    faults = Faults()
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
        return yaml_text.load_mapping(files.read_plain(path), f"the keys {', '.join(_TOP_KEYS)}")
    except OSError as error:
        raise ManifestError(str(path), [f"cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ManifestError(str(path), [str(error)]) from None


def _expand(document: Mapping[str, Any], faults: Faults) -> tuple[list[dict[str, Any]], list[str]]:
    """The entries, and for each the name of its sweep."""
    faults.keys(document, _TOP_KEYS, "")
    defaults = faults.mapping(document, "defaults", "")
    derive = faults.mapping(document, "derive", "")
    sweeps = document.get("sweeps")
    if not isinstance(sweeps, list) or not sweeps:
        faults.append(f"sweeps = {shown(sweeps)}: expected a list of sweeps, each with grid, zip or random")
        return [], []
    entries: list[dict[str, Any]] = []
    sources: list[str] = []
    patterns: list[list[str]] = []
    for number, sweep in enumerate(sweeps, 1):
        if not isinstance(sweep, Mapping):
            faults.append(f"sweep {number} = {shown(sweep)}: expected keys such as grid, zip, random")
            continue
        name = f"sweep {sweep.get('name', number)}"
        inherited = {"defaults": defaults, "derive": derive, "job_id": document.get("job_id")}
        made = _sweep(sweep, inherited, f"{name}: ", faults)
        entries += made
        sources += [name] * len(made)
        patterns += [_list_of_text(sweep, "needs", f"{name}: ", faults)] * len(made)
    if not faults:
        _resolve_needs(entries, sources, patterns, faults)
    return entries, sources


def _sweep(sweep: Mapping[str, Any], inherited: Mapping[str, Any], place: str, faults: Faults) -> list[dict[str, Any]]:
    faults.keys(sweep, _SWEEP_KEYS, place)
    defaults = {**inherited["defaults"], **faults.mapping(sweep, "defaults", place)}
    derive = {**inherited["derive"], **faults.mapping(sweep, "derive", place)}
    pattern = sweep.get("job_id", inherited["job_id"])
    if not isinstance(pattern, str):
        faults.append(f'{place}job_id = {shown(pattern)}: expected a pattern such as "{{method}}_{{lang}}_s{{seed}}"')
    axes = _axes(sweep, place, faults)
    texts = _derived_texts(derive, place, faults)
    faults.made_names([*defaults, *derive], place)
    size = math.prod(len(axis) for axis in axes)
    if size > _MOST_ENTRIES:
        factors = " x ".join(f"{len(axis):,}" for axis in axes if len(axis) > 1)
        faults.append(f"{place}{factors} = {size:,} combinations: more than the limit of {_MOST_ENTRIES:,}")
        return []
    keys = {key for axis in axes for point in axis[:1] for key in point} | defaults.keys()
    include = _conditions(sweep, "include", keys, place, faults)
    exclude = _conditions(sweep, "exclude", keys, place, faults)
    if not isinstance(pattern, str):
        return []
    made = []
    unusable: dict[str, dict[str, Any]] = {}
    for point in _points(axes, defaults):
        if (include and not _fits(include, point)) or _fits(exclude, point):
            continue
        try:
            entry = _finished(point, texts, pattern)
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


def _derived_texts(derive: Mapping[str, Any], place: str, faults: Faults) -> dict[str, str]:
    for key, text in derive.items():
        if not isinstance(text, str):
            faults.append(f'{place}derive.{key} = {shown(text)}: expected text such as "/checkpoints/{{job_id}}"')
    return {key: text for key, text in derive.items() if isinstance(text, str)}


def _axes(sweep: Mapping[str, Any], place: str, faults: Faults) -> list[_Axis]:
    axes: list[_Axis] = []
    for key, values in faults.mapping(sweep, "grid", place).items():
        if isinstance(values, list) and values:
            axes.append([{key: value} for value in values])
        else:
            faults.append(f"{place}grid.{key} = {shown(values)}: expected a list of values{grid_advice(key, values)}")
    groups = sweep.get("zip")
    for group in groups if isinstance(groups, list) else [groups]:
        axes += _zip_axis(faults.mapping({"zip": group}, "zip", place), place, faults)
    faults.made_names([key for axis in axes for key in axis[0]], place)
    axes += _random_axis(faults.mapping(sweep, "random", place), place, faults)
    seen: set[str] = set()
    for axis in axes:
        for key in axis[0]:
            if key in seen:
                faults.append(f"{place}{key}: is in more than one of grid, zip and random: keep one")
            seen.add(key)
    return axes


def _zip_axis(group: Mapping[str, Any], place: str, faults: Faults) -> list[_Axis]:
    lists = {key: values for key, values in group.items() if isinstance(values, list) and values}
    for key, values in group.items():
        if key not in lists:
            faults.append(f"{place}zip.{key} = {shown(values)}: expected a list of values{grid_advice(key, values)}")
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        faults.append(f"{place}zip: expected lists of one length, but {listed}")
        return []
    if not lists:
        return []
    return [[dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]]


def _random_axis(document: Mapping[str, Any], place: str, faults: Faults) -> list[_Axis]:
    if not document:
        return []
    faults.keys(document, _RANDOM_KEYS, f"{place}random.")
    seed, count = document.get("seed"), document.get("count")
    valid = True
    for key, value, least in (("seed", seed, None), ("count", count, 1)):
        if type(value) is not int or (least is not None and value < least):
            expected = "a whole number" if least is None else f"a whole number, {least} or more"
            faults.append(f"{place}random.{key} = {shown(value)}: expected {expected}")
            valid = False
    drawers = {}
    for name, distribution in faults.mapping(document, "draw", f"{place}random.").items():
        try:
            drawers[name] = make_drawer(distribution)
        except ValueError as error:
            advice = draw_advice(name, distribution)
            faults.append(f"{place}random.draw.{name} = {shown(distribution)}: {error}{advice}")
    faults.made_names(drawers, f"{place}random.draw.")
    if not document.get("draw"):
        faults.append(f"{place}random.draw is missing: expected parameters such as lr: {{log_uniform: [1e-5, 1e-3]}}")
    if not valid or not drawers or type(seed) is not int or type(count) is not int:
        return []
    if count > _MOST_ENTRIES:
        faults.append(f"{place}random.count = {count:,}: more than the limit of {_MOST_ENTRIES:,}")
        return []
    columns = {name: draw(drawer, seed, name, count) for name, drawer in drawers.items()}
    return [[{"draw": number, **dict(zip(columns, row, strict=True))} for number, row in enumerate(_rows(columns))]]


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
    """A fault for each of these ids; what to do stands in the first."""
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


def _conditions(
    sweep: Mapping[str, Any], word: str, keys: set[str], place: str, faults: Faults
) -> list[Mapping[str, Any]]:
    conditions = sweep.get(word)
    if conditions is None:
        return []
    if isinstance(conditions, Mapping):
        conditions = [conditions]
    if not isinstance(conditions, list) or not all(isinstance(one, Mapping) and one for one in conditions):
        faults.append(f"{place}{word} = {shown(conditions)}: expected a list of conditions such as {{lang: german}}")
        return []
    for condition in conditions:
        for key, expected in condition.items():
            if key not in keys:
                faults.append(f"{place}{word}: {key} is not a key of this sweep{nearest(str(key), sorted(keys))}")
                continue
            try:
                check_condition(expected)
            except ValueError as error:
                faults.append(f"{place}{word}.{key}: {error}")
    return conditions


def _fits(conditions: list[Mapping[str, Any]], point: Mapping[str, Any]) -> bool:
    return any(all(holds(expected, point.get(key)) for key, expected in one.items()) for one in conditions)


def _list_of_text(sweep: Mapping[str, Any], key: str, place: str, faults: Faults) -> list[str]:
    value = sweep.get(key)
    if value is None:
        return []
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        faults.append(f"{place}{key} = {shown(value)}: expected a list of job ids or globs over them")
        return []
    return words


def _resolve_needs(
    entries: list[dict[str, Any]], sources: list[str], patterns: list[list[str]], faults: Faults
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
