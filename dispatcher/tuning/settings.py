"""`tune.yaml`: what a study searches, and how.

    name: lr_search
    defaults: {method: pretrain, gpus: 1, lang: greek}
    space:
      lr: {log_uniform: [1e-5, 1e-2]}
      layers: {integer: [2, 12]}
      act: {choice: [relu, gelu]}
    objective: {value: held_out_loss, goal: min}
    trials: 50
    parallel: 8
    sampler: {tpe: {seed: 0, startup: 10}}
    halving: {metric: val_loss, min_step: 100, reduction: 3, max_step: 2700}

To add a key, add an annotated field to Settings; if it changes what the value of a trial means, to `Settings.identity`.
"""

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from dispatcher.base.schema import reading
from dispatcher.base.schema.faults import PartFault, PartsError, lines_of
from dispatcher.base.schema.kinds import TEXT, number, read_later
from dispatcher.base.schema.types import Key, Value
from dispatcher.base.values import NAME_EXPECTED, BadValueError, identity, is_name, shown
from dispatcher.errors import ManifestError, nearest
from dispatcher.matrix.draw import OF_STUDIES
from dispatcher.matrix.entry import UNDIGESTED, Entry
from dispatcher.matrix.faults import derived_text, named
from dispatcher.matrix.new_jobs import METHOD
from dispatcher.matrix.pattern import fill
from dispatcher.tuning.halving import Halving
from dispatcher.tuning.space import Space, fits, params_at, read_space, saved

# Each with its options and their defaults.
SAMPLERS: Final[Mapping[str, Mapping[str, int]]] = {
    "tpe": {"seed": 0, "startup": 10}, "random": {"seed": 0}, "qmc": {"seed": 0},
}  # fmt: skip
# It needs no study, but SciPy.
QMC: Final = "qmc"
# Entries of trials have these besides, for tables and filters.
MADE: Final = frozenset({"job_id", "name", "study", "trial"})
_MOST: Final = 100_000
_PATTERN: Final = "{study}_{trial:04d}"
# Keys of entries whose values are private.
_SECRET: Final = ("env", "env_file")


def _parse_name(value: object) -> str:
    if not is_name(value):
        raise BadValueError("expected letters, digits, '.', '_' or '-', as in lr_search")
    return str(value)


