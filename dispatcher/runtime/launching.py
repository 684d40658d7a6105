"""Make jobs from an attempt's entry, or from a class and a configuration."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

from dispatcher import contract
from dispatcher.base.storing import storing
from dispatcher.base.variables import PLACES
from dispatcher.checkpoints.storage import is_url
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
    from dispatcher.runtime.execution import ExecutionSpec, Hardware
    from dispatcher.runtime.jobs.basic import BasicJob

# Where jobs of a matrix put their files unless the entry has an `output_dir`, below the workspace's root.
OUTPUT: Final = "runs"
_BATCH_SIZE: Final = "training.per_device_batch_size"

_NEEDS_CHECKPOINT: Final = (
    "this job starts from a checkpoint: set one with --restore or as `restore` of the entry, a path such as "
    "default/default/NAME/best"
)


_log = logging.getLogger(__name__)


def make_job(
    cls: type[BasicJob[Any]],
    spec: ExecutionSpec,
    config: Config | Mapping[str, Any],
    *,
    restore: str | None = None,
    where: str = "configuration",
) -> BasicJob[Any]:
    """A job of class `cls`, new or from the checkpoint `restore` (a path below the checkpoints).

    `config` holds no defaults: a restored job takes all other values from its checkpoint.
    """
    if restore is None:
        if cls.checkpoint_classes():
            raise UsageError(f"{where}: {_NEEDS_CHECKPOINT}")
        with configuration(cls.checked_config(config, where=where)):
            return cls(spec)
    maker = getattr(cls, "from_checkpoint_path", None)
    if maker is None:
        raise UsageError(f"{cls.__qualname__} cannot start from {restore!r}: it is not a RestoreableJob")
    made: BasicJob[Any] = maker(restore, spec, to_dict(config))
    return made


def rewind(job: BasicJob[Any], checkpoint: str) -> None:
    """Let the job resume from this checkpoint of its own; UsageError for a job that saves none."""
    rewind_job = getattr(job, "rewind", None)
    if rewind_job is None:
        raise UsageError(f"{type(job).__qualname__} cannot rewind to {checkpoint!r}: it is not a CheckpointedJob")
    rewind_job(checkpoint)


def accept_changes(job: BasicJob[Any]) -> None:
    """Let the job resume with data that differ from its checkpoint's; UsageError for a job that saves none."""
    if not hasattr(job, "accept_changes"):
        raise UsageError(f"{type(job).__qualname__} cannot accept changes: it is not a CheckpointedJob")
    job.accept_changes = True


def attempt_job(directory: Path, root: Path) -> BasicJob[Any]:
    """The job of the attempt in `directory`; `root` is the workspace.

    Of the entry's parameters, those with a dot in their key (`training.lr`) override values of its `config`; these are
    read too: `output_dir`, `checkpoints` (a directory or a URL), `project`, `group`, `restore`, `accept_changes`,
    `tensor_shards`. All others are labels.
    """
    path = directory / contract.ENTRY_FILE
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if not entry.get("job"):
        raise ConfigError(f'{path}: has no job: add one to the matrix entry, such as "job": "gpt/train/pretrain"')
    code = shipped_code(entry.get("cwd") or "") if os.environ.get(contract.CODE_DIGEST) else root
    return entry_job(entry, code, places({}, os.environ, root), where=f"{entry['job_id']} ({path})")


def places(hardware: Mapping[str, Any], environment: Mapping[str, str], root: Path) -> dict[str, str]:
    """The directories of the job: those of the environment, else of its cluster, `hardware`; `root` as a last resort.

    `~` and variables are those of the host where the job runs.
    """
    chosen = {"root": str(root)}
    for place, variable in PLACES.items():
        value = environment.get(variable) or hardware.get(place)
        if value:
            chosen[place] = value if is_url(value) else os.path.expandvars(os.path.expanduser(value))
    return chosen


def shipped_code(cwd: str) -> Path:
    """The directory of code that was shipped: the job was started in it, or in `cwd` below it."""
    here, below = Path.cwd(), PurePath(cwd)
    return here if below.is_absolute() or not below.parts else here.parents[len(below.parts) - 1]


def entry_job(
    entry: Mapping[str, Any],
    code: Path,
    places: Mapping[str, str | os.PathLike[str]],
    *,
    where: str,
    check: Callable[[Hardware], None] = lambda _: None,
) -> BasicJob[Any]:
    """The job of `entry`, whose class is found in the project `code`.

    `places`: its files are below `root`, and those that it has keys for (`data`, `checkpoints`, `results`) elsewhere.
    `check` may refuse the hardware with an error. All processes join first.
    """
    join_others()
    cls = _entry_class(entry, code)

    from dispatcher.runtime.execution import Cluster, spec_at

    cluster = Cluster.at(
        Path(places["root"]) / (_text(entry, "output_dir", where) or OUTPUT),
        checkpoints=_text(entry, "checkpoints", where) or _given(places, "checkpoints"),
        results=places.get("results"),
        data=places.get("data"),
    )
    spec = spec_at(
        cluster,
        name=entry["job_id"],
        project=_text(entry, "project", where),
        group=_text(entry, "group", where),
        tensor_shards=_shards(entry, where),
    )
    check(spec.hardware)
    config = _with_batch_size(cls, _entry_config(entry, where))
    job = make_job(cls, spec, config, restore=_text(entry, "restore", where), where=where)
    if _flag(entry, "accept_changes", where):
        accept_changes(job)
    return job


