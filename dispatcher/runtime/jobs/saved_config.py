"""The configuration in a checkpoint: today's code reads every value in it, none silently falls back to a default, and
what a job that resumes has set otherwise is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dispatcher.base import yaml_text
from dispatcher.base.values import identity, shown
from dispatcher.errors import ConfigError
from dispatcher.runtime.checkpoint import Contents
from dispatcher.runtime.config_tree import Config
from dispatcher.runtime.configuration import defaults, to_dict, unknown_values, with_new_names
from dispatcher.runtime.places import RESERVED, layout, nearest_path
from dispatcher.runtime.registry import key_of, name_of

_MISSING: Final = object()
_log = logging.getLogger(__name__)


def saved_config(saved: Contents, where: str) -> dict[str, Any]:
    """The configuration in a checkpoint, as a document; ConfigError when it cannot be read."""
    try:
        document = yaml_text.load_mapping(saved.config or "", "the configuration's keys and values", aliases=False)
    except ValueError as error:
        raise ConfigError(f"{where}/config.yaml: {error}") from None
    return {key: value for key, value in document.items() if key not in RESERVED}


def check_fields(cls: Any, saved: Contents, where: str, *, model_only: bool = False) -> dict[str, Any]:
    """The configuration in a checkpoint with the current names of its fields, for the job class `cls`.

    ConfigError when it has values that no field reads any more: values of the model, or any values if `cls` saved it,
    unless `model_only`. Fields that are newer than the checkpoint are logged with their defaults.
    """
    config = with_new_names(saved_config(saved, where), *cls.config_classes())
    job = saved.job or {}
    model = tuple(job.get("model_fields") or ())
    groups = {_group(path) for path in layout(*cls.model_classes())}
    own = not model_only and (job.get("class") == name_of(cls) or (key_of(cls) or _MISSING) == job.get("job"))
    unknown = unknown_values(config, *cls.config_classes())
    lost = {
        path: value
        for path, value in unknown.items()
        # A job that does not restore the model itself need not know its fields.
        if own or (_is_field(path, model) and (model_only or _group(path) in groups))
    }
    new = [path for path in layout(*cls.model_classes()) if _value_at(config, path) is _MISSING]
    if lost:
        places = list(layout(*cls.config_classes()))
        raise ConfigError.of(f"{where}/config.yaml", [_lost(path, lost[path], new, places) for path in lost])
    if model and new:
        values = defaults(*cls.model_classes())
        for path in new:
            _log.info("%s has no value of the newer field %s: using %s", where, path, shown(_value_at(values, path)))
    return config


def warn_of_differences(cls: Any, config: Config | Mapping[str, Any], saved: Mapping[str, Any], where: str) -> None:
    """Log a warning for each value of the model's configuration that differs from the checkpoint's."""
    for path in layout(*cls.model_classes()):
        now, then = _value_at(config, path), _value_at(saved, path)
        if _MISSING not in (now, then) and identity(now) != identity(then):
            _log.warning("%s = %s, but %s was saved with %s", path, shown(now), where, shown(then))


def tell_changed_settings(cls: Any, config: Config | Mapping[str, Any], saved: Contents, where: str) -> None:
    """Log how the settings of a job that resumes differ from those in its checkpoint."""
    if saved.config is None:
        return
    then = dict(_flat(with_new_names(saved_config(saved, where), *cls.config_classes())))
    now = dict(_flat(to_dict(config)))
    changed = [
        f"{path} {_shown(then, path)} then, {_shown(now, path)} now"
        for path in sorted(then.keys() | now.keys())
        if path not in then or path not in now or identity(then[path]) != identity(now[path])
    ]
    if changed:
        _log.warning("%s: resumed with other settings: %s", where, "; ".join(changed))


def _flat(document: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a document by their paths."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _shown(values: Mapping[str, Any], path: str) -> str:
    return shown(values[path]) if path in values else "not set"


def _lost(path: str, value: Any, new: list[str], places: list[str]) -> str:
    beside = [each for each in new if _group(each) == _group(path)]
    # A renamed field need not resemble its old name.
    near = f" (did you mean {beside[0]!r}?)" if len(beside) == 1 else nearest_path(path, beside or places)
    to = (beside or ["..."])[0].replace(".", "/")
    return (
        f"{path} = {shown(value)}: no field reads it any more{near}: if it was renamed, declare it with "
        f"field({to!r}, renamed_from={path.replace('.', '/')!r}); if it was removed, use the code that saved it"
    )


def _is_field(path: str, fields: tuple[str, ...]) -> bool:
    """Whether `path` is one of `fields`, or a key of one whose value is a mapping."""
    return any(path == each or path.startswith(f"{each}.") for each in fields)


def _group(path: str) -> str:
    return path.rpartition(".")[0]


def _value_at(document: Any, path: str) -> Any:
    here = document
    for key in path.split("."):
        if not isinstance(here, (Mapping, Config)) or key not in here:
            return _MISSING
        try:
            here = here[key]
        except KeyError:
            return _MISSING
    return here
