"""dispatcher.yaml as a frozen, typed configuration; a workspace without that file has the defaults."""

from __future__ import annotations

import enum
import functools
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from dispatcher.base import devices, files, outputs, values
from dispatcher.base.running_limits import MaxRunning, RunningLimit
from dispatcher.base.schema import reading
from dispatcher.base.schema.faults import PartsError, lines_of
from dispatcher.base.schema.kinds import (
    ENV,
    TEXT,
    Command,
    Count,
    Duration,
    Positive,
    Text,
    number,
    one_or_many,
    read_later,
)
from dispatcher.base.schema.types import Key, Value, expected
from dispatcher.base.values import BadValueError, shown
from dispatcher.base.variables import RECORDED_VARIABLES, looks_secret
from dispatcher.errors import ConfigError
from dispatcher.hosts.types import Hosts
from dispatcher.job_keys import NOTHING, JobKeys, RetryOn
from dispatcher.workspace import STATUS_FILE, Layout

if TYPE_CHECKING:
    from dispatcher.notify_config import Notify
else:
    # Imported when there are notices to send.
    Notify = Any


class LockKind(enum.StrEnum):
    """The kinds of claims lock. Whatever depends on the kind names a member: a new one has to be decided there."""

    FLOCK = "flock"
    LOCKF = "lockf"
    HARDLINK = "hardlink"


LOCK_KINDS: Final = ("auto", *(kind.value for kind in LockKind))


class CodeMode(enum.StrEnum):
    """Which code the attempts on a host run: HEAD, the tracked files as they are now, or what the host has."""

    SHIP = "ship"
    DIRTY = "dirty"
    NONE = "none"


# A variable, or all whose names begin so.
_VARIABLES: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")

# Where Python looks for modules besides its own environment: those of the dispatcher are not for another interpreter.
PYTHON_PLACES: Final = ("PYTHONPATH", "PYTHONHOME")

_GPU_IDLE_AFTER_S: Final = 1800.0
_MOST_PAUSE_AFTER: Final = 200
# So many failures of a method are remembered (run_state/facets/pauses.py).
_MOST_FAILS: Final = 1_000


class GpuIdle(msgspec.Struct, frozen=True):
    """A running job whose GPUs have been at 0 % for `after_s` leaves them idle; None: not checked."""

    EXAMPLE: ClassVar[str] = "{after: 30m, stop: false}, or false"

    after_s: Annotated[Duration | None, Key("for how long its GPUs must have been at 0 %")] = _GPU_IDLE_AFTER_S
    stop: Annotated[bool, Key("whether it is stopped then, and has failed")] = False


def _parse_gpu_idle(value: object) -> Mapping[str, Any]:
    """The fields of a GpuIdle that are set; `false`: GPUs are not watched."""
    if value is False:
        return {"after_s": None, "stop": False}
    if not isinstance(value, Mapping):
        raise BadValueError(f"expected {expected(GpuIdle)}")
    found, faults = reading.parse(GpuIdle, value)
    if faults:
        raise PartsError(faults)
    return found


def _gpu_idle_schema() -> Mapping[str, Any]:
    from dispatcher.base.schema.json_schema import of_struct

    return {"anyOf": [of_struct(GpuIdle), {"const": False}]}


def _parse_max_fails(value: object) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_FAILS:
        raise BadValueError(f"expected a whole number from 1 to {_MOST_FAILS}")
    return value


def _parse_pause_after(value: object) -> int | None:
    """How many jobs; None for `false`. One alone has nothing in common with others."""
    if value is False:
        return None
    if type(value) is not int or not 2 <= value <= _MOST_PAUSE_AFTER:
        raise BadValueError(
            f"expected false, or a whole number from 2 to {_MOST_PAUSE_AFTER}; max_fails: 1 pauses after any failure"
        )
    return value