def _parse_result(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadValueError("expected a key of result.json, as in held_out_loss")
    return value


def _parse_most(value: object) -> int:
    if type(value) is not int or not 1 <= value <= _MOST:
        raise BadValueError(f"expected a whole number from 1 to {_MOST}")
    return value


def _parse_pattern(value: object) -> str:
    if not isinstance(value, str):
        raise BadValueError(f"expected a pattern such as {_PATTERN}")
    return value


def _parse_sampler(value: object) -> tuple[str, Mapping[str, int]]:
    """`tpe`, or `{tpe: {seed: 1}}`."""
    described = {value: {}} if isinstance(value, str) else value
    if not isinstance(described, Mapping) or len(described) != 1:
        raise BadValueError(f"expected one of {', '.join(SAMPLERS)}, as in {{tpe: {{seed: 1}}}}")
    ((name, given),) = described.items()
    if name not in SAMPLERS:
        raise PartsError([PartFault("", name, f"unknown sampler{nearest(str(name), SAMPLERS)}")])
    if not isinstance(given or {}, Mapping):
        raise PartsError([PartFault(f".{name}", given, "expected names and their values")])
    options = {key: option for key, option in (given or {}).items() if option is not None}
    known = SAMPLERS[name]
    wrong = [
        PartFault(f".{name}.{key}", None, f"unknown key{nearest(str(key), known)}", is_hidden=True)
        for key in options
        if key not in known
    ]
    wrong += [
        PartFault(f".{name}.{key}", option, "expected a whole number, 0 or more")
        for key, option in options.items()
        if type(option) is not int or option < 0
    ]
    if wrong:
        raise PartsError(wrong)
    return name, {**known, **options}


def _defaults_schema() -> Mapping[str, Any]:
    from dispatcher.base.schema.json_schema import of_struct

    return of_struct(Entry, is_open=True)


_SAMPLER: Final = {
    "anyOf": [
        {"enum": list(SAMPLERS)},
        {
            "type": "object",
            "properties": {
                name: {
                    "type": ["object", "null"],
                    "properties": dict.fromkeys(options, types),
                    "additionalProperties": False,
                }
                for types in ({"type": ["integer", "null"], "minimum": 0},)
                for name, options in SAMPLERS.items()
            },
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
    ]
}
_Most: TypeAlias = Annotated[int, number(1, _MOST, _parse_most)]


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a trial the best."""

    value: Annotated[str, Value(_parse_result, TEXT), Key("a number that the job reports as its result")]
    goal: Annotated[Literal["min", "max"], Key("whether the lowest or the highest value is the best")]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A study as its file has it. `sampler_options` has a seed, and `startup` for tpe."""

    name: Annotated[
        str,
        Value(_parse_name, TEXT),
        Key(
            "the study. Entries of its trials have it as `study`, and their number as `trial`, for `--where` and tables"
        ),
    ]
    space: Annotated[
        Space,
        read_later(OF_STUDIES),
        Key("parameters and what they are drawn from, as in [sweep files](sweeps.md#random): `uniform`, `log_uniform`, "
            "`integer`, `choice`"),
    ]  # fmt: skip
    objective: Annotated[
        Objective,
        Key("`value`: a number that the job reports as its [result](templates.md); `goal`: `min` or `max`"),
    ]
    trials: Annotated[_Most, Key("how many trials the study has in all")]
    parallel: Annotated[_Most, Key("how many of them are queued or running at once")] = 1
    sampler: Annotated[str, Value(_parse_sampler, _SAMPLER), Key("how they are chosen")] = "tpe"
    sampler_options: Mapping[str, int] = {}
    halving: Annotated[Halving | None, Key("[stops](#halving) trials that are worse than others")] = None
    defaults: Annotated[Mapping[str, Any], Value(functools.partial(named, made=MADE), _defaults_schema),
        Key("keys of every [entry](entries.md): a command or a method, `gpus`, `priority`, parameters that all trials "
            "share"),
    ] = {}  # fmt: skip
    derive: Annotated[
        Mapping[str, str],
        Value(
            functools.partial(named, read=derived_text, made=MADE),
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
        Key('texts with fields, filled last, as in sweep files: `{output_dir: "/checkpoints/{job_id}"}`'),
    ] = {}
    job_id: Annotated[str, Value(_parse_pattern, TEXT), Key("the pattern of the job ids")] = _PATTERN

    @property
    def value(self) -> str:
        return self.objective.value

    @property
    def goal(self) -> str:
        return self.objective.goal

    def constants(self) -> dict[str, Any]:
        """What all trials have in common and may influence their values; of secrets no more than a digest."""
        found = {key: value for key, value in self.defaults.items() if key not in UNDIGESTED}
        for key in _SECRET:
            if key in found:
                found[key] = hashlib.sha256(json.dumps(found[key], sort_keys=True).encode()).hexdigest()[:12]
        return found

    def identity(self) -> dict[str, Any]:
        """What cannot change: values before and after could not be compared."""
        return {
            "objective": {"value": self.value, "goal": self.goal},
            "halving": None if self.halving is None else msgspec.to_builtins(self.halving),
        }

    def journalled(self) -> dict[str, Any]:
        """The settings as JSON values, as the journal keeps them."""
        document = {
            **self.identity(),
            "space": saved(self.space),
            "constants": self.constants(),
            "sampler": {self.sampler: dict(self.sampler_options)},
            "trials": self.trials,
            "parallel": self.parallel,
        }
        # As it will be read: numbers of the file may have more digits than a double.
        return dict(msgspec.json.decode(msgspec.json.encode(document)))

    def entry(self, number: int, params: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of the entry of a trial, its `job_id` among them. Raises ValueError for a faulty pattern."""
        made = {"study": self.name, "trial": number}
        entry = {**self.defaults, **params, **made}
        entry["job_id"] = fill(self.job_id, entry)
        for key, text in self.derive.items():
            entry[key] = fill(text, entry)
        return entry

    def example(self) -> dict[str, Any]:
        """Parameters that might be suggested."""
        return params_at(self.space, dict.fromkeys(self.space, 0.0))


def accepts(settings: Mapping[str, Any], before: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    """Whether a trial with these parameters, asked under settings `before`, counts under these; both as journalled."""
    return identity(settings["constants"]) == identity(before["constants"]) and fits(space_of(settings), params)


def space_of(journalled: Mapping[str, Any]) -> Space:
    """The space of settings that were journalled."""
    return read_space(journalled["space"], [])


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """The study in a YAML file; ManifestError lists every fault."""
    from dispatcher.base import files, yaml_text

    try:
        document = yaml_text.load_mapping(files.read_plain(path), f"the keys {', '.join(reading.fields(Settings))}")
    except OSError as error:
        raise ManifestError(str(path), [f"cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ManifestError(str(path), [str(error)]) from None
    faults: list[str] = []
    settings = _read(document, faults)
    if settings is None:
        raise ManifestError(str(path), faults)
    return settings


def _read(document: Mapping[str, Any], faults: list[str]) -> Settings | None:
    found, wrong = reading.parse(Settings, document)
    faults += [fault.line() for fault in wrong]
    described, defaults = found.pop("space", None), document.get("defaults")
    space: Space = {}
    if described is not None:
        try:
            if not described:
                raise BadValueError("expected parameters such as lr: {log_uniform: [1e-5, 1e-2]}")
            space = read_space(named(described, made=MADE), faults)
        except BadValueError as error:
            faults += lines_of(error, described, "space")
    if isinstance(described, Mapping) and isinstance(defaults, Mapping):
        faults += [
            f"{key}: is in defaults and in space: keep one"
            for key in defaults if key in described and not (key in space and space[key].when)
        ]  # fmt: skip
    if faults:
        return None
    found["sampler"], found["sampler_options"] = found.get("sampler", ("tpe", SAMPLERS["tpe"]))
    settings = Settings(**{**found, "space": space, "defaults": {"method": METHOD, **found.get("defaults", {})}})
    _check_patterns(settings, faults)
    return None if faults else settings


def _check_patterns(settings: Settings, faults: list[str]) -> None:
    try:
        one, other = (settings.entry(number, settings.example()) for number in (0, 1))
    except ValueError as error:
        faults.append(str(error))
        return
    if one["job_id"] == other["job_id"]:
        faults.append(f"job_id = {shown(settings.job_id)}: all trials have this id: put {{trial:04d}} into it")
    elif not is_name(one["job_id"]):
        faults.append(f"job_id {shown(one['job_id'])}: {NAME_EXPECTED}")