def call(job: BasicJob[Any]) -> int:
    """Run the job; process 0 reports its row of results. The exit status."""
    row = job()
    if row is not None and job.main_process():
        with storing("the job is done, but its row of results cannot be reported"):
            contract.report_result(**row)
    return contract.EXIT_DONE


def join_others() -> None:
    """Join the other processes of this job; call it before job files are imported, which may use JAX."""
    from dispatcher.runtime import distributed

    distributed.initialize()


def entry_faults(entry: Mapping[str, Any], root: Path) -> list[str]:
    """Every fault that would keep the entry's job from being made: an unknown key, faults of its configuration.

    With `restore` only the key is checked, because the configuration depends on the checkpoint.
    """
    try:
        cls = _entry_class(entry, root)
        if entry.get("restore"):
            return []
        if cls.checkpoint_classes():
            return [_NEEDS_CHECKPOINT]
        cls.checked_config(_entry_config(entry, ""), where="")
    except ConfigError as error:
        # Without the heading, which names the file and counts the faults.
        return [line.strip() for line in str(error).splitlines()[1:]]
    except UsageError as error:
        return [" ".join(str(error).splitlines())]
    return []


def _entry_config(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The configuration of an entry: its `config`, overridden by the parameters with a dot in their key."""
    overrides: dict[str, Any] = {}
    faults = [
        f"{key}: conflicts with another parameter"
        for key, value in entry.items()
        if "." in key and not place_value(overrides, key.split("."), value)
    ]
    if faults:
        raise ConfigError.of(where, faults)
    return merge(entry.get("config") or {}, overrides)


def file_config(
    cls: type[BasicJob[Any]], config: Config | Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of the full `config` that a file for the job `cls` holds, with `overrides`.

    Values that come from a checkpoint are left out unless overridden: else the defaults of the model, say, would
    replace the checkpoint's values.
    """
    restored: tuple[type, ...] = cls.checkpoint_classes()
    own: list[type] = [kind for kind in cls.config_classes() if kind not in restored]
    return merge(_without(to_dict(config), layout(*restored).keys() - layout(*own).keys()), overrides)


def workspace_root() -> Path:
    """`$DISPATCHER_ROOT`, else the current directory."""
    return Path(os.environ.get(contract.ROOT) or ".").absolute()


def with_overrides(config: Config | Mapping[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    """`config` with dotted overrides (`training.lr=1e-4`) merged over it."""
    return merge(config, parse_overrides(overrides))


def _entry_class(entry: Mapping[str, Any], root: Path) -> Any:
    imports = entry.get("import") or []
    import_jobs(root, [imports] if isinstance(imports, str) else imports)
    return find_job(entry["job"])


def _without(document: Mapping[str, Any], paths: Collection[str], above: tuple[str, ...] = ()) -> dict[str, Any]:
    """`document` without the values at these dotted paths, and without groups that become empty."""
    kept = {}
    for key, value in document.items():
        place = (*above, key)
        left = _without(value, paths, place) if isinstance(value, dict) and value else value
        if ".".join(place) not in paths and not (left == {} and value != {}):
            kept[key] = left
    return kept


def _with_batch_size(cls: type[BasicJob[Any]], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`config` with $DISPATCHER_BATCH_SIZE as its batch size per device, if the job has such a setting."""
    value = os.environ.get(contract.BATCH_SIZE)
    if not value:
        return config
    kinds: list[type] = [*cls.config_classes()]
    if _BATCH_SIZE not in layout(*kinds):
        _log.warning("%s is not used: the job has no setting %s", contract.BATCH_SIZE, _BATCH_SIZE)
        return config
    if not re.fullmatch(r"-1|[1-9][0-9]{0,8}", value):
        raise ConfigError(f"{contract.BATCH_SIZE} = {value!r}: expected the rows of one device, 1 or more, or -1")
    return merge(config, {"training": {"per_device_batch_size": int(value)}})


def _given(places: Mapping[str, str | os.PathLike[str]], key: str) -> str | None:
    return os.fspath(places[key]) if places.get(key) else None


def _text(entry: Mapping[str, Any], key: str, where: str) -> str | None:
    value = entry.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{where}: {key} = {json.dumps(value)}: expected text")
    return value


def _flag(entry: Mapping[str, Any], key: str, where: str) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {key} = {json.dumps(value)}: expected true or false")
    return value


def _shards(entry: Mapping[str, Any], where: str) -> int:
    value = entry.get("tensor_shards", 1)
    if type(value) is not int or value < 1:
        raise ConfigError(f"{where}: tensor_shards = {json.dumps(value)}: expected a whole number, 1 or more")
    return value