def _parse_variables(value: object) -> tuple[str, ...]:
    names = value.split() if isinstance(value, str) else value
    if not isinstance(names, list):
        raise BadValueError("expected names of environment variables such as [XLA_FLAGS, NCCL_*]")
    for name in names:
        if not (isinstance(name, str) and _VARIABLES.fullmatch(name)):
            raise BadValueError(f"{shown(name)} is not the name of a variable, nor its beginning with a *")
        if looks_secret(name):
            raise BadValueError(f"{name} looks like a secret, which is never recorded: remove it")
    return tuple(names)


def _methods_schema() -> Mapping[str, Any]:
    from dispatcher.base.schema.json_schema import nullable, of_struct

    return {"type": "object", "additionalProperties": nullable(of_struct(Method))}


def _notify_schema() -> Mapping[str, Any]:
    from dispatcher.base.schema.json_schema import of_type
    from dispatcher.notify_config import Notify

    return of_type(Notify)


_GpuIdle: TypeAlias = Annotated[Mapping[str, Any], Value(_parse_gpu_idle, _gpu_idle_schema)]
_MaxFails: TypeAlias = Annotated[int, number(1, _MOST_FAILS, _parse_max_fails)]
_PauseAfter: TypeAlias = Annotated[
    int | None,
    Value(
        _parse_pause_after,
        {"anyOf": [{"const": False}, {"type": "integer", "minimum": 2, "maximum": _MOST_PAUSE_AFTER}]},
    ),
]
_Variables: TypeAlias = Annotated[tuple[str, ...], Value(_parse_variables, one_or_many({"type": "string"}))]
# A path as it is written, which the workspace's root is put before.
_Path: TypeAlias = Annotated[Path, Value(values.parse_text, TEXT)]


