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

To add a key, add it to _KEYS and Settings; if it changes what the value of a trial means, to `Settings.identity`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dispatcher.base.values import NAME_EXPECTED, identity, is_name, shown
from dispatcher.errors import ManifestError, nearest
from dispatcher.matrix.entry import UNDIGESTED
from dispatcher.matrix.faults import Faults
from dispatcher.matrix.pattern import fill
from dispatcher.submitting import METHOD
from dispatcher.tuning.halving import Halving, read_halving
from dispatcher.tuning.space import Space, fits, params_at, read_space, saved

_KEYS: Final = (
    "name",
    "job_id",
    "defaults",
    "derive",
    "space",
    "objective",
    "trials",
    "parallel",
    "sampler",
    "halving",
)
_OBJECTIVE_KEYS: Final = ("value", "goal")
_GOALS: Final = ("min", "max")
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
# Keys of entries whose values are nobody's business.
_SECRET: Final = ("env", "env_file")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A study as its file has it. `goal` is min or max; `sampler` has a seed, and `startup` for tpe."""

    name: str
    space: Space
    value: str
    goal: str
    trials: int
    parallel: int = 1
    sampler: str = "tpe"
    sampler_options: Mapping[str, int]
    halving: Halving | None = None
    job_id: str = _PATTERN
    defaults: Mapping[str, Any] = {}
    derive: Mapping[str, str] = {}

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
    return read_space(journalled["space"], Faults())


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """The study in a YAML file; ManifestError lists every fault."""
    from dispatcher.base import files, yaml_text

    try:
        document = yaml_text.load_mapping(files.read_plain(path), f"the keys {', '.join(_KEYS)}")
    except OSError as error:
        raise ManifestError(str(path), [f"cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ManifestError(str(path), [str(error)]) from None
    faults = Faults()
    settings = _read(document, faults)
    if settings is None:
        raise ManifestError(str(path), faults)
    return settings


def _read(document: Mapping[str, Any], faults: Faults) -> Settings | None:
    faults.keys(document, _KEYS, "")
    name = document.get("name")
    if not is_name(name):
        faults.append(f"name = {shown(name)}: expected letters, digits, '.', '_' or '-', as in lr_search")
    defaults = faults.mapping(document, "defaults", "")
    derive = faults.mapping(document, "derive", "")
    described = faults.mapping(document, "space", "")
    faults.made_names([*defaults, *derive, *described], "", MADE)
    space = read_space(described, faults)
    if not described:
        faults.append("space is missing: expected parameters such as lr: {log_uniform: [1e-5, 1e-2]}")
    faults += [
        f"{key}: is in defaults and in space: keep one"
        for key in defaults if key in described and not (key in space and space[key].when)
    ]  # fmt: skip
    faults += [
        f"derive.{key} = {shown(text)}: expected text such as \"/checkpoints/{{job_id}}\""
        for key, text in derive.items() if not isinstance(text, str)
    ]  # fmt: skip
    value, goal = _objective(document, faults)
    trials = _count(document, "trials", None, faults)
    parallel = _count(document, "parallel", 1, faults)
    sampler, options = _sampler(document.get("sampler", "tpe"), faults)
    halving = faults.mapping(document, "halving", "")
    halved = read_halving(halving, faults) if halving or document.get("halving") is not None else None
    pattern = document.get("job_id", _PATTERN)
    if faults:
        return None
    settings = Settings(
        name=str(name), space=space, value=value, goal=goal, trials=trials, parallel=parallel, sampler=sampler,
        sampler_options=options, halving=halved, job_id=pattern, defaults={"method": METHOD, **defaults}, derive=derive,
    )  # fmt: skip
    _check_patterns(settings, faults)
    return None if faults else settings


def _objective(document: Mapping[str, Any], faults: Faults) -> tuple[str, str]:
    objective = faults.mapping(document, "objective", "")
    faults.keys(objective, _OBJECTIVE_KEYS, "objective.")
    value, goal = objective.get("value"), objective.get("goal")
    if not isinstance(value, str) or not value:
        faults.append(f"objective.value = {shown(value)}: expected a key of result.json, as in held_out_loss")
    if goal not in _GOALS:
        faults.append(f"objective.goal = {shown(goal)}: expected min or max")
    return str(value), str(goal)


def _count(document: Mapping[str, Any], key: str, default: int | None, faults: Faults) -> int:
    value = document.get(key, default)
    if type(value) is int and 1 <= value <= _MOST:
        return value
    faults.append(f"{key} = {shown(value)}: expected a whole number from 1 to {_MOST}")
    return 1


def _sampler(document: object, faults: Faults) -> tuple[str, Mapping[str, int]]:
    """`tpe`, or `{tpe: {seed: 1}}`."""
    described = {document: {}} if isinstance(document, str) else document
    if not isinstance(described, Mapping) or len(described) != 1:
        faults.append(f"sampler = {shown(document)}: expected one of {', '.join(SAMPLERS)}, as in {{tpe: {{seed: 1}}}}")
        return "tpe", {}
    ((name, given),) = described.items()
    if name not in SAMPLERS:
        faults.append(f"sampler = {shown(name)}: unknown sampler{nearest(str(name), SAMPLERS)}")
        return "tpe", {}
    options = faults.mapping({str(name): given}, str(name), "sampler.")
    faults.keys(options, tuple(SAMPLERS[name]), f"sampler.{name}.")
    for key, value in options.items():
        if type(value) is not int or value < 0:
            faults.append(f"sampler.{name}.{key} = {shown(value)}: expected a whole number, 0 or more")
    return name, {**SAMPLERS[name], **options}


def _check_patterns(settings: Settings, faults: Faults) -> None:
    if not isinstance(settings.job_id, str):
        faults.append(f"job_id = {shown(settings.job_id)}: expected a pattern such as {_PATTERN}")
        return
    try:
        one, other = (settings.entry(number, settings.example()) for number in (0, 1))
    except ValueError as error:
        faults.append(str(error))
        return
    if one["job_id"] == other["job_id"]:
        faults.append(f"job_id = {shown(settings.job_id)}: all trials have this id: put {{trial:04d}} into it")
    elif not is_name(one["job_id"]):
        faults.append(f"job_id {shown(one['job_id'])}: {NAME_EXPECTED}")
