"""From a key, a configuration and a place to a job that is ready to be called."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatcher import contract
from dispatcher.errors import ConfigError, UsageError
from dispatcher.runtime.configuration import (
    Config,
    configuration,
    merge,
    parse_overrides,
    place_value,
    to_dict,
)
from dispatcher.runtime.places import layout
from dispatcher.runtime.registry import find_job, import_jobs

if TYPE_CHECKING:
    from dispatcher.runtime.execution import ExecutionSpec
    from dispatcher.runtime.jobs.basic import BasicJob

# Where jobs of a matrix put their files when the entry says no `output_dir`, below the workspace's root.
OUTPUT: Final = "runs"

_NEEDS_CHECKPOINT: Final = (
    "this job is made from a checkpoint: say which, a path such as default/default/NAME/best, with --restore or as "
    "`restore` of the entry"
)


def make_job(
    cls: type[BasicJob[Any]],
    spec: ExecutionSpec,
    said: Config | Mapping[str, Any],
    *,
    restore: str | None = None,
    where: str = "configuration",
) -> BasicJob[Any]:
    """A job of class `cls`, fresh or from the checkpoint `restore` (a path below the checkpoints).

    `said` is what somebody has said, without defaults: a restored job takes all else from its checkpoint.
    """
    if restore is None:
        if cls.checkpoint_classes():
            raise UsageError(f"{where}: {_NEEDS_CHECKPOINT}")
        with configuration(cls.checked_config(said, where=where)):
            return cls(spec)
    maker = getattr(cls, "from_checkpoint_path", None)
    if maker is None:
        raise UsageError(f"{cls.__qualname__} cannot go on from {restore!r}: it is no RestoreableJob")
    made: BasicJob[Any] = maker(restore, spec, to_dict(said))
    return made


def go_back(job: BasicJob[Any], checkpoint: str) -> None:
    """Have the job begin at this checkpoint of its own; UsageError for a job that saves none."""
    back = getattr(job, "go_back", None)
    if back is None:
        raise UsageError(f"{type(job).__qualname__} cannot go back to {checkpoint!r}: it is no CheckpointedJob")
    back(checkpoint)


def attempt_job(directory: Path, root: Path) -> BasicJob[Any]:
    """The job of the attempt whose directory this is, as its entry says; `root` is the workspace's.

    Of the entry's parameters, those with a dot in their key (`training.lr`) are overrides of `config`, and these are
    read: `output_dir`, `checkpoints` (a directory or a URL), `project`, `group`, `restore`, `tensor_shards`. All
    others are labels.
    """
    path = directory / contract.ENTRY_FILE
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if not entry.get("job"):
        raise ConfigError(f'{path}: names no job: write one into the matrix, such as "job": "gpt/train/pretrain"')
    join_others()
    cls = _entry_class(entry, root)

    from dispatcher.runtime.execution import local

    where = f"{entry['job_id']} ({path})"
    spec = local(
        root / (_text(entry, "output_dir", where) or OUTPUT),
        name=entry["job_id"],
        project=_text(entry, "project", where),
        group=_text(entry, "group", where),
        tensor_shards=_shards(entry, where),
        checkpoints=_text(entry, "checkpoints", where),
    )
    said = entry_config(entry, where)
    return make_job(cls, spec, said, restore=_text(entry, "restore", where), where=where)


def join_others() -> None:
    """Join the other processes of this job, if it has any: before the code of jobs is imported, which may use JAX."""
    from dispatcher.runtime import distributed

    distributed.initialize()


def entry_faults(entry: Mapping[str, Any], root: Path) -> list[str]:
    """What would keep the entry's job from being made: its key, and every fault of its configuration.

    Of an entry that goes on from a checkpoint only the key is looked at: what it may say, the checkpoint knows.
    """
    try:
        cls = _entry_class(entry, root)
        if entry.get("restore"):
            return []
        if cls.checkpoint_classes():
            return [_NEEDS_CHECKPOINT]
        cls.checked_config(entry_config(entry, ""), where="")
    except ConfigError as error:
        # Without the line that says whose faults these are and how many.
        return [line.strip() for line in str(error).splitlines()[1:]]
    except UsageError as error:
        return [" ".join(str(error).splitlines())]
    return []


def entry_config(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The configuration that an entry says: its `config`, and over it the parameters with a dot in their key."""
    overrides: dict[str, Any] = {}
    faults = [
        f"{key}: another parameter says a part of it"
        for key, value in entry.items()
        if "." in key and not place_value(overrides, key.split("."), value)
    ]
    if faults:
        raise ConfigError.of(where, faults)
    return merge(entry.get("config") or {}, overrides)


def file_config(
    cls: type[BasicJob[Any]], config: Config | Mapping[str, Any], said: Mapping[str, Any]
) -> dict[str, Any]:
    """What a file for the job `cls` says of `config`, its whole configuration: of what a checkpoint brings only `said`.

    Else the defaults of, say, the model would take the place of what the checkpoint knows.
    """
    brought: tuple[type, ...] = cls.checkpoint_classes()
    own: list[type] = [kind for kind in cls.config_classes() if kind not in brought]
    return merge(_without(to_dict(config), layout(*brought).keys() - layout(*own).keys()), said)


def workspace_root() -> Path:
    """`$DISPATCHER_ROOT`, else the current directory."""
    return Path(os.environ.get(contract.ROOT) or ".").absolute()


def with_overrides(said: Config | Mapping[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """`said` with dotted overrides (`training.lr=1e-4`) over it."""
    return merge(said, parse_overrides(words))


def _entry_class(entry: Mapping[str, Any], root: Path) -> Any:
    imports = entry.get("import") or []
    import_jobs(root, [imports] if isinstance(imports, str) else imports)
    return find_job(entry["job"])


def _without(document: Mapping[str, Any], paths: Collection[str], above: tuple[str, ...] = ()) -> dict[str, Any]:
    """`document` without the values at these dotted paths, and without groups that are empty then."""
    kept = {}
    for key, value in document.items():
        place = (*above, key)
        left = _without(value, paths, place) if isinstance(value, dict) and value else value
        if ".".join(place) not in paths and not (left == {} and value != {}):
            kept[key] = left
    return kept


def _text(entry: Mapping[str, Any], key: str, where: str) -> str | None:
    value = entry.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{where}: {key} = {json.dumps(value)}: expected text")
    return value


def _shards(entry: Mapping[str, Any], where: str) -> int:
    value = entry.get("tensor_shards", 1)
    if type(value) is not int or value < 1:
        raise ConfigError(f"{where}: tensor_shards = {json.dumps(value)}: expected a whole number, 1 or more")
    return value