class Method(JobKeys, frozen=True, kw_only=True):
    """How the jobs of one method are started, unless an entry overrides it.

    `python` None: the interpreter that runs the dispatcher, or the one that `setup` puts first on PATH. `gpu_idle` are
    the fields of a GpuIdle that it sets; None: it sets none. `pause_after`: see pod/breaker.py.
    """

    name: str
    template: Annotated[
        _Path, Key("the training script ([templates](templates.md))", default="`templates/train_<method>.py`")
    ]
    command: Annotated[
        Command,
        Key("what runs, a line or a list; `{script}`, `{python}`, `{attempt_dir}` and any `{key}` of the entry become "
            "one argument each; `{key?--flag}` is [optional](templates.md#the-command)", default="`{python} {script}`"),
    ] = ("{python}", "{script}")  # fmt: skip
    python: Annotated[
        _Path | None,
        Key("an interpreter, or the directory of a virtual or conda environment, which is "
            "[activated](templates.md#the-environment)",
            default="the `python` that `setup` puts first on PATH, else the dispatcher's"),
    ] = None  # fmt: skip
    setup: Annotated[Text, Key("lines of bash before the command, in the same shell", default="none")] = ""
    env: Annotated[
        Mapping[str, str],
        Value(devices.parse_env, ENV),
        Key("environment variables; those of the entry come first", default="none"),
    ] = NOTHING
    retries: Count = 0
    retry_on: RetryOn = ()
    snapshot: bool = False
    backoff_s: Annotated[
        Duration,
        Key("the pause before the first retry; it doubles with each further one, until an attempt makes progress"),
    ] = 30.0
    on_lost: Annotated[
        Literal["requeue", "fail"],
        Key("what happens after an attempt was lost: `requeue`, or `fail` as any other"),
    ] = "requeue"
    on_preempted: Annotated[Literal["requeue", "fail"], Key("the same after an attempt was preempted")] = "requeue"
    on_move: Annotated[
        Literal["stay", "restart"],
        Key("a job whose checkpoint the next outlet cannot see: `stay` waits for one that can, `restart` starts anew"),
    ] = "stay"
    stall_after_s: Annotated[
        Duration | None, Key("`stall_after` for jobs of this method", default="the workspace's")
    ] = None
    gpu_idle: Annotated[
        _GpuIdle | None,
        Key("`gpu_idle` for jobs of this method; a key that is missing is the workspace's", default="the workspace's"),
    ] = None
    max_running: Annotated[
        MaxRunning | None,
        Key("how many attempts of the method may be in flight at once, in all pods together ([limits](limits.md))",
            default="any number"),
    ] = None  # fmt: skip
    max_fails: Annotated[
        _MaxFails | None,
        Key("once so many of its jobs have failed, the method is paused ([limits](limits.md#max_fails))",
            default="any number"),
    ] = None  # fmt: skip
    pause_after: Annotated[
        _PauseAfter,
        Key("once so many of its jobs have failed alike, what they have in common is [paused](pods.md#failures): 2 to "
            "200, or `false` for never"),
    ] = 5  # fmt: skip
    pack: Annotated[Positive, Key("up to so many jobs in one submission to a scheduler, one after the other")] = 1
    result: Annotated[
        outputs.ResultFile | None,
        Key("the file in which the script leaves its result ([scripts as they are](templates.md#scripts-as-they-are)): "
            "`out/summary.json`, or `{path: out/log.csv, values: [val_loss]}`",
            default="what it [reports](templates.md#progress-metrics-and-results)"),
    ] = None  # fmt: skip
    metrics: Annotated[
        outputs.MetricsTable | None,
        Key("the file in which it logs metrics per step: `out/log.csv`, or `{path: out/log.jsonl, step: epoch}`",
            default="`metrics.jsonl`, if it writes one"),
    ] = None  # fmt: skip


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a workspace, and the keys of dispatcher.yaml; those of hosts are in hosts.types.Hosts.

    `hosts` are those of dispatcher.yaml and of the file that was given with --hosts. `stall_after_s` None: see
    run_state/stalls.py.
    """

    matrix: Annotated[
        _Path, Key("the manifest; `--matrix FILE` of a pod comes before it", default="`matrix/matrix.json`")
    ]
    layout: Annotated[
        Layout,
        Value(values.parse_text, TEXT),
        Key("the [status file](status-file.md)", name="status_file", default="`run_state/matrix_status.json`"),
    ]
    script_lock: Annotated[
        _Path | None,
        Key("the file that a script of your own locks while it changes the status file "
            "([moving in](moving-in.md#side-by-side))"),
    ] = None  # fmt: skip
    lock: Annotated[
        Literal["auto", "flock", "lockf", "hardlink"],
        Key("`flock`, `lockf`, `hardlink`, or `auto`: the one that is in use here; for a new workspace the first that "
            "works"),
    ] = "auto"  # fmt: skip
    poll_interval_s: Annotated[
        Duration, Key("maximum delay until a change by another host is noticed; local changes are noticed at once")
    ] = 30.0
    heartbeat_s: Annotated[
        Duration,
        Key("how often a pod renews its file in `run_state/pods/`; a pod that has not for 60 s, or 10 heartbeats if "
            "that is longer, [shows no sign of life](pods.md#when-things-die)"),
    ] = 2.0  # fmt: skip
    lost_after_s: Annotated[
        Duration, Key("how long a silent host keeps its jobs where locks cannot tell; at least five heartbeats")
    ] = 600.0
    # Longer than the minute that a job has by default for a last checkpoint.
    kill_grace_s: Annotated[Duration, Key("from TERM to KILL; a trainer takes up to 60 s to save")] = 75.0
    max_requeues: Annotated[Count, Key("automatic requeues of a preempted or lost job that makes no progress")] = 20
    stall_after_s: Annotated[
        Duration | None,
        Key("a running job that has reported no progress for so long is marked in `status`",
            default="3 times the longest gap between two reports that its method has shown, at least 5 min"),
    ] = None  # fmt: skip
    gpu_idle: Annotated[
        _GpuIdle,
        Key("when a running job counts as leaving its [GPUs idle](pods.md#idle-gpus) (`after`), and whether it is "
            "stopped then (`stop`); `false`: not checked", default="`{after: 30m, stop: false}`"),
    ] = NOTHING  # fmt: skip
    code: Annotated[
        CodeMode,
        Key("what hosts run that do not see the workspace: `ship` (HEAD), `dirty` (the tracked files as they are), "
            "`none` ([code](outlets/code.md))"),
    ] = CodeMode.SHIP  # fmt: skip
    provenance: Annotated[bool, Key("whether each attempt records [what it ran from](provenance.md)")] = True
    provenance_env: Annotated[
        _Variables,
        Key("the variables that are recorded with it: names, or beginnings with a `*`",
            default="those of CUDA, XLA, JAX, NCCL, cuBLAS and of the number of threads "
            "(`dispatcher/base/variables.py`)"),
    ] = RECORDED_VARIABLES  # fmt: skip
    notify: Annotated[
        Annotated[Notify, read_later(_notify_schema)] | None,
        Key("[who gets a notice](notify.md) when jobs fail, a pod dies or everything is done, by mail, chat or a "
            "command",
            default="none"),
    ] = None  # fmt: skip
    limits: Annotated[
        tuple[RunningLimit, ...],
        Key("how many attempts of which jobs may be in flight at once, in all pods together ([limits](limits.md))"),
    ] = ()
    methods: Annotated[Mapping[str, Method], read_later(_methods_schema), Key("settings of [methods](#methods)")] = (
        NOTHING
    )
    hosts: Hosts = Hosts()
    # The file of --hosts.
    hosts_file: Path | None = None
    # Why it is not known for certain where the run state is and how it is locked: nothing may be changed there.
    doubtful: str = ""

    def gpu_idle_of(self, method: str) -> GpuIdle:
        """When jobs of a method leave their GPUs idle, and what becomes of them."""
        configured = self.methods.get(method)
        own = None if configured is None else configured.gpu_idle
        if own is None:
            return GpuIdle(**self.gpu_idle)
        fields = {**self.gpu_idle, **own}
        if own and fields.get("after_s") is None and "after_s" not in own:
            # It asks for something that the others are not watched for.
            fields.pop("after_s", None)
        return GpuIdle(**fields)

    def method(self, name: str) -> Method:
        """The configured method, or the default one: `templates/train_<name>.py` run by this interpreter."""
        return self.methods.get(name) or _default_method(self.layout, name)

    def wants_copy(self, method: str, stated: bool | None) -> bool:
        """Whether attempts run a copy of the code: as the entry has `stated` it, else as the method says."""
        return self.method(method).snapshot if stated is None else stated


# Asked for several times at each start and end of an attempt.
@functools.lru_cache(maxsize=256)
def _default_method(layout: Layout, name: str) -> Method:
    return Method(name=name, template=layout.training_template(name))


# What has nothing to do with the run state. A fault elsewhere may be the misspelt name of the status file.
_APART: Final = ("methods", "limits", "notify")


def load_config(layout: Layout, hosts_file: Path | None = None) -> Config:
    """The configuration of the workspace; ConfigError lists every fault of dispatcher.yaml at once.

    `hosts_file` has further clusters and hosts, in the same keys. Where both describe one of the same name, that file's
    description is used as a whole; so is its `priority`, and its line of `gres_mapping` for a chip.
    """
    return _read_config(layout, hosts_file, None)


def load_readable(layout: Layout, hosts_file: Path | None, warn: Callable[[str], object]) -> Config:
    """As `load_config`, for what does not depend on all of it: `warn` gets the faults, which count as not set."""

    def tell(text: str) -> None:
        warn(f"what is faulty in the configuration counts as not set: {text}")

    return _read_config(layout, hosts_file, tell)


def _read_config(layout: Layout, hosts_file: Path | None, tell: Callable[[str], object] | None) -> Config:
    try:
        document = _load(layout.config_file)
    except ConfigError as error:
        if tell is None:
            raise
        tell(str(error))
        return Config(layout=layout, matrix=layout.default_matrix, hosts_file=hosts_file, doubtful=str(error))
    if document is None and hosts_file is None:
        return Config(layout=layout, matrix=layout.default_matrix)
    config, faults = _read_settings(layout, document or {})
    others: list[str] = []
    hosts = _hosts(document or {}, faults, hosts_file, others, config.poll_interval_s)
    config = msgspec.structs.replace(config, hosts=hosts, hosts_file=hosts_file)
    wrong = [(layout.config_file, faults), (hosts_file, others)]
    texts = [str(ConfigError.of(path, listed)) for path, listed in wrong if listed]
    if texts and tell is None:
        raise ConfigError("\n".join(texts))
    if texts and tell is not None:
        tell("\n".join(texts))
    doubts = [fault for fault in faults if not fault.startswith((*_APART, *reading.fields(Hosts)))]
    return msgspec.structs.replace(config, doubtful=str(ConfigError.of(layout.config_file, doubts)) if doubts else "")


def _hosts(
    document: Mapping[Any, Any], faults: list[str], hosts_file: Path | None, others: list[str], poll_interval_s: float
) -> Hosts:
    if hosts_file is None and reading.fields(Hosts).keys().isdisjoint(document):
        return Hosts()
    from dispatcher.hosts.read import Source, read_hosts

    sources = [Source(document, faults)]
    if hosts_file is not None:
        loaded = _load(hosts_file, "keys such as clusters and hosts")
        if loaded is None:
            raise ConfigError(f"{hosts_file}: there is no such file")
        sources.append(Source(loaded, others, is_own_file=True))
    return read_hosts(sources, poll_interval_s)


def _read_settings(layout: Layout, document: Mapping[Any, Any]) -> tuple[Config, list[str]]:
    """The settings but for the hosts, and the faults in them."""
    fields, found = reading.parse(Config, document, also=tuple(reading.fields(Hosts)))
    faults = [fault.line() for fault in found]
    fields["matrix"] = layout.root / fields["matrix"] if "matrix" in fields else layout.default_matrix
    layout = _with_status_file(layout, fields.get("layout"), fields["matrix"], faults)
    fields["layout"] = layout
    fields["script_lock"] = _script_lock(layout, fields.get("script_lock"), faults)
    fields["notify"] = _notify(fields.get("notify"), faults)
    fields["methods"] = _methods(layout, fields.get("methods"), faults)
    config = Config(**fields)
    if config.lost_after_s < 5 * config.heartbeat_s:
        faults.append(
            f"lost_after ({config.lost_after_s:g} s): expected at least five heartbeats of {config.heartbeat_s:g} s, "
            "else live jobs are taken for lost"
        )
    return config, faults


def _notify(value: object, faults: list[str]) -> Notify | None:
    if value is None:
        return None
    from dispatcher.notify_config import parse_notify

    try:
        return parse_notify(value)
    except BadValueError as error:
        faults += lines_of(error, value, "notify")
        return None


def _with_status_file(layout: Layout, name: str | None, matrix: Path, faults: list[str]) -> Layout:
    """The layout with the status file at the place that dispatcher.yaml names."""
    if name is None:
        return layout
    # A rename would replace a link by a file, and changes that are written through the link would be lost.
    path = Path(os.path.realpath(layout.root / name))
    if path == Path(os.path.realpath(matrix)):
        faults.append(f"status_file = {name!r}: that is the manifest; name another file, for the states of its jobs")
    elif path.is_dir():
        faults.append(f"status_file = {name!r}: a directory; name the file in it, such as {name}/{STATUS_FILE}")
    elif not path.parent.is_dir():
        faults.append(f"status_file = {name!r}: there is no directory {path.parent}")
    return Layout(layout.root, path)


def _script_lock(layout: Layout, name: str | None, faults: list[str]) -> Path | None:
    """The configured file that a lab's own script locks while it changes the status file."""
    if name is None:
        return None
    path = Path(os.path.realpath(layout.root / name))
    if path == Path(os.path.realpath(layout.lock_file)):
        faults.append(
            f"script_lock = {name!r}: that is the dispatchers' own lock; let your script lock another file, "
            "such as script.lock: change that line of the script, and write `script_lock: script.lock`"
        )
    elif path == layout.status_file:
        faults.append(
            f"script_lock = {name!r}: that is the status file, which is replaced at every change, so two processes "
            "would lock different files; let your script lock a file of its own"
        )
    elif not path.parent.is_dir():
        faults.append(f"script_lock = {name!r}: there is no directory {path.parent}")
    return path


def write_max_running(layout: Layout, method: str, most: int) -> None:
    """Write `max_running` of a method into dispatcher.yaml. Raises ConfigError where the file cannot be changed so."""
    from dispatcher.base import yaml_text

    path = Path(os.path.realpath(layout.config_file))
    load_config(layout)
    by_hand = f"write `max_running: {most}` under `methods: {method}:` by hand"
    try:
        text = files.read_plain(path).decode("utf-8") if path.exists() else ""
        changed = yaml_text.with_number(text, ("methods", method, "max_running"), most)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}: {by_hand}") from None
    with files.storing("writing", path):
        mode = os.stat(path).st_mode & 0o777 if path.exists() else None
        files.replace_file(path, changed.encode())
        if mode is not None:
            os.chmod(path, mode)


def _load(path: Path, expected: str = "keys and values such as matrix: matrix/matrix.json") -> Mapping[Any, Any] | None:
    """The keys of a file; None when there is none."""
    try:
        data = files.read_plain(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    from dispatcher.base import yaml_text

    try:
        return yaml_text.load_mapping(data, expected)
    except ValueError as error:
        raise ConfigError.of(path, [str(error)]) from None


def _methods(layout: Layout, document: object, faults: list[str]) -> dict[str, Method]:
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        faults.append(f"methods = {shown(document)}: expected names of methods, each with its keys")
        return {}
    methods = {}
    for name, keys in document.items():
        place = f"methods.{name}"
        if not values.is_name(name):
            faults.append(f"{place}: the name cannot be used; quote a number, else only letters, digits, '.', '_', '-'")
        elif keys is not None and not isinstance(keys, Mapping):
            faults.append(f"{place} = {shown(keys)}: expected keys such as template, command, time_limit")
        else:
            methods[name] = _method(layout, name, keys or {}, faults)
    return methods


def _method(layout: Layout, name: str, document: Mapping[Any, Any], faults: list[str]) -> Method:
    fields, found = reading.parse(Method, document, f"methods.{name}")
    faults += [fault.line() for fault in found]
    path = layout.root / fields["template"] if "template" in fields else layout.training_template(name)
    if "python" in fields:
        fields["python"] = layout.root / os.path.expanduser(fields["python"])
    return Method(**{**fields, "name": name, "template": path})


@functools.cache
def own_programs() -> str:
    """The directory of the programs of this process's own environment; empty where it is the system's Python."""
    is_own = sys.prefix != sys.base_prefix or os.path.isdir(os.path.join(sys.prefix, "conda-meta"))
    return os.path.join(sys.prefix, "bin") if is_own else ""


def python_environment(method: Method) -> dict[str, str]:
    """The environment in which the interpreter of the method is asked what it can import, as its jobs can."""
    inherited = {
        name: value for name, value in os.environ.items() if method.python is None or name not in PYTHON_PLACES
    }
    return {**inherited, **method.env}


def interpreter(python: Path | None) -> Path:
    """The interpreter for a method's `python`, a file or an environment's directory; it need not exist."""
    if python is None:
        return Path(sys.executable or "python3")
    if python.is_dir():
        return python / "bin" / "python"
    return python
